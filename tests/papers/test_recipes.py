"""Every recipe end to end on tiny models: all rows and columns are there, and what is missing says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from skillgraft.errors import InputError
from skillgraft.papers import reproduce
from skillgraft.papers.profile import Profile, profile
from skillgraft.papers.recipe import Draft, Wanted
from skillgraft.papers.recipes import RECIPES
from skillgraft.papers.recipes.generalization import ADAPTERS
from skillgraft.papers.steps import Step, in_order, task_content
from skillgraft.report.sheet import Sheet, load_result

TASKS = ("films", "plays")
KEPT = ("majority", "base", "base + shift", "tuned", "tuned ECE", "tuned + temperature ECE", "graft", "graft ECE", "agreement",
        "share kept", "relative gain")  # fmt: skip
SIZES = (*ADAPTERS, "graft 0.01 %", "graft 0.05 %", "graft 0.1 %", "graft 1 %", "graft 100 %")
DENSITIES = ("1e-05", "0.0001", "0.001", "0.01")
SCALES = tuple(f"{step / 10:g}" for step in range(11))
KINDS = ("LayerNorm", "bias", "query", "key", "value", "attention output", "MLP in", "MLP out")
LAYERS = ("encoder.layer.0", "encoder.layer.1")
SEEDS = ("seed 0", "seed 1", "seed 2")


def with_ece(*names: str) -> tuple[str, ...]:
    return tuple(column for name in names for column in (name, f"{name} ECE"))


def each(*models: str, task: str) -> tuple[str, ...]:
    return tuple(column for model in models for column in (f"{model}, {task}", f"{model}, → songs"))


# Recipe → the rows and columns of each of its sheets, in order.
Shape = tuple[tuple[str, ...], tuple[str, ...]]
EXPECTED: Mapping[str, Sequence[Shape]] = {
    "table1": [
        (TASKS, ("majority", "base", *with_ece("tuned", "graft", "re-trained", "BitFit"), "tuned + temperature ECE",
                 "share kept", "relative gain")),
    ],
    "table2": [
        (TASKS, KEPT), (TASKS, KEPT), *[
            (TASKS, ("base", *with_ece("tuned", "budgeted graft", "amplified graft"), "amplified: share kept",
                     "amplified: relative gain")),
            (TASKS, ("multiple of the change",)),
        ] * 2,
    ],
    "table3": [(("films → songs", "plays → songs"), ("majority", "base", "tuned", "graft", "re-trained", "BitFit"))],
    "table5": [(TASKS, ("majority", "base", *with_ece("tuned", "graft 0.03 %", "graft 0.06 %", "graft 0.12 %")))],
    "table6": [(SIZES, ("trained or kept", *with_ece("films", "plays", "average")))],
    "table7": [(SIZES, ("films", "films → songs", "plays", "plays → songs", "average ID", "average OOD"))],
    "table8": [
        (tuple(f"{task} {share} %" for task in TASKS for share in ("0.01", "0.1", "1")),
         ("overlap", *with_ece("graft", "FISH graft", "random graft"), "tuned", "base")),
    ],
    "table9": [(TASKS, KEPT), (TASKS, KEPT)],
    "fig2": [(DENSITIES, ("learned", "learned, nested from 1e-05", "movement", "random", "tuned", "base"))] * 2,
    "fig3": [
        (DENSITIES, ("graft, auto readout", "tuned, auto readout", "base, auto readout",
                     "graft, linear head", "tuned, linear head", "base with tuned's head, linear head")),
    ] * 2,
    "fig4": [
        *[(("0.01", "0.1", "0.3", "0.5", "1"), ("learned biases", "moved biases", "tuned", "base"))] * 2,
        *[(("0.1", "0.3", "0.5", "0.7", "0.9"),
           ("learned from movement", "learned from magnitude", "magnitude", "tuned", "base"))] * 2,
    ],
    "fig5": [
        (DENSITIES, ("SGD", "AdamW", "AdamW + L1", "SGD, tuned", "AdamW, tuned", "AdamW + L1, tuned", "base")),
    ] * 2,
    "headline": [
        (tuple(f"{search}, 0.0001" for search in ("random", "movement", "budgeted")),
         ("majority", "base", *with_ece("tuned"), "tuned over-confident by", *with_ece("graft"), "ECE cut", "agreement",
          "share kept", "relative gain")),
    ] * 2,
    "pull": [
        (tuple(f"{strength}, {way}" for strength in ("0", "0.0003", "0.001")
               for way in ("movement", "budgeted", "learned")),
         ("base", *with_ece("tuned", "graft"), "share kept", "relative gain",
          "share kept, without a pull", "relative gain, without a pull")),
    ] * 2,
    "fig6": [(tuple(f"{n / 10:g}–{(n + 1) / 10:g}" for n in range(10)), ("tuned", "graft"))] * 2,
    "fig7": [
        *[((*DENSITIES, "0.1"), each("graft", "tuned", task=task)) for task in TASKS],
        *[(("2", "4"), each("graft", "tuned", task=task)) for task in TASKS],
        *[(SCALES, each("WiSE tuned", "WiSE graft", task=task)) for task in TASKS],
        (tuple(f"{task} → songs, {way}" for task in TASKS for way in ("WiSE tuned", "WiSE graft", "graft")),
         ("ID", "OOD")),
    ],
    "fig9": [(LAYERS, TASKS)] * 4,
    "fig10": [(KINDS, TASKS)],
    "fig15": [
        (("1", "2"), ("model, training rows", "model", "graft 0.01 %", "graft 0.1 %", "graft 1 %", "base")),
    ] * 2,
    "stability": [(SEEDS, SEEDS)] * 6,
    "gap": [
        (("2", "4"), tuple(f"{model} {what}" for model in ("tuned", "graft", "re-trained")
                           for what in ("train", "test", "gap"))),
    ] * 2,
    "bound": [
        (("1e-05", "0.0001", "0.001"),
         ("entries", "training rows", "re-trained gap", "re-trained, region fixed (D.2)",
          "re-trained, any region (D.2)", "graft, any region (D.4)", "re-trained, region fixed, 1 bit per entry")),
    ] * 2,
}  # fmt: skip
# The only reasons why a cell may be missing here: the tiny models learn little, their regions have few entries, and where all
# others are 0 (lottery tickets) too few of them matter.
REASONS = ("no skill to localise", "in the region", "have a slope at the first step")


def asked(studio: Path, name: str, **changes: object) -> Profile:
    """The smoke profile for two tasks, and a third from elsewhere."""
    base = str(studio / ("gpt2" if name == "table9" else "bert"))
    tasks = tuple(str(studio / f"{task}.toml") for task in TASKS)
    return profile("smoke", base=base, **{"tasks": tasks, "ood": (str(studio / "songs.toml"),), **changes})


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One store for all recipes: what they have in common is made once."""
    return tmp_path_factory.mktemp("store")


@pytest.mark.long
@pytest.mark.usefixtures("_no_pictures")
@pytest.mark.parametrize("name", EXPECTED)
def test_a_recipe_has_every_row_and_column_and_every_missing_cell_a_reason(
    name: str, studio: Path, shared: Path, tmp_path: Path
) -> None:
    reproduce(name, asked(studio, name), store=shared, out=tmp_path, command="skillgraft reproduce")
    found = load_result(tmp_path / f"{name}.json")
    assert [(sheet.rows, sheet.columns) for sheet in found.sheets] == list(EXPECTED[name])
    for sheet in found.sheets:
        for cell in sheet.cells.values():
            assert cell.value is not None or any(reason in cell.reason for reason in REASONS), cell.reason
    assert found.made["profile"]["name"] == "smoke"
    assert found.made["command"] == "skillgraft reproduce"
    assert found.made["versions"]
    assert str(studio) not in (tmp_path / f"{name}.json").read_text(encoding="utf-8")
    assert found.notes[-1].startswith("Profile smoke")


def test_every_recipe_of_these_files_is_expected_here() -> None:
    from skillgraft.papers.recipes import generalization, localization, regions

    names = {name for file in (localization, generalization, regions) for name in file.RECIPES}
    assert {name for name in names if not name.startswith("talos-")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_papers_own_tasks_and_shots_draft_without_running(name: str, studio: Path) -> None:
    """At every scale, with the recipe's own tasks; keys of all steps exist, whether the data are here or not."""
    for scale in ("cpu", "paper"):
        drafts = RECIPES[name].draft(profile(scale, base=str(studio / "bert")))
        steps = in_order(step for draft in drafts for step in draft.steps())
        assert steps
        assert all(draft.title for draft in drafts)


def test_the_papers_numbers_stand_in_the_papers_cells(studio: Path) -> None:
    """Every number of the paper's tables has its cell in the recipe's own draft."""
    # Table 2: 13 tasks and two averages × 4 columns; without trec, with agreement but for the pairs' average.
    tables = {"table1": 32, "table2": 15 * 4 + 14 * 5 - 1, "table5": 32, "table6": 160, "table7": 128, "table8": 84}
    counts = dict.fromkeys(tables, 0)
    for name in tables:
        for draft in RECIPES[name].draft(profile("paper", base=str(studio / "bert"))):
            cells = [cell for cell in draft.cells.values() if isinstance(cell, Wanted)]
            counts[name] += sum(cell.paper is not None for cell in cells)
    assert counts == tables


@pytest.mark.usefixtures("_no_pictures")
def test_rows_that_are_not_there_are_told_in_cells(
    studio: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKILLGRAFT_DATA", raising=False)
    task_content.cache_clear()
    tasks = (str(studio / "films.toml"), "mpqa")
    found = reproduce("table3", asked(studio, "table3", tasks=tasks, shots=(500,)), store=tmp_path / "s", out=tmp_path)
    task_content.cache_clear()
    sheet: Sheet = found.sheets[0]
    assert sheet.cells["films → songs", "base"].value is not None
    films = sheet.cells["films → songs", "graft"]
    assert films.value is not None
    assert "in natural proportion: a class has fewer rows than that (films)" in films.note
    assert "SKILLGRAFT_DATA is not set" in sheet.cells["mpqa → songs", "graft"].reason


def test_some_rows_of_tables_6_and_7(studio: Path) -> None:
    some = ("LoRA 2", "graft 0.01 %")
    for name in ("table6", "table7"):
        (draft,) = RECIPES[name].draft(asked(studio, name, methods=some))
        assert tuple(dict.fromkeys(row for row, _ in draft.cells)) == some
    with pytest.raises(InputError, match="did you mean 'LoRA 2'"):
        RECIPES["table6"].draft(asked(studio, "table6", methods=("Lora 2",)))


def test_a_profile_with_mask_steps_of_its_own_searches_with_them_too(studio: Path) -> None:
    films = (str(studio / "films.toml"),)
    plain, own = (asked(studio, "fig5", tasks=films, region_lr=lr) for lr in ({}, {"adamw": 1e8}))
    (before,), (after,) = RECIPES["fig5"].draft(plain), RECIPES["fig5"].draft(own)
    more = {column for _, column in after.cells.keys() - before.cells.keys()}
    assert more == {"AdamW, larger mask steps", "AdamW + L1, larger mask steps"}
    new = set(in_order(after.steps())) - set(in_order(before.steps()))
    searches = [step.arguments for step in new if step.name == "localize"]
    assert len(searches) == 2 * len(DENSITIES)
    assert {(each["lr"], each["start"]) for each in searches} == {(1e8, 1e-5)}


def test_figure_2_may_have_some_of_its_lines(studio: Path) -> None:
    """One nested search stands for the searches of all densities; an unknown line is refused by name."""
    draft, _ = RECIPES["fig2"].draft(asked(studio, "fig2", methods=("movement", "learned, nested from 1e-05")))
    assert {column for _, column in draft.cells} == {"movement", "learned, nested from 1e-05", "tuned", "base"}
    searches = [step.arguments for step in in_order(draft.steps()) if step.name == "localize"]
    assert [each["densities"] for each in searches if each["method"] == "learned"] == [(1e-5, 1e-4, 1e-3, 1e-2)]
    with pytest.raises(InputError, match="unknown method 'moved'; did you mean 'movement'"):
        RECIPES["fig2"].draft(asked(studio, "fig2", methods=("moved",)))


def test_without_a_pull_the_recipe_takes_the_models_of_the_others(studio: Path) -> None:
    """Strength 0 has the tuned model and the grafts of table 2; every strength's grafts are counted against that model."""
    films = (str(studio / "films.toml"),)
    table2 = RECIPES["table2"].draft(asked(studio, "table2", tasks=films, shots=(4,)))
    tuned = {step.key for step in tuning(table2)}
    (draft,) = RECIPES["pull"].draft(asked(studio, "pull", tasks=films))
    strengths = {step.arguments["plan"].l1: step.key for step in tuning([draft])}
    assert set(strengths) == {0.0, 3e-4, 1e-3}
    assert {strengths[0.0]} == tuned
    made = {step.key for each in table2 for step in in_order(each.steps())}
    for (row, column), cell in draft.cells.items():
        if column != "share kept, without a pull":
            continue
        assert isinstance(cell, Wanted)
        strength, search = row.split(", ")
        of_graft, of_tuned = cell.samples[0]
        assert isinstance(of_graft, Step)
        assert isinstance(of_tuned, Step)
        graft = of_graft.arguments["graft"]
        assert of_tuned.arguments["tuned"].key == strengths[0.0]
        assert graft.arguments["tuned"].key == strengths[float(strength)]
        assert (graft.key in made) == (strength == "0" and search != "movement")


def test_pairs_of_sentences_have_ten_times_as_many_entries(studio: Path) -> None:
    """Some rows may be asked for by name; the density of a graft goes by how many texts a row of the task has."""
    rows = ("0, budgeted", "0.001, learned", "0.001, movement")
    single, pair = RECIPES["pull"].draft(asked(studio, "pull", tasks=("sst2", "qnli"), methods=rows))
    for draft, density in ((single, 1e-4), (pair, 1e-3)):
        assert tuple(dict.fromkeys(row for row, _ in draft.cells)) == rows
        assert draft.title.endswith(f"density {density:g}")
        grafts = [step.arguments for step in in_order(draft.steps()) if step.name == "localize"]
        assert {(each["method"], each["density"]) for each in grafts} == {
            ("budgeted", density), ("learned", density), ("movement", density)
        }  # fmt: skip
    with pytest.raises(InputError, match=r"did you mean '0\.001, learned'"):
        RECIPES["pull"].draft(asked(studio, "pull", methods=("0.01, learned",)))


def test_the_headline_says_what_each_search_cost(studio: Path) -> None:
    """Movement and random entries take no search; the others' steps are those of their own recipe."""
    names = ("random", "movement", "budgeted", "learned (P1)")
    draft, _ = RECIPES["headline"].draft(asked(studio, "headline", methods=names))
    words = [remark.formula({"steps": 40, "batch_size": 24}) for remark in draft.remarks]
    ended = "40 steps of at most 24 rows, forward and backward."
    assert words == [f"budgeted: {ended}", f"learned (P1): {ended}"]
    assert [part.step.arguments["method"] for remark in draft.remarks for part in remark.steps] == [
        "budgeted",
        "learned",
    ]


def tuning(drafts: Sequence[Draft]) -> list[Step]:
    return [step for step in in_order(each for draft in drafts for each in draft.steps()) if step.name == "finetune"]


@pytest.mark.parametrize("name", ["table3", "table7", "fig7"])
def test_rows_from_elsewhere_are_asked_the_question_of_the_task_that_was_learned(name: str, studio: Path) -> None:
    drafts = RECIPES[name].draft(asked(studio, name))
    for draft in drafts:
        for (row, column), cell in draft.cells.items():
            here = f"{row} {draft.title} {column}"
            if "→ songs" not in here or not isinstance(cell, Wanted):
                continue
            source = next(task for task in TASKS if task in here)
            questions = {step.arguments["task"] for sample in cell.samples for step in sample if isinstance(step, Step)}
            elsewhere = f"{studio / 'songs.toml'} as {studio / f'{source}.toml'}"
            own = {str(studio / f"{source}.toml")} if draft.title.startswith("best") else set()
            assert questions == {elsewhere} | own


def test_the_papers_pairs_ask_the_sources_question(studio: Path) -> None:
    (draft,) = RECIPES["table3"].draft(profile("cpu", base=str(studio / "bert")))
    questions = {step.arguments["task"] for step in in_order(draft.steps()) if step.name == "ask"}
    assert questions == {
        *("yelp_reviews as sst2", "imdb as sst2", "amazon_polarity as sst2", "mnli_01 as qnli", "snli_01 as qnli"),
        *("yelp_reviews as mpqa", "sst2 as mpqa"),
    }


@pytest.mark.parametrize("name", ["table3", "table7", "fig7"])
def test_rows_that_do_not_fit_the_question_are_a_reason_before_anything_runs(name: str, studio: Path) -> None:
    drafts = RECIPES[name].draft(asked(studio, name, tasks=("sst2",), ood=("trec",)))
    reasons = {cell for draft in drafts for cell in draft.cells.values() if isinstance(cell, str)}
    assert any("'trec' cannot be asked as 'sst2': expected labels that correspond to negative, " in r for r in reasons)
    steps = in_order(step for draft in drafts for step in draft.steps())
    assert {step.arguments["task"] for step in steps if step.name == "ask"} <= {"sst2"}


def test_a_task_without_others_says_so(studio: Path) -> None:
    (draft,) = RECIPES["table3"].draft(asked(studio, "table3", tasks=(str(studio / "films.toml"),), ood=()))
    assert "name one with --ood" in str(draft.cells["films", "graft"])
