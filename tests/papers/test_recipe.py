"""From drafts to sheets: means over samples, reasons, remarks, the paper's numbers beside ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from skillgraft.errors import InputError
from skillgraft.measure import Predictions, interval, over_seeds
from skillgraft.measure.intervals import Estimate
from skillgraft.papers import Draft, Part, Step, Store, Wanted
from skillgraft.papers.profile import Profile
from skillgraft.papers.recipe import curve, filled, mean_of, table
from skillgraft.papers.recipes import recipe
from skillgraft.papers.samples import Sample
from skillgraft.report.sheet import Cell

from ..measure.making import random_predictions
from .toys import added


class Anything(Store):
    """A store that has read whatever is asked for."""

    def read(self, value: Step | Part) -> str:
        return f"the result of {value.name}"


def cell(wanted: Wanted) -> Cell:
    sheet = filled(Draft("t", {("r", "c"): wanted}), Anything(Path("nowhere"), 1), {})
    return sheet.cells["r", "c"]


def estimates(*found: Estimate) -> Wanted:
    """A cell whose samples have these numbers."""
    left = iter(found)
    return Wanted(lambda _result: next(left), tuple((added(n),) for n in range(len(found))))


def test_a_cell_is_the_mean_over_its_samples_and_tells_how_far_they_lie_apart() -> None:
    found = cell(estimates(Estimate(0.8, 0.7, 0.9), Estimate(0.6, 0.5, 0.7)))
    assert (found.value, found.low, found.high) == pytest.approx((0.7, 0.6, 0.8))
    assert found.seeds == (0.8, 0.6)
    assert found.note == "seeds 0.8, 0.6; std 0.14; interval over rows"
    alone = cell(estimates(Estimate(0.8)))
    assert (alone.note, alone.seeds) == ("", ())


def measured(*seeds: int) -> list[Estimate]:
    """Scores of models of these seeds on one task's rows."""
    truth = random_predictions(80, 2)
    scores = [random_predictions(80, 2, seed=seed).scores for seed in seeds]
    return [interval(Predictions(each, truth.labels, task="toy")) for each in scores]


def test_from_five_seeds_on_the_interval_is_over_seeds_too() -> None:
    four, five = measured(1, 2, 3, 4), measured(1, 2, 3, 4, 5)
    few, many = cell(estimates(*four)), cell(estimates(*five))
    assert few.interval == (over_seeds(four).low, over_seeds(four).high)
    assert few.note.endswith("; interval over rows")
    assert many.interval == (over_seeds(five).low, over_seeds(five).high)
    assert many.note.endswith("; interval over seeds and rows")
    assert many.seeds == tuple(each.value for each in five)


def test_a_seeds_own_number_in_an_average_is_its_average() -> None:
    numbers = Estimate(0.5), Estimate(0.7), Estimate(0.1), Estimate(None, reason="no skill to localise")
    every = estimates(*numbers)
    found = cell(replace(every, partial=True, seeds=(0, 1, 0, 1)))
    assert found.value == pytest.approx(1.3 / 3)
    assert found.seeds == pytest.approx((0.3, 0.7))
    assert found.note == "mean of 3 from 0.1 to 0.7; seeds 0.3, 0.7; std 0.28; 1 of 4 have no number"


def test_what_depends_on_no_seed_is_measured_once() -> None:
    """As what the base answers: five seeds know no more of it than one, and it has no spread."""
    (number,) = measured(1)
    asked = []
    base = Wanted(lambda _result: asked.append(1) or number, ((added(1),),) * 5, seeds=(0, 1, 2, 3, 4))
    found = cell(base)
    assert (found.value, found.interval, found.seeds) == (number.value, (number.low, number.high), ())
    assert (found.note, len(asked)) == ("", 1)
    two_tasks = Wanted(float, ((added(1),), (added(1),), (added(2),), (added(2),)), seeds=(0, 1, 0, 1)).once()
    assert (two_tasks.samples, two_tasks.seeds) == (((added(1),), (added(2),)), (0, 0))
    differ = Wanted(float, ((added(1),), (added(1),), (added(2),), (added(3),)), seeds=(0, 1, 0, 1))
    assert differ.once() is differ


def test_the_mean_of_cells_keeps_their_seeds() -> None:
    cells = [Wanted(float, ((added(n),), (added(n + 1),)), seeds=seeds) for n, seeds in ((1, (3, 4)), (5, ()))]
    found = mean_of(cells)
    assert (found.samples, found.partial) == ((*cells[0].samples, *cells[1].samples), True)
    assert found.seeds == (3, 4, 0, 1)


def test_ends_are_left_out_where_a_sample_has_none() -> None:
    assert cell(estimates(Estimate(0.8, 0.7, 0.9), Estimate(0.6))).interval is None


def test_one_undefined_sample_makes_the_mean_undefined_unless_it_is_partial() -> None:
    numbers = Estimate(0.8), Estimate(None, reason="no skill to localise")
    assert cell(estimates(*numbers)).reason == "no skill to localise"
    whole = estimates(*numbers)
    partly = cell(Wanted(whole.formula, whole.samples, partial=True))
    assert partly.value == 0.8
    assert partly.note == "1 of 2 have no number"


def test_a_remark_about_a_number_becomes_its_note() -> None:
    assert cell(estimates(Estimate(3.5, reason="vacuous"))).note == "vacuous"


def test_an_error_of_the_formula_is_the_reason_and_the_papers_number_stays() -> None:
    def undefined(_result: str) -> float:
        raise InputError("these rows have one class")

    found = cell(Wanted.of(undefined, added(1), paper=0.9))
    assert (found.value, found.reason, found.paper) == (None, "these rows have one class", 0.9)


def test_the_papers_numbers_stand_beside_ours_with_what_they_are_about() -> None:
    draft = Draft("t", {("sst2", "tuned"): Wanted.of(float, added(1)), ("sst2", "base"): "none"}).beside("table2-64")
    wanted = draft.cells["sst2", "tuned"]
    assert isinstance(wanted, Wanted)
    assert wanted.paper == pytest.approx(0.905)
    assert draft.notes == ("paper: RoBERTa-base, 64 examples per class",)
    assert Draft("t", {("other", "tuned"): Wanted.of(float, added(1))}).beside("table2-64").notes == ()


SAMPLES = {name: [Sample(Profile("base"), name, 4, seed) for seed in (0, 1)] for name in ("a", "b")}


def asked(sample: Sample) -> Step:
    return added(len(sample.task), seed=sample.seed)


def test_a_table_asks_every_column_of_every_rows_samples() -> None:
    draft = table(
        "t", SAMPLES, {"x": (float, asked), "y": "nobody knows"}, averages={"all": ("a", "b"), "none": ("c",)}
    )
    assert list(draft.cells) == [(row, column) for row in ("a", "b", "all") for column in ("x", "y")]
    one, every = draft.cells["a", "x"], draft.cells["all", "x"]
    assert isinstance(one, Wanted)
    assert isinstance(every, Wanted)
    assert (len(one.samples), one.partial) == (2, False)
    assert (len(every.samples), every.partial) == (4, True)
    assert (one.seeds, every.seeds) == ((0, 1), (0, 1, 0, 1))
    assert draft.cells["b", "y"] == "nobody knows"


def test_a_curve_has_a_row_for_each_point() -> None:
    draft = curve("t", SAMPLES["a"], lambda point: {"x": (float, lambda _sample: added(point))}, (1e-5, 0.5))
    assert list(draft.cells) == [("1e-05", "x"), ("0.5", "x")]
    assert draft.look == "lines"


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(InputError, match="unknown recipe 'tabel2'; did you mean 'table2'"):
        recipe("tabel2")
