"""Coverage and gain tables by hand and against brute force; which tasks are alike."""

from __future__ import annotations

import doctest
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.measure import Predictions, matrices
from skillgraft.measure.intervals import Estimate
from skillgraft.measure.matrices import Matrix, alike, coverage_matrix, gain_matrix, score_matrix
from skillgraft.values.region import Region, Scope

SCOPE = Scope.of("all", {"w": (8,), "v": (4,)})


def region(*w: int, v: Sequence[int] = ()) -> Region:
    return Region(SCOPE, {"w": sorted(w), "v": sorted(v)})


def answers(right: int, *, rows: int = 20, task: str = "t") -> Predictions:
    """A model that is right about the first rows and wrong about the rest."""
    labels = np.arange(rows) % 2
    guesses = np.where(np.arange(rows) < right, labels, 1 - labels)
    return Predictions(np.eye(2, dtype=np.float32)[guesses], labels, task=task)


def test_the_docstring_tells_the_truth() -> None:
    found = doctest.testmod(matrices)
    assert (found.failed, found.attempted) == (0, 4)


def test_coverage_is_of_the_column_and_not_symmetric() -> None:
    table = coverage_matrix({"a": region(0, 1, v=[0]), "b": region(1, v=[0, 1, 2]), "empty": region()})
    assert table["a", "b"].value == 2 / 4
    assert table["b", "a"].value == 2 / 3
    assert table["a", "a"].value == 1.0
    assert table["empty", "a"].value == 0.0
    assert table["a", "empty"] == Estimate(None, reason="the region of empty is empty")


@given(st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=4))
def test_coverage_equals_sets(sets: list[set[int]]) -> None:
    table = coverage_matrix({str(place): region(*some) for place, some in enumerate(sets)})
    assert table.values() == [[len(a & b) / len(b) for b in sets] for a in sets]


def test_relative_gains_by_hand_and_cells_without_a_skill() -> None:
    models = {"base": answers(10), "tuned": answers(18), "one": answers(14), "worse": answers(8)}
    flat = {"base": answers(15), "tuned": answers(15), "one": answers(16), "worse": answers(1)}
    table = gain_matrix({"sst2": models, "rte": flat}, ["one", "worse"])
    assert table.rows == ("one", "worse")
    assert table.columns == ("sst2", "rte")
    assert table["one", "sst2"].value == pytest.approx((14 - 10) / (18 - 10))
    assert table["worse", "sst2"].value == pytest.approx(-2 / 8)
    cell = table["one", "rte"]
    assert cell.value is None
    assert cell.reason == "no skill to localise: tuned − base is 0.0 points, below 3"
    assert table.as_json()["cells"][0][1]["reason"] == cell.reason


def test_scores_of_models_that_were_not_run_are_open() -> None:
    table = score_matrix(
        {"a": {"base": answers(10), "after b": answers(15)}, "b": {"base": answers(5)}}, ["base", "after b"]
    )
    assert table.values() == [[0.5, 0.25], [0.75, None]]
    assert table["after b", "b"].reason == "after b was not measured on b"


def test_wrong_names_are_refused() -> None:
    models = {"base": answers(10), "tuned": answers(18)}
    with pytest.raises(InputError, match=r"sst2: nothing is known of a model 'tunde'.*did you mean 'tuned'"):
        gain_matrix({"sst2": models}, ["tunde"])
    with pytest.raises(InputError, match="this table has no 'c'"):
        _ = coverage_matrix({"a": region(1)})["c", "a"]


def square(table: Mapping[str, Sequence[float]]) -> Matrix:
    names = list(table)
    return Matrix.of(names, names, lambda a, b: Estimate(table[a][names.index(b)]))


def test_like_tasks_are_put_together() -> None:
    table = square({"sst2": [1, 0.1, 0.6, 0], "snli": [0, 1, 0, 0.5], "cr": [0.4, 0, 1, 0.1], "mnli": [0.1, 0.7, 0, 1]})
    found = alike(table)
    assert {frozenset(group) for group in found.groups} == {frozenset({"sst2", "cr"}), frozenset({"snli", "mnli"})}
    assert [name for group in found.groups for name in group] == list(found.order)
    assert len(alike(table, groups=3).groups) == 3
    assert alike(table, groups=1).groups == (found.order,)


def test_few_tasks_and_tasks_without_a_region() -> None:
    assert alike(square({"a": [1.0]})).groups == (("a",),)
    table = coverage_matrix({"a": region(1, 2), "b": region(2, 3), "none": region()})
    assert len(alike(table, groups=2).groups) == 2
    assert ("none",) in alike(table, groups=2).groups


@pytest.mark.parametrize("count", [0, 3])
def test_a_number_of_groups_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(InputError, match=f"2 tasks make 1 to 2 groups, found {count}"):
        alike(square({"a": [1, 0], "b": [0, 1]}), groups=count)


def test_only_a_square_table_tells_who_is_alike() -> None:
    with pytest.raises(InputError, match="square table"):
        alike(Matrix.of(["a"], ["b"], lambda _a, _b: Estimate(1.0)))
