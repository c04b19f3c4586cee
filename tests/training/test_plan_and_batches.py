"""Settings that are refused, schedules by hand, and rows as a pure function of seed and step."""

from __future__ import annotations

import math
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft.errors import InputError
from skillgraft.tasks.data import BatchOrder
from skillgraft.training.grid import _points
from skillgraft.training.plan import RECIPES, Method, TrainingPlan, p1_steps, recipe


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"lr": -1.0}, "lr must be a number of at least 0"),
        ({"lr": math.nan}, "lr must be a number"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"optimizer": "adam"}, "did you mean 'adamw'"),
        ({"method": "bitfit"}, "unknown method 'bitfit'"),
        ({"keep": "best"}, "needs validate_every"),
        ({"optimizer": "adamw", "momentum": 0.9}, "momentum is SGD's, found 0.9 with adamw: leave out momentum"),
        ({"lora_rank": 2}, "lora_rank is for method lora, found full: leave out lora_rank"),
        ({"method": "lora", "bottleneck": 4}, "bottleneck is for method houlsby or pfeiffer, found lora"),
        ({"batch_size": 8, "accumulation": 3}, "cannot be split into 3 equal parts"),
    ],
)
def test_wrong_settings_are_refused(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainingPlan(**settings_)


def test_unknown_settings_and_recipes_say_what_is_known() -> None:
    with pytest.raises(InputError, match="did you mean 'lr'"):
        TrainingPlan().with_changes(lrr=1.0)
    with pytest.raises(InputError, match="did you mean 'p1'"):
        recipe("p11")


def test_dropout_is_on_by_default_and_off_where_a_model_is_linearised() -> None:
    assert [TrainingPlan(method=method).uses_dropout for method in get_args(Method)] == [
        method != "linear" for method in get_args(Method)
    ]
    assert not TrainingPlan(dropout=False).uses_dropout
    assert not TrainingPlan().with_changes(method="linear", dropout=False).uses_dropout
    for plan, changes in (
        (TrainingPlan(), {"method": "linear", "dropout": True}),
        (TrainingPlan(method="linear"), {"dropout": True}),
    ):
        with pytest.raises(InputError, match="a linearised model trains without dropout, found dropout True"):
            plan.with_changes(**changes)


def test_schedules_by_hand() -> None:
    plan = TrainingPlan(lr=1.0, steps=6, warmup_steps=2, schedule="linear")
    assert [plan.lr_at(step) for step in range(6)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    cosine = TrainingPlan(lr=2.0, steps=4, schedule="cosine")
    assert cosine.lr_at(0) == 2.0
    assert cosine.lr_at(2) == pytest.approx(1.0)
    assert TrainingPlan(lr=0.3).lr_at(999) == 0.3


def test_p1s_grid_is_the_papers() -> None:
    points = {(point["batch_size"], point["lr"]) for point in RECIPES["p1"].grid}
    assert points == {(size, lr) for size in (2, 4, 8) for lr in (1e-2, 5e-3, 1e-3)}
    assert (p1_steps(2, 64), p1_steps(2, 4096)) == (2048, 16 * 2 * 512)


@pytest.mark.parametrize("name", ["p1", "p1-adamw"])
def test_p1s_runs_clip_gradients_and_keep_the_best_checkpoint(name: str) -> None:
    plan = RECIPES[name].plan
    assert (plan.clip_norm, plan.keep, plan.validate_every) == (1.0, "best", 100)


def test_p2_trains_t5_for_75_000_steps_of_16_rows() -> None:
    (point,) = RECIPES["p2-language"].grid
    plan = RECIPES["p2-language"].plan.with_changes(**point)
    assert (plan.steps, plan.batch_size, plan.accumulation) == (75_000, 16, 1)
    assert (plan.optimizer, plan.lr, plan.weight_decay, plan.schedule) == ("adamw", 1e-4, 0.0, "constant")


def test_a_setting_that_is_given_leaves_the_grid() -> None:
    assert _points(RECIPES["p1"], {"lr": 0.5}) == [{"batch_size": 2}, {"batch_size": 4}, {"batch_size": 8}]
    assert _points(RECIPES["p1"], {"lr": 0.5, "batch_size": 4}) == [{}]


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 30), batch=st.integers(1, 12), seed=st.integers(0, 9))
def test_every_epoch_has_every_row_once(size: int, batch: int, seed: int) -> None:
    order = BatchOrder([size], batch_size=batch, steps=3 * size, seed=seed)
    stream = np.concatenate([order.step(step)[1] for step in range(3 * size)])
    for epoch in range(len(stream) // size):
        assert sorted(stream[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_any_step_can_be_asked_for_alone() -> None:
    order = BatchOrder([10, 20], batch_size=4, steps=50, seed=3)
    again = BatchOrder([10, 20], batch_size=4, steps=50, seed=3)
    for step in (40, 7, 7, 0):
        assert order.step(step)[0] == again.step(step)[0]
        assert order.step(step)[1].tolist() == again.step(step)[1].tolist()


def test_a_mixture_reads_every_tasks_rows_in_order_and_in_its_share() -> None:
    order = BatchOrder([10, 30], batch_size=5, steps=2000, seed=0)
    rows: dict[int, list[int]] = {0: [], 1: []}
    for step in range(2000):
        task, chosen = order.step(step)
        rows[task].extend(chosen.tolist())
    assert sorted(rows[0][:10]) == list(range(10))
    assert sorted(rows[1][:30]) == list(range(30))
    share = len(rows[0]) / (len(rows[0]) + len(rows[1]))
    assert 0.45 < share < 0.55
    proportional = BatchOrder([10, 30], batch_size=5, steps=2000, seed=0, proportional=True)
    assert 0.2 < np.mean(proportional.tasks == 0) < 0.3
