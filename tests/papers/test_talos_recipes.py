"""P2's recipes end to end on a tiny encoder: all rows and columns are there, and what is missing says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from skillgraft.errors import InputError
from skillgraft.papers import reproduce
from skillgraft.papers.profile import Profile, profile
from skillgraft.papers.recipes import RECIPES
from skillgraft.papers.recipes.arithmetic import ALPHAS
from skillgraft.papers.steps import in_order
from skillgraft.papers.task_vectors import METHODS, RULES
from skillgraft.report.sheet import load_result
from tests.compose.toy_tasks import place, tasks  # noqa: F401
from tests.readouts import making

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

TASKS = ("films", "animals")
ROWS = (*TASKS, "mean")
FEW = ("full", "linearised", "TaLoS")
REGIONS = ("TaLoS", "TaLoS plain", "LoTA")
TRAINED = ("full", "linearised", "LoRA", "LoTA", "random 10 %", "TaLoS")
OWN = tuple(name for name in METHODS if name != "post-hoc linearised")
KINDS = ("LayerNorm", "bias", "query", "key", "value", "attention output", "MLP in", "MLP out")
LAYERS = ("encoder.layer.0", "encoder.layer.1")
SCALES = tuple(f"{alpha:g}" for alpha in ALPHAS)

# A rule's sum is normalised twice: by its thinned vectors' own accuracy, and by that of full's vectors.
NORMALISED = (*METHODS, *(column for rule in RULES for column in (rule, f"{rule}, by full's")))

# Recipe → the rows and columns of each of its sheets, in order.
Shape = tuple[tuple[str, ...], tuple[str, ...]]
EXPECTED: Mapping[str, Sequence[Shape]] = {
    "talos-addition": [
        (ROWS, ("majority", "base", *METHODS, *RULES)),
        (ROWS, ("base", *METHODS, *RULES)),
        (ROWS, NORMALISED),
        (ROWS, NORMALISED),
        ((*METHODS, *RULES), ("scale", "normalised accuracy on validation")),
        (TASKS, OWN),
        (ROWS, OWN),
    ],
    "talos-negation": [(ROWS, ("base", *FEW)), (ROWS, ("base", *FEW)), (TASKS, FEW)],
    "talos-fig1": [
        (TASKS, TASKS),
        (("0.01", "0.05", "0.1", "0.2", "0.3", "0.4"), ("the task itself", "other tasks")),
    ],
    "talos-fig2": [*[(SCALES, SCALES)] * 3, (("films + animals",), FEW)],
    "talos-fig3": [*[(TASKS, TASKS)] * 3, (("its own task", "other tasks", "other tasks: distance from 100"), FEW)],
    "talos-fig4": [(KINDS, REGIONS)] * 2,
    "talos-fig5": [
        *[(LAYERS, KINDS)] * 6,
        (KINDS[2:], tuple(f"{method}, {axis}" for method in REGIONS for axis in ("rows", "columns"))),
        *[(TASKS, TASKS)] * 3,
        (REGIONS, ("mean jaccard", "jaccard by chance", "entries that all tasks share")),
        (TASKS, REGIONS[:2]),
    ],
    "talos-cost": [
        (TRAINED, ("entries trained", "seconds per step", "optimizer state", "peak memory")),
        (TRAINED, ("entries trained", "seconds per step")),
        (TRAINED, ("optimizer state", "peak memory")),
    ],
}


def asked(place: Path, tasks: Sequence[Path], **changes: Any) -> Profile:
    """The smoke profile for two tasks, with a third to keep."""
    chosen = {"tasks": tuple(map(str, tasks[:2])), "controls": (str(tasks[2]),)}
    return profile("smoke", base=str(place / "encoder"), **{**chosen, **changes})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all recipes: what they have in common is made once."""
    return tmp_path_factory.mktemp("store")


@pytest.mark.long
@pytest.mark.usefixtures("_no_pictures")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_recipe_has_every_row_and_column_and_every_missing_cell_a_reason(
    name: str, place: Path, tasks: list[Path], shared: Path, tmp_path: Path
) -> None:
    reproduce(name, asked(place, tasks), store=shared, out=tmp_path)
    found = load_result(tmp_path / f"{name}.json")
    assert [(sheet.rows, sheet.columns) for sheet in found.sheets] == list(EXPECTED[name])
    for sheet in found.sheets:
        for where, cell in sheet.cells.items():
            assert cell.value is not None or cell.reason.startswith("undertrained"), (sheet.title, where, cell.reason)
    assert str(place) not in (tmp_path / f"{name}.json").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.usefixtures("_no_pictures")
def test_on_images_a_frozen_head_of_descriptions_or_of_prototypes_does_the_same(tmp_path: Path) -> None:
    """CLIP reads label descriptions; a vision transformer reads prototypes. Nothing else differs."""
    bases = {"text-head": making.clip(tmp_path / "clip"), "prototypes": making.vit(tmp_path / "vit")}
    images = [str(making.write_digits(tmp_path, name)) for name in ("digits", "signs")]
    for readout, base in bases.items():
        changes = {"tasks": tuple(images), "methods": ("full", "linearised", "TaLoS", "TIES"), "readout": readout}
        chosen = profile("smoke", base=str(base), **changes)
        for name in ("talos-addition", "talos-fig3", "talos-fig5"):
            found = reproduce(name, chosen, store=tmp_path / readout, out=tmp_path / "out")
            cells = [cell for sheet in found.sheets for cell in sheet.cells.values()]
            assert all(cell.value is not None or cell.reason.startswith("undertrained") for cell in cells)


def test_every_recipe_of_p2_is_expected_here() -> None:
    assert {name for name in RECIPES if name.startswith("talos-")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_recipes_own_tasks_draft_without_running(name: str, place: Path) -> None:
    for scale in ("cpu", "paper"):
        drafts = RECIPES[name].draft(profile(scale, base=str(place / "encoder")))
        assert in_order(step for draft in drafts for step in draft.steps())


def test_methods_that_are_asked_for_replace_the_recipes_own(place: Path, tasks: list[Path]) -> None:
    few = asked(place, tasks, methods=("full", "TIES"))
    sums = RECIPES["talos-addition"].draft(few)[2]
    assert {column for _, column in sums.cells} == {"full", "TIES", "TIES, by full's"}
    assert {column for _, column in RECIPES["talos-fig3"].draft(few)[-1].cells} == {"full"}
    with pytest.raises(InputError, match="unknown method 'Talos'; did you mean 'TaLoS'"):
        RECIPES["talos-addition"].draft(asked(place, tasks, methods=("Talos",)))


def test_a_rules_columns_ask_about_thinned_vectors(place: Path, tasks: list[Path]) -> None:
    alone, _, sums, _, scales, *_ = RECIPES["talos-addition"].draft(asked(place, tasks, methods=("full", *RULES)))
    for rule, how in RULES.items():
        (steps,) = sums.cells["films", rule].samples  # type: ignore[union-attr]
        combined, own, full = steps
        assert combined.arguments["graft"].arguments.items() >= how.items()
        assert own == alone.cells["films", rule].samples[0][0]  # type: ignore[union-attr]
        assert own.name == "ask_thinned"
        assert own.arguments["rule"] == how["rule"]
        assert len(own.arguments["grafts"]) == (2 if rule == "TALL-masks" else 1)
        assert full == alone.cells["films", "full"].samples[0][0]  # type: ignore[union-attr]
        assert sums.cells["films", f"{rule}, by full's"].samples[0] == steps  # type: ignore[union-attr]
        assert {"scale", "normalised accuracy on validation"} == {column for row, column in scales.cells if row == rule}
    drawn = [step.arguments for step in in_order(sums.steps()) if step.arguments.get("rule") in ("dare", "della")]
    assert {(step["rule"], step["seed"]) for step in drawn} == {("dare", 0), ("della", 0)}


def test_shots_and_seeds_replace_the_rows_and_the_one_seed(place: Path, tasks: list[Path]) -> None:
    drafts = RECIPES["talos-fig3"].draft(asked(place, tasks, shots=(4, 8), seeds=(1, 2)))
    assert [draft.title for draft in drafts[::4]] == ["full, 4 examples per class", "full, 8 examples per class"]
    tuned = [step.arguments["data"] for step in in_order(drafts[0].steps()) if step.name == "finetune"]
    assert {(data.shots, data.seed, data.train_rows) for data in tuned} == {(4, 1, None), (4, 2, None)}
