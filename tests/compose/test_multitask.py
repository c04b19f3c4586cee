"""Multi-task models: tuning on a mixture, a region per task, unions, purified unions, gains; tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skillgraft import extract, save_region
from skillgraft.compose.multitask import gains, group_gains, purified, task_regions, union, unions
from skillgraft.errors import InputError
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.matrices import coverage_matrix
from skillgraft.measure.metrics import METRICS
from skillgraft.readouts.readout import loss_of
from skillgraft.regions.localize import localize
from skillgraft.regions.search import SearchPlan
from skillgraft.regions.tuned_pair import TunedPair, open_pair
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region
from tests.compose.toy_tasks import QUICK, TASKS, _one_thread, place, tasks  # noqa: F401

STEPS: dict[str, Any] = {"method": "learned", "steps": 6, "lr": 1e5}
FEW = Data(shots=20)
FEWER = Data(shots=10)


@pytest.fixture(scope="module")
def multi(place: Path, tasks: list[Path]) -> Path:  # noqa: F811
    finetune(place / "encoder", tasks, out=place / "multi", plan=QUICK.with_changes(steps=200), data=FEW)
    return place / "multi"


@pytest.fixture(scope="module")
def grafts(place: Path, tasks: list[Path], multi: Path) -> dict[str, Graft]:  # noqa: F811
    return task_regions(place / "encoder", multi, tasks, entries=40, data=FEW, **STEPS)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "sgd", "lr": 0.05},
        {"optimizer": "adamw"},
        {"optimizer": "adamw", "l1": 0.001},
        {"mixture": "proportional"},
    ],
)
def test_every_optimizer_tunes_on_several_tasks(
    settings: dict[str, Any],
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    plan = QUICK.with_changes(steps=12, **settings)
    tuned = finetune(place / "encoder", tasks, out=tmp_path / "out", plan=plan, data=FEWER)
    assert set(tuned.validation) == set(TASKS)
    assert len(extract(place / "encoder", tmp_path / "out")) > 1000
    assert np.isfinite([entry["loss"] for entry in tuned.log]).all()


def test_the_best_average_validation_is_kept(place: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    """P1 C.1; a learning rate at which the average goes up and down, so that the last step is not the best."""
    plan = QUICK.with_changes(steps=80, lr=1e-2, validate_every=4, keep="best")
    tuned = finetune(place / "encoder", tasks, out=tmp_path / "out", plan=plan, data=FEWER)
    looked = [entry["validation"] for entry in tuned.log if "validation" in entry]
    assert looked[-1] < max(looked)
    assert np.mean(list(tuned.validation.values())) == pytest.approx(max(looked))
    found = evaluate(place / "encoder", tasks, tuned={"t": tmp_path / "out"}, split="validation", data=FEWER)
    assert np.mean([METRICS["score"](found[task]["t"]) for task in TASKS]) == pytest.approx(max(looked))


def test_each_task_gets_a_region_of_its_own(grafts: dict[str, Graft], place: Path, multi: Path) -> None:  # noqa: F811
    assert list(grafts) == list(TASKS)
    whole = extract(place / "encoder", multi)
    for task, graft in grafts.items():
        assert len(graft) == 40
        assert graft.info["task"] == task
        assert set(graft.info["scores"]["validation"]) == {"base", "tuned", "graft"}
        assert (whole & graft.region).digest == graft.digest, "the numbers are the multi-task model's"
    assert len({graft.region.digest for graft in grafts.values()}) == 3


def test_a_region_is_what_localizing_that_task_alone_finds(
    grafts: dict[str, Graft],
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
) -> None:
    alone = localize(place / "encoder", multi, task=tasks[1], start="empty", entries=40, data=FEW, **STEPS).graft
    assert alone.digest == grafts["animals"].digest
    recorded = grafts["animals"].info["scores"]["validation"]["graft"]["accuracy"]
    assert recorded == alone.info["scores"]["validation"]["graft"]["accuracy"]


def test_regions_of_some_of_the_tasks_are_those_of_all(
    grafts: dict[str, Graft],
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
) -> None:
    some = task_regions(place / "encoder", multi, tasks, of=["colours"], entries=40, data=FEW, **STEPS)
    assert {task: graft.digest for task, graft in some.items()} == {"colours": grafts["colours"].digest}
    with pytest.raises(InputError, match="was not tuned on 'colour'; did you mean 'colours'"):
        task_regions(place / "encoder", multi, tasks, of=["colour"], data=FEW, **STEPS)


def test_starts_of_other_sizes_and_from_a_file(
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
    tmp_path: Path,
) -> None:
    still: dict[str, Any] = {"steps": 1, "lr": 1e-9}
    moved = extract(place / "encoder", multi, entries=30).region
    save_region(moved, tmp_path / "start.safetensors")
    for start in (30 / moved.scope.size, moved, tmp_path / "start.safetensors"):
        found = task_regions(place / "encoder", multi, tasks[:2], start=start, data=FEW, **still)
        assert [graft.region for graft in found.values()] == [moved, moved], "a mask that does not move is its start"
    seen = []
    empty = task_regions(
        place / "encoder", multi, tasks[:2], data=FEW, on_task=lambda *about: seen.append(about), **still
    )
    assert [len(graft) for graft in empty.values()] == [0, 0]
    assert seen == [("films", 0, 2), ("animals", 1, 2)]


def test_as_few_entries_as_keep_a_share(place: Path, tasks: list[Path], multi: Path) -> None:  # noqa: F811
    found = task_regions(place / "encoder", multi, tasks[1:2], keep=0.55, method="movement", data=FEW)["animals"]
    scores = found.info["scores"]["validation"]
    assert scores["graft"]["share_kept"]["value"] >= 0.55
    assert len(found) < 0.1 * found.region.scope.size
    assert found.info["recipe"]["keep"] == 0.55


def test_regions_can_be_learned_from_what_the_model_predicts(place: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    """P1 D.4, for each of several tasks; a model that is often wrong, so that its labels are not the true ones."""
    base, tuned = place / "encoder", tmp_path / "short"
    finetune(base, tasks[:2], out=tuned, plan=QUICK.with_changes(steps=4), data=FEW)
    found = evaluate(base, tasks[:2], tuned={"t": tuned}, split="train", data=FEW)
    assert all((found[task]["t"].predicted != found[task]["t"].labels).any() for task in found)
    regions = task_regions(base, tuned, tasks[:2], entries=40, labels="tuned", data=FEW, **STEPS)
    alone = localize(base, tuned, task=tasks[1], start="empty", entries=40, labels="tuned", data=FEW, **STEPS).graft
    assert regions["animals"].digest == alone.digest
    truly = task_regions(base, tuned, tasks[:2], entries=40, data=FEW, **STEPS)
    assert truly["animals"].region != regions["animals"].region


def test_a_multiple_of_the_change_is_searched_cut_and_measured(
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
) -> None:
    asked: dict[str, Any] = {"entries": 40, "scale": 3.0, "data": FEW, **STEPS}
    found = task_regions(place / "encoder", multi, tasks, of=["animals"], **asked)["animals"]
    alone = localize(place / "encoder", multi, task=tasks[1], start="empty", **asked).graft
    assert found.scale == 3.0
    assert found.digest == alone.digest
    measured = found.info["scores"]["validation"]["graft"]
    assert measured == alone.info["scores"]["validation"]["graft"]
    predictions = evaluate(place / "encoder", tasks[1:2], grafts={"g": found}, split="validation", data=FEW)
    assert measured["accuracy"]["value"] == METRICS["accuracy"](predictions["animals"]["g"])


def test_the_loss_of_several_tasks_is_the_sum_of_theirs(place: Path, tasks: list[Path], multi: Path) -> None:  # noqa: F811
    """Against a loop over tasks; rows of every task in a step, whatever the number of rows it has."""
    with open_pair(place / "encoder", multi, tasks, plan=SearchPlan(method="learned"), data=FEW) as pair:
        step = list(pair.problem.steps(0))
        assert sum(share for _, share in step) == pytest.approx(len(TASKS))
        with torch.no_grad():
            total = sum(float(pair.problem.loss(pair.opened.model, batch)) * share for batch, share in step)
            alone = [_loss_alone(pair, task) for task in TASKS]
    assert total == pytest.approx(sum(alone), rel=1e-5)


def _loss_alone(pair: TunedPair, task: str) -> float:
    readout = pair.opened.rows.readout(task)
    batch = readout.collate(pair.train[task])
    return float(loss_of(readout.scores(pair.opened.model, batch), batch["labels"]))


def test_a_step_holds_at_most_batch_size_rows_of_each_task(
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
) -> None:
    with open_pair(place / "encoder", multi, tasks, plan=SearchPlan(method="learned", batch_size=6), data=FEW) as pair:
        first, second = (list(pair.problem.steps(number)) for number in (0, 1))
        assert [(task, len(batch["labels"])) for (task, batch), _ in first] == [(task, 6) for task in TASKS]
        assert [share for _, share in first] == pytest.approx([1.0] * 3)
        (_, one), (_, other) = first[0][0], second[0][0]
        assert not torch.equal(one["labels"], other["labels"]) or not torch.equal(one["input_ids"], other["input_ids"])
        some = list(pair.of(["colours", "films"]).problem.steps(0))
        assert [(task, share) for (task, _), share in some] == [("colours", 1.0), ("films", 1.0)]


def test_a_union_holds_the_models_numbers(grafts: dict[str, Graft], place: Path, multi: Path) -> None:  # noqa: F811
    both = unions(grafts, [["films", "animals"], ["colours"], list(TASKS)])
    assert list(both) == ["films+animals", "colours", "films+animals+colours"]
    region = grafts["films"].region | grafts["animals"].region
    assert both["films+animals"].form == "exact"
    assert both["films+animals"].digest == (extract(place / "encoder", multi) & region).digest
    assert both["colours"].digest == grafts["colours"].digest


def test_purified_unions_stay_the_models(
    grafts: dict[str, Graft],
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
) -> None:
    group = ["films", "colours"]
    still = purified(place / "encoder", multi, grafts, [group], tasks, data=FEW, steps=1, lr=1e-9)
    start = unions(grafts, [group])["films+colours"]
    assert still["films+colours"].region == start.region, "a mask that does not move is the union"
    more = purified(place / "encoder", multi, grafts, [group], tasks, data=FEW, lr=1e6)["films+colours"]
    assert more.region != start.region
    assert more.digest == (extract(place / "encoder", multi) & more.region).digest
    assert more.info["recipe"]["steps"] == 10
    with open_pair(place / "encoder", multi, tasks, plan=SearchPlan(method="learned"), data=FEW) as pair:
        lost = [_mean_loss(pair, graft, group) for graft in (start, more)]
    assert lost[1] < lost[0], "purifying takes the group's loss down"


def test_a_purifying_step_descends_on_the_sum_of_the_groups_losses(
    grafts: dict[str, Graft],
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
) -> None:
    """Against autograd over S itself (P1 eqs. 3 and 4), with a learning rate at which the losses' mean gives another region."""
    group, lr = ["films", "colours"], 3e7
    start = unions(grafts, [group])["films+colours"].region
    with open_pair(place / "encoder", multi, tasks, plan=SearchPlan(method="learned"), data=FEW) as pair:
        by_sum, by_mean = (_one_step(pair, start, group, lr * share) for share in (1, 1 / len(group)))
    found = purified(place / "encoder", multi, grafts, [group], tasks, data=FEW, steps=1, lr=lr)["films+colours"]
    assert found.region == by_sum
    assert by_mean != by_sum


def _one_step(pair: TunedPair, start: Region, group: list[str], lr: float) -> Region:
    """γ > ½ after S has gone one step down the sum of the group's losses."""
    problem, model = pair.problem, pair.opened.model
    s = {name: torch.full(shape, -9.5, requires_grad=True) for name, shape in problem.scope.shapes.items()}
    chosen = {name: torch.from_numpy(start.mask(name)).reshape(shape) for name, shape in problem.scope.shapes.items()}

    def gamma(name: str) -> torch.Tensor:
        return torch.where(chosen[name], 1 - torch.sigmoid(s[name]), torch.sigmoid(s[name]))

    blended = {
        name: problem.before[name].view_as(s[name]) + gamma(name) * problem.delta(name).view_as(s[name]) for name in s
    }
    losses = [_functional_loss(pair, model, blended, task) for task in group]
    torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for mask in s.values():
            mask -= lr * mask.grad
        return Region.from_masks(problem.scope, {name: (gamma(name) > 0.5).numpy() for name in s})


def _functional_loss(
    pair: TunedPair, model: torch.nn.Module, numbers: dict[str, torch.Tensor], task: str
) -> torch.Tensor:
    readout = pair.opened.rows.readout(task)
    batch = readout.collate(pair.train[task])

    class Asked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> torch.Tensor:
            return loss_of(readout.scores(self.model, batch), batch["labels"])

    whole = {name: next(full for full, _ in Asked().named_parameters() if full.endswith(name)) for name in numbers}
    return torch.func.functional_call(Asked(), {whole[name]: value for name, value in numbers.items()}, ())


def _mean_loss(pair: TunedPair, graft: Graft, group: list[str]) -> float:
    with pair.opened.holding(graft), torch.no_grad():
        return float(np.mean([_loss_alone(pair, task) for task in group]))


def test_gains_of_grafts_and_groups_on_all_tasks(
    grafts: dict[str, Graft],
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
) -> None:
    table = gains(place / "encoder", multi, grafts, tasks)
    found = evaluate(place / "encoder", tasks, tuned={"tuned": multi}, grafts={"g": grafts["films"]})["films"]
    base, tuned, graft = (METRICS["score"](found[name]) for name in ("base", "tuned", "g"))
    assert table["films", "films"].value == pytest.approx((graft - base) / (tuned - base))
    groups = [["films", "animals"], list(TASKS)]
    united = group_gains(place / "encoder", multi, grafts, groups, tasks, data=FEW)
    assert united.rows == ("films+animals", "films+animals+colours")
    assert united.columns == TASKS
    pure = group_gains(place / "encoder", multi, grafts, groups, tasks, data=FEW, purify=2, split="validation")
    assert pure.rows == united.rows
    everything = {"all": extract(place / "encoder", multi)}
    assert gains(place / "encoder", multi, everything, tasks).values() == [[1.0, 1.0, 1.0]]


def test_a_shared_linear_head_serves_all_tasks(place: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    data = Data(shots=20, readout="linear")
    finetune(place / "masked", tasks[:2], out=tmp_path / "multi", plan=QUICK.with_changes(steps=60), data=data)
    found = task_regions(place / "masked", tmp_path / "multi", tasks[:2], entries=50, data=data, **STEPS)
    assert found["films"].heads["classifier.weight"].shape == (4, 16)
    both = union(list(found.values()))
    assert both.heads.keys() == found["films"].heads.keys()
    table = gains(place / "masked", tmp_path / "multi", found, tasks[:2], data=data)
    assert table.columns == ("films", "animals")
    assert coverage_matrix({name: graft.region for name, graft in found.items()})["films", "films"].value == 1.0


def test_wrong_questions_are_refused(
    grafts: dict[str, Graft],
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
) -> None:
    with pytest.raises(InputError, match="no graft for task 'filmz'; did you mean 'films'"):
        unions(grafts, [["filmz"]])
    with pytest.raises(InputError, match="at least one task"):
        unions(grafts, [[]])
    with pytest.raises(InputError, match="expected grafts of one scope, found none"):
        purified(place / "encoder", multi, grafts, [], tasks)
    with pytest.raises(InputError, match="each name once, found films, films"):
        task_regions(place / "encoder", multi, [tasks[0], tasks[0]])
    with pytest.raises(InputError, match="labels are 'true' or 'tuned', found 'tunde'"):
        task_regions(place / "encoder", multi, tasks, labels="tunde")
    with pytest.raises(InputError, match="does not say how many: give a density, entries or a share to keep"):
        task_regions(place / "encoder", multi, tasks[:1], method="movement", data=FEW)


def test_a_union_of_grafts_of_different_models_is_refused(grafts: dict[str, Graft]) -> None:
    graft = grafts["films"]
    other = Graft(
        graft.region,
        graft.before,
        {name: numbers + np.float32(1) for name, numbers in graft.change.items()},
        base_fingerprint=graft.base_fingerprint,
    )
    with pytest.raises(InputError, match="different numbers at the 40 entries"):
        union([graft, other])
    apart = other & Region(graft.region.scope, {})
    assert union([graft.without_heads(), apart]).region == graft.region
