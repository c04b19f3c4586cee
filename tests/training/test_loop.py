"""The loop: it learns, parts of a batch make no difference, and a killed run ends with the same bits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from skillgraft.errors import RunError
from skillgraft.live.grafted import tensors_of
from skillgraft.opening.device import autocast
from skillgraft.predictions.predict import predict
from skillgraft.training.linearised import frozen_copy, linear_scores
from skillgraft.training.loop import Course, TrainingProgress
from skillgraft.training.methods import add_lora, merge_lora
from skillgraft.training.plan import TrainingPlan
from skillgraft.training.snapshot import Snapshot
from skillgraft.training.trainables import choose_trainables
from tests.training.test_trainables import a_region
from tests.training.toys import ToyReadout, tiny_bert, toy_rows, train_toy


def run(model: nn.Module, plan: TrainingPlan, **rest: Any) -> TrainingProgress:
    return train_toy(model, plan, **rest)[0]


def bits(model: nn.Module) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in tensors_of(model).arrays.items()}


ADAMW = TrainingPlan(optimizer="adamw", lr=3e-3, weight_decay=0.01, batch_size=8, steps=60, dropout=False)


@pytest.mark.parametrize(("method", "lr"), [("full", 3e-3), ("lora", 3e-2), ("linear", 3e-3)])
def test_every_method_learns(method: Any, lr: float) -> None:
    progress = run(tiny_bert(), ADAMW.with_changes(method=method, steps=120, lr=lr))
    losses = [entry["loss"] for entry in progress.log]
    assert np.mean(losses[-10:]) < 0.75 * np.mean(losses[:10])


def test_mixed_precision_learns_in_float32_weights_from_bfloat16_products() -> None:
    plain, mixed = tiny_bert(), tiny_bert()
    plan = ADAMW.with_changes(steps=4)
    exact = run(plain, plan).log
    precision = partial(autocast, torch.device("cpu"), "bf16")
    rounded = run(mixed, plan.with_changes(mixed_precision="bf16"), settings={"autocast": precision}).log
    assert {parameter.dtype for parameter in mixed.parameters()} == {torch.float32}
    losses = [(one["loss"], other["loss"]) for one, other in zip(exact, rounded, strict=True)]
    assert all(0 < abs(one - other) < 0.05 for one, other in losses)


def test_a_linearised_model_trains_without_dropout() -> None:
    """Whatever the model's configuration says and the plan does not: bit for bit as with dropout of probability 0."""
    trained = {}
    for probability in (0.0, 0.5):
        model = tiny_bert(dropout=probability)
        run(model, TrainingPlan(method="linear", optimizer="adamw", lr=3e-3, batch_size=8, steps=4))
        trained[probability] = bits(model)
    assert trained[0.5] == trained[0.0]
    assert trained[0.0] != bits(tiny_bert())
    model = tiny_bert(dropout=0.5)
    run(model, TrainingPlan(optimizer="adamw", lr=3e-3, batch_size=8, steps=4))
    plain = tiny_bert()
    run(plain, TrainingPlan(optimizer="adamw", lr=3e-3, batch_size=8, steps=4))
    assert bits(model) != bits(plain), "other methods train with it"


def test_bias_only_changes_biases_only() -> None:
    model, start = tiny_bert(), tensors_of(tiny_bert()).arrays
    run(model, ADAMW.with_changes(method="bias", steps=5))
    changed = {name for name, array in tensors_of(model).arrays.items() if (array != start[name]).any()}
    assert changed == {name for name in start if name.endswith("bias") and "embeddings" not in name}


def test_parts_of_a_batch_make_no_difference() -> None:
    whole, parts = tiny_bert(), tiny_bert()
    plan = TrainingPlan(
        lr=0.1, batch_size=8, steps=10, dropout=False
    )  # AdamW would blow up the noise of key biases, whose gradient is 0
    run(whole, plan)
    run(parts, plan.with_changes(accumulation=4))
    for name, array in tensors_of(whole).arrays.items():
        np.testing.assert_allclose(array, tensors_of(parts).arrays[name], atol=1e-5, err_msg=name)


def test_rows_of_like_length_share_a_part() -> None:
    lengths: list[int] = []

    class Watched(ToyReadout):
        def collate(self, rows: Any) -> Any:
            lengths.extend(row.length for row in rows)
            return super().collate(rows)

    plan = TrainingPlan(batch_size=8, steps=3, accumulation=4)
    run(tiny_bert(), plan, course=Course(Watched(), toy_rows(40), []))
    for step in (lengths[low : low + 8] for low in (0, 8, 16)):
        assert step == sorted(step)
        assert len(set(step)) > 2


class Killed(Exception):
    pass


@pytest.mark.parametrize("method", ["full", "region", "lora"])
def test_a_killed_run_resumes_and_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    plan = ADAMW.with_changes(
        steps=20, dropout=True, validate_every=6, keep="best", clip_norm=1.0, schedule="cosine",
        method="lora" if method == "lora" else "full",
    )  # fmt: skip
    region = a_region(tiny_bert()) if method == "region" else None
    straight = tiny_bert(dropout=0.1)
    run(straight, plan, inside=region)

    def kill(step: int, _steps: int, _entry: Any) -> None:
        if step == 13:
            raise Killed

    snapshot = Snapshot.beside(tmp_path / "out", {"run": 1})
    with pytest.raises(Killed):
        run(tiny_bert(dropout=0.1), plan, inside=region, snapshot=snapshot, snapshot_seconds=0.0, on_step=kill)
    seen: list[int] = []
    resumed = tiny_bert(dropout=0.1)
    run(
        resumed,
        plan,
        inside=region,
        snapshot=snapshot,
        snapshot_seconds=0.0,
        on_step=lambda step, *_: seen.append(step),
    )
    assert seen[0] == 13, "step 13 was not saved yet when the run was killed, so it is run again"
    assert bits(resumed) == bits(straight)


def test_a_snapshot_of_other_settings_or_a_broken_one_is_not_used(tmp_path: Path) -> None:
    plan = ADAMW.with_changes(steps=4)
    first = Snapshot.beside(tmp_path / "out", {"lr": 1})
    run(tiny_bert(), plan, snapshot=first, snapshot_seconds=0.0)
    seen: list[int] = []
    other = Snapshot.beside(tmp_path / "out", {"lr": 2})
    run(tiny_bert(), plan, snapshot=other, snapshot_seconds=1e9, on_step=lambda step, *_: seen.append(step))
    assert seen == [1, 2, 3, 4]
    first.path.write_bytes(first.path.read_bytes()[:100])
    seen.clear()
    run(tiny_bert(), plan, snapshot=first, snapshot_seconds=1e9, on_step=lambda step, *_: seen.append(step))
    assert seen == [1, 2, 3, 4]


def test_the_best_model_is_kept() -> None:
    progress, training = train_toy(tiny_bert(), ADAMW.with_changes(steps=40, validate_every=5, keep="best"))
    looked = [entry["validation"] for entry in progress.log if "validation" in entry]
    assert training.mean_score("validation") == max(looked)


def test_it_stops_at_a_training_accuracy() -> None:
    progress = run(tiny_bert(), ADAMW.with_changes(steps=2000, stop_at=0.9, lr=5e-3))
    assert progress.finished
    assert progress.step < 2000
    assert progress.log[-1]["train_accuracy"] >= 0.9


def test_a_loss_that_blows_up_is_an_error_that_names_step_and_rate() -> None:
    with pytest.raises(RunError, match=r"the loss became .* at step \d+; use a smaller learning rate than 1e\+30"):
        run(tiny_bert(), TrainingPlan(lr=1e30, steps=50, batch_size=8, dropout=False))


def test_merged_lora_gives_the_same_scores() -> None:
    model = tiny_bert()
    add_lora(model, rank=2)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    before = predict(model, ToyReadout(), toy_rows(10)).scores
    merge_lora(model)
    assert not any("lora" in name for name, _ in model.named_parameters())
    np.testing.assert_allclose(predict(model, ToyReadout(), toy_rows(10)).scores, before, atol=1e-5)


def test_linear_scores_are_the_first_order_expansion() -> None:
    """Against central differences: f(θ0) + (f(θ0 + hδ) − f(θ0 − hδ)) / 2h."""
    model = tiny_bert().double()
    choose_trainables(model)
    start = frozen_copy(model)
    readout, batch = ToyReadout(), ToyReadout().collate(toy_rows(6))
    torch.manual_seed(1)
    step = {name: 0.1 * torch.randn_like(tensor) for name, tensor in start.items()}
    parameters = dict(model.named_parameters())

    def at(scale: float) -> torch.Tensor:
        with torch.no_grad():
            for name, tensor in start.items():
                parameters[name].copy_(tensor + scale * step[name])
            return readout.scores(model, batch)

    expected = at(0.0) + (at(1e-4) - at(-1e-4)) / 2e-4
    at(1.0)
    torch.testing.assert_close(linear_scores(model, readout, batch, base=start), expected, rtol=1e-5, atol=1e-6)


def test_predictions_do_not_depend_on_the_batch_size() -> None:
    rows = toy_rows(13)
    one, many = (predict(tiny_bert(), ToyReadout(), rows, batch_size=size) for size in (1, 13))
    np.testing.assert_allclose(one.scores, many.scores, atol=1e-5)
    assert one.labels.tolist() == [row.label for row in rows]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_under_a_proximal_pull_most_entries_stay_exactly_the_bases(optimizer: Any) -> None:
    """Without it every entry of the layers moves; with it those whose gradients do not agree keep base's bits."""
    changed = {}
    for pull in (0.0, 0.5 if optimizer == "adamw" else 0.02):
        model = tiny_bert()
        before = tensors_of(model).arrays["encoder.layer.0.output.dense.weight"].copy()
        train_toy(model, TrainingPlan(optimizer=optimizer, lr=1e-3, steps=20, pull=pull, weight_decay=0.0))
        after = tensors_of(model).arrays["encoder.layer.0.output.dense.weight"]
        changed[pull] = float((before != after).mean())
    free, pulled = changed.values()
    assert 0 < pulled < 0.7 < free
