"""Multi-task models: tuning on a mixture, a region per task, unions, purified unions, gains; tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skillgraft import extract, grafted, save_region
from skillgraft.compose.joint import Joint, open_joint
from skillgraft.compose.multitask import gains, group_gains, purified, task_regions, union, unions
from skillgraft.errors import InputError
from skillgraft.graft import Graft
from skillgraft.localize.skill import Rows, localize_skill
from skillgraft.measure.evaluate import evaluate
from skillgraft.measure.matrices import coverage_matrix
from skillgraft.measure.metrics import METRICS
from skillgraft.readouts.readout import loss_of
from skillgraft.region import Region
from skillgraft.training.finetune import finetune
from tests.compose.toy_tasks import QUICK, TASKS, _one_thread, place, tasks  # noqa: F401

STEPS: dict[str, Any] = {"steps": 6, "lr": 1e5}
FEW = Rows(shots=20)


@pytest.fixture(scope="module")
def multi(place: Path, tasks: list[Path]) -> Path:  # noqa: F811
    finetune(place / "encoder", tasks, place / "multi", plan=QUICK.with_changes(steps=200), shots=20)
    return place / "multi"


@pytest.fixture(scope="module")
def grafts(place: Path, tasks: list[Path], multi: Path) -> dict[str, Graft]:  # noqa: F811
    return task_regions(place / "encoder", multi, tasks, budget=40, data=FEW, **STEPS)


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
    tuned = finetune(place / "encoder", tasks, tmp_path / "out", plan=plan, shots=10)
    assert set(tuned.validation) == set(TASKS)
    assert len(extract(place / "encoder", tmp_path / "out")) > 1000
    assert np.isfinite([entry["loss"] for entry in tuned.log]).all()


def test_the_best_average_validation_is_kept(place: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    """P1 C.1; a learning rate at which the average goes up and down, so that the last step is not the best."""
    plan = QUICK.with_changes(steps=80, lr=1e-2, validate_every=4, keep="best")
    tuned = finetune(place / "encoder", tasks, tmp_path / "out", plan=plan, shots=10)
    looked = [entry["validation"] for entry in tuned.log if "validation" in entry]
    assert looked[-1] < max(looked)
    assert np.mean(list(tuned.validation.values())) == pytest.approx(max(looked))
    said = evaluate(place / "encoder", tasks, tuned={"t": tmp_path / "out"}, split="validation", shots=10).said
    assert np.mean([METRICS["score"](said[task]["t"]) for task in TASKS]) == pytest.approx(max(looked))


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
    alone = localize_skill(place / "encoder", multi, tasks[1], start="empty", budget=40, data=FEW, **STEPS).graft
    assert alone.digest == grafts["animals"].digest
    told = grafts["animals"].info["scores"]["validation"]["graft"]["accuracy"]
    assert told == alone.info["scores"]["validation"]["graft"]["accuracy"]


def test_regions_of_some_of_the_tasks_are_those_of_all(
    grafts: dict[str, Graft],
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
) -> None:
    some = task_regions(place / "encoder", multi, tasks, of=["colours"], budget=40, data=FEW, **STEPS)
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
    moved = extract(place / "encoder", multi, budget=30).region
    save_region(moved, tmp_path / "start.safetensors")
    for start in (30, tmp_path / "start.safetensors"):
        found = task_regions(place / "encoder", multi, tasks[:2], start=start, data=FEW, **still)
        assert [graft.region for graft in found.values()] == [moved, moved], "a mask that does not move is its start"
    seen = []
    empty = task_regions(
        place / "encoder", multi, tasks[:2], data=FEW, on_task=lambda *about: seen.append(about), **still
    )
    assert [len(graft) for graft in empty.values()] == [0, 0]
    assert seen == [("films", 0, 2), ("animals", 1, 2)]


def test_as_few_entries_as_keep_a_share(place: Path, tasks: list[Path], multi: Path) -> None:  # noqa: F811
    found = task_regions(place / "encoder", multi, tasks[1:2], keep=0.55, name="movement", data=FEW)["animals"]
    scores = found.info["scores"]["validation"]
    assert scores["graft"]["share_kept"]["value"] >= 0.55
    assert len(found) < 0.1 * found.region.scope.size
    assert found.info["recipe"]["keep"] == 0.55


def test_the_joint_loss_is_the_mean_over_tasks(place: Path, tasks: list[Path], multi: Path) -> None:  # noqa: F811
    """Against a loop over tasks; rows of every task in a step, whatever the number of rows it has."""
    with open_joint(place / "encoder", multi, tasks, data=FEW) as joint:
        step = joint.problem.steps(0)
        assert sum(share for _, share in step) == pytest.approx(1.0)
        with torch.no_grad():
            total = sum(float(joint.problem.loss(joint.model, batch)) * share for batch, share in step)
            alone = [_loss_alone(joint, task) for task in TASKS]
    assert total == pytest.approx(np.mean(alone), rel=1e-5)


def _loss_alone(joint: Joint, task: str) -> float:
    readout = joint.readouts[task]
    batch = readout.collate(joint.train[task])
    return float(loss_of(readout.scores(joint.model, batch), batch["labels"]))


def test_a_step_holds_at_most_batch_size_rows_of_each_task(
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
) -> None:
    with open_joint(place / "encoder", multi, tasks, data=Rows(shots=20, batch_size=6)) as joint:
        first, second = (joint.problem.steps(number) for number in (0, 1))
        assert [len(batch["labels"]) for batch, _ in first] == [6, 6, 6]
        assert [share for _, share in first] == pytest.approx([1 / 3] * 3)
        assert not torch.equal(first[0][0]["labels"], second[0][0]["labels"]) or not torch.equal(
            first[0][0]["input_ids"], second[0][0]["input_ids"]
        )


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
    with open_joint(place / "encoder", multi, tasks, data=FEW) as joint:
        lost = [_joint_loss(joint, graft, group) for graft in (start, more)]
    assert lost[1] < lost[0], "purifying takes the joint loss down"


def _joint_loss(joint: Joint, graft: Graft, group: list[str]) -> float:
    with grafted(joint.model, graft), torch.no_grad():
        return float(np.mean([_loss_alone(joint, task) for task in group]))


def test_gains_of_grafts_and_groups_on_all_tasks(
    grafts: dict[str, Graft],
    place: Path,  # noqa: F811
    tasks: list[Path],  # noqa: F811
    multi: Path,
) -> None:
    table = gains(place / "encoder", multi, grafts, tasks)
    said = evaluate(place / "encoder", tasks, tuned={"tuned": multi}, grafts={"g": grafts["films"]}).said["films"]
    base, tuned, graft = (METRICS["score"](said[name]) for name in ("base", "tuned", "g"))
    assert table["films", "films"].value == pytest.approx((graft - base) / (tuned - base))
    groups = [["films", "animals"], list(TASKS)]
    united = group_gains(place / "encoder", multi, grafts, groups, tasks, data=FEW)
    assert united.rows == ("films+animals", "films+animals+colours")
    assert united.columns == TASKS
    pure = group_gains(
        place / "encoder", multi, grafts, groups, tasks, data=FEW, purify=2, split="validation", shots=20
    )
    assert pure.rows == united.rows
    everything = {"all": extract(place / "encoder", multi)}
    assert gains(place / "encoder", multi, everything, tasks).values() == [[1.0, 1.0, 1.0]]


def test_a_shared_linear_head_serves_all_tasks(place: Path, tasks: list[Path], tmp_path: Path) -> None:  # noqa: F811
    data = Rows(shots=20, readout="linear")
    plan = QUICK.with_changes(steps=60)
    finetune(place / "masked", tasks[:2], tmp_path / "multi", plan=plan, readout="linear", shots=20)
    found = task_regions(place / "masked", tmp_path / "multi", tasks[:2], budget=50, data=data, **STEPS)
    assert found["films"].heads["classifier.weight"].shape == (4, 16)
    both = union(list(found.values()))
    assert both.heads.keys() == found["films"].heads.keys()
    table = gains(place / "masked", tmp_path / "multi", found, tasks[:2], readout="linear")
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
    with pytest.raises(InputError, match="every task is given once; found films, films"):
        task_regions(place / "encoder", multi, [tasks[0], tasks[0]])
    with pytest.raises(InputError, match="true labels, found 'tuned'"):
        task_regions(place / "encoder", multi, tasks, data=Rows(labels="tuned"))
    with pytest.raises(InputError, match="give a budget"):
        task_regions(place / "encoder", multi, tasks[:1], name="movement", data=FEW)


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
