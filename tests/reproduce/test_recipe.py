"""From drafts to sheets: means over samples, reasons, remarks, the paper's numbers beside ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillgraft.errors import InputError
from skillgraft.measure.intervals import Estimate
from skillgraft.report.sheet import Cell
from skillgraft.reproduce import Draft, Step, Store, Wanted
from skillgraft.reproduce.drafts import curve, table
from skillgraft.reproduce.profile import Profile
from skillgraft.reproduce.recipe import filled
from skillgraft.reproduce.recipes import recipe
from skillgraft.reproduce.samples import Sample

from .toys import TOYS, added


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillgraft.reproduce.jobs.JOBS", TOYS)


def cell(wanted: Wanted, failures: dict[str, str] | None = None) -> Cell:
    sheet = filled(Draft("t", {("r", "c"): wanted}), Store(Path("nowhere")), failures or {})
    return sheet.cells["r", "c"]


def estimates(*found: Estimate) -> Wanted:
    """A cell whose samples have these numbers."""
    left = iter(found)
    return Wanted(lambda _folder: next(left), tuple((added(n),) for n in range(len(found))))


def test_a_cell_is_the_mean_over_its_samples_and_tells_how_far_they_lie_apart() -> None:
    found = cell(estimates(Estimate(0.8, 0.7, 0.9), Estimate(0.6, 0.5, 0.7)))
    assert (found.value, found.low, found.high) == pytest.approx((0.7, 0.6, 0.8))
    assert found.note == "mean of 2 from 0.6 to 0.8"
    assert cell(estimates(Estimate(0.8))).note == ""


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
    def undefined(_folder: Path) -> float:
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
    assert draft.cells["b", "y"] == "nobody knows"


def test_a_curve_has_a_row_for_each_point() -> None:
    draft = curve("t", SAMPLES["a"], lambda point: {"x": (float, lambda _sample: added(point))}, (1e-5, 0.5))
    assert list(draft.cells) == [("1e-05", "x"), ("0.5", "x")]
    assert draft.look == "lines"


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(InputError, match="unknown recipe 'tabel2'; did you mean 'table2'"):
        recipe("tabel2")
