"""Recipes of P1 §5: which steps they share, which cells a mean takes, and each of them end to end at smoke scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from skillgraft.errors import InputError
from skillgraft.papers import Wanted, reproduce
from skillgraft.papers.profile import Profile, profile
from skillgraft.papers.recipes import RECIPES, multitask
from skillgraft.papers.recipes.multitask import COLUMNS, Panel, groups
from skillgraft.papers.several_tasks import Series
from skillgraft.papers.steps import Asked, in_order
from skillgraft.report.sheet import load_result
from tests.compose.toy_tasks import TASKS, place, tasks  # noqa: F401

from .test_multitask import toys  # noqa: F401
from .toys import slow_step

MINE = multitask.RECIPES


def test_groups_are_the_recipes_own_or_neighbours() -> None:
    assert groups(multitask.TASKS) == [*multitask.GROUPS]
    assert groups(("sst2", "mrpc", "cr")) == [("sst2", "cr")]
    assert groups(("mr", "mpqa", "rte")) == [("mr", "mpqa"), ("mpqa", "rte")]


def test_means_of_a_map_by_hand() -> None:
    """sst2 and cr are of one family, qnli is of another."""
    names = ("sst2", "cr", "qnli")
    steps = {(a, b): slow_step(f"{a} {b}") for a in names for b in names}
    cells = {pair: Wanted.of(float, step) for pair, step in steps.items()}
    panel = Panel("p", "v", {name: (name,) for name in names}, cells)
    chosen = {column: {step[0] for step in _samples(panel.mean(which))} for column, which in COLUMNS.items()}
    assert chosen["own tasks"] == {steps[name, name] for name in names}
    assert chosen["all others"] == set(steps.values()) - chosen["own tasks"]
    assert chosen["others of the same family"] == {steps["sst2", "cr"], steps["cr", "sst2"]}
    assert chosen["others of other families"] == chosen["all others"] - chosen["others of the same family"]
    assert "no such pair" in str(Panel("p", "v", {"qnli": ("qnli",)}, {}).mean(COLUMNS["own tasks"]))


def _samples(wanted: Wanted | str) -> tuple[tuple[Asked, ...], ...]:
    assert isinstance(wanted, Wanted)
    assert wanted.partial
    return wanted.samples


def test_one_task_is_no_mixture(studio: Path) -> None:
    alone = profile("smoke", base=str(studio / "bert"), tasks=(str(studio / "films.toml"),))
    for name in MINE.keys() - {"table4"}:
        with pytest.raises(InputError, match="at least two tasks, found films alone"):
            RECIPES[name].draft(alone)


def test_variants_share_one_multi_task_model(studio: Path) -> None:
    cpu = profile("cpu", base=str(studio / "bert"))
    steps = {name: in_order(step for draft in MINE[name].draft(cpu) for step in draft.steps()) for name in MINE}
    calls = {name: [step.name for step in some] for name, some in steps.items()}
    tuned = {name: {step.key for step in some if step.name == "finetune"} for name, some in steps.items()}
    assert len(tuned["fig8"]) == 1
    assert tuned["fig8"] == tuned["fig11"] == tuned["fig12"]
    assert tuned["fig8"] | tuned["fig13"] | tuned["fig14"] < tuned["mt-vs-single"]
    assert tuned["table4"] < tuned["mt-vs-single"], "its separate models are the single ones"
    assert [calls[name].count("task_regions") for name in ("fig8", "fig11", "fig12", "fig13")] == [6, 3, 3, 6]
    assert (calls["fig8"].count("union"), calls["fig8"].count("purified")) == (5, 5)
    assert (calls["table4"].count("learn"), calls["table4"].count("tune_on")) == (3, 2)


def test_table_4_has_the_papers_numbers(studio: Path) -> None:
    first = RECIPES["table4"].draft(profile("paper", base=str(studio / "bert")))[0]
    numbers = {pair: cell.paper for pair, cell in first.cells.items() if isinstance(cell, Wanted) and cell.paper}
    assert len(numbers) == 9
    assert numbers["naive", "qnli"] == pytest.approx(0.675)
    assert first.notes[-1].startswith("paper: RoBERTa-base, 4096")


SMOKE = ("films", "plays", "songs")
UNIONS = ("films+plays", "plays+songs")
MEANS = tuple(COLUMNS)
MAPS = ("(a) what regions share", "(b) gains of one task's region")
METHODS = ("naive", "grafts")
SIZES = tuple(f"(b) {task}" for task in SMOKE)
Shape = tuple[tuple[str, ...], tuple[str, ...]]
TWO_MAPS: Sequence[Shape] = [(SMOKE, SMOKE), (SMOKE, SMOKE), (MAPS, MEANS), (SIZES, ("entries", "density"))]
EXPECTED: Mapping[str, Sequence[Shape]] = {
    "fig8": [
        (SMOKE, SMOKE), (SMOKE, SMOKE), (UNIONS, SMOKE), (UNIONS, SMOKE),
        ((*MAPS, "(c) gains of unions", "(d) gains of purified unions"), MEANS),
        ((*SIZES, *(f"({part}) {union}" for part in "cd" for union in UNIONS)), ("entries", "density")),
    ],
    **dict.fromkeys(("fig11", "fig12", "fig13", "fig14"), TWO_MAPS),
    "mt-vs-single": [
        ((*SMOKE, "average"), ("majority", "base", "single task", "multi-task SGD", "multi-task AdamW",
                               "multi-task AdamW + L1", "multi-task SGD − single task")),
    ],
    "table4": [
        (("majority", "base", "separate", *METHODS), SMOKE),
        (tuple(f"{method}{what}" for method in METHODS for what in (
            " − separate", ": change since it was learned", ": rows with the same scores since")), SMOKE),
        (tuple(f"{method}, after {task}" for method in METHODS for task in SMOKE), SMOKE),
        (("region", "region without earlier ones"), SMOKE),
        (("store of grafts", "separate models"), tuple(f"after {task}" for task in SMOKE)),
    ],
}  # fmt: skip
# Tiny models learn little, their regions have an entry or none, and the tasks, which have the same rows, want the same one.
REASONS = ("no skill to localise", "is empty", "no such pair", "not learned yet", "belong to earlier tasks")


def test_every_recipe_is_expected_here() -> None:
    assert set(EXPECTED) == set(MINE)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_papers_own_tasks_draft_at_every_scale(name: str, studio: Path) -> None:
    for scale in ("cpu", "paper"):
        drafts = RECIPES[name].draft(profile(scale, base=str(studio / "bert")))
        assert all(draft.title and list(draft.steps()) for draft in drafts)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("smoke-store")


@pytest.mark.long
@pytest.mark.usefixtures("_no_pictures")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_recipe_has_every_row_and_column_and_every_missing_cell_a_reason(
    name: str, studio: Path, shared: Path, tmp_path: Path
) -> None:
    files = tuple(str(studio / f"{task}.toml") for task in SMOKE)
    reproduce(name, profile("smoke", base=str(studio / "bert"), tasks=files), store=shared, out=tmp_path)
    found = load_result(tmp_path / f"{name}.json")
    assert [(sheet.rows, sheet.columns) for sheet in found.sheets] == list(EXPECTED[name])
    for sheet in found.sheets:
        for cell in sheet.cells.values():
            assert cell.value is not None or any(reason in cell.reason for reason in REASONS), cell.reason
    assert all(sheet.look == "heatmap" for sheet in found.sheets if sheet.rows_are == "region of")
    assert str(studio) not in (tmp_path / f"{name}.json").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.usefixtures("_no_pictures")
def test_where_tasks_differ_nothing_is_missing_and_nothing_forgotten(
    toys: Profile,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Regions of 5 %: a hundredth of a percent of a tiny model is no entry at all."""
    monkeypatch.setattr(multitask, "Series", partial(Series, density=0.05))
    found = reproduce("table4", replace(toys, together=12), store=tmp_path / "store", out=tmp_path)
    first, forgotten, *_, memory = found.sheets
    assert all(cell.value is not None for sheet in (first, forgotten, memory) for cell in sheet.cells.values())
    same = [forgotten.cells["grafts: rows with the same scores since", task].value for task in TASKS]
    assert same == [1.0, 1.0, 1.0]
    assert forgotten.cells["naive: rows with the same scores since", "films"].value == 0.0
