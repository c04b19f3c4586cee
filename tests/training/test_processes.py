"""Two processes that share no disk: they resume at the same step, with the numbers that the main process has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

from skillgraft.opening.processes import ALONE, Processes
from skillgraft.training.methods import prepare
from skillgraft.training.plan import TrainingPlan
from skillgraft.training.snapshot import Snapshot
from tests.training.test_trainables import a_region
from tests.training.toys import tiny_bert, train_toy

CPU = torch.device("cpu")
PLAN = TrainingPlan(optimizer="adamw", lr=3e-3, batch_size=8, steps=8, dropout=True, validate_every=3, keep="best")
METHODS = {"full": PLAN, "region": PLAN, "lora": PLAN.with_changes(method="lora")}


class Killed(Exception):
    pass


def _join(index: int, folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=index, world_size=2)
    # accelerate reads these to find the group that is there already.
    os.environ |= {"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}


def _train(method: str, snapshot: Path | None, *, stop_at: int | None = None) -> dict[str, Any]:
    """A bf16 model trained by both processes; which steps were run, and the bits at the end."""
    model, steps = tiny_bert(dropout=0.1).to(torch.bfloat16), list[int]()
    plan = METHODS[method]

    def note(step: int, *_: Any) -> None:
        steps.append(step)
        if step == stop_at:
            raise Killed

    kept = Snapshot.at(snapshot, {}) if snapshot else None
    region = a_region(model) if method == "region" else None
    assert Processes.here().count == 2
    try:
        progress, training = train_toy(model, plan, snapshot=kept, on_step=note, inside=region)
    except Killed:
        return {"steps": steps}
    trainables = training.prepared.trainables
    numbers = {name: tensor.tolist() for name, tensor in trainables.copy().items()}
    return {"steps": steps, "numbers": numbers, "losses": [entry["loss"] for entry in progress.log]}


def _resume(index: int, folder: str) -> None:
    _join(index, Path(folder))
    mine = Path(folder) / str(index)  # this node's own disk
    found = {}
    for method in METHODS:
        straight = _train(method, None)
        killed = _train(method, mine / method, stop_at=6)
        files = sorted(path.name for path in mine.iterdir())
        found[method] = [straight, killed, files, _train(method, mine / method)]
    (Path(folder) / f"{index}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


@pytest.mark.long
def test_processes_without_a_shared_disk_resume_together(tmp_path: Path) -> None:
    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
    spawn(_resume, (str(tmp_path),), nprocs=2)
    first, second = (json.loads((tmp_path / f"{index}.json").read_text()) for index in (0, 1))
    for method in METHODS:
        straight, killed, files, resumed = first[method]
        assert method in files
        assert second[method][2] == [], "only the main process writes"
        assert second[method] == [straight, killed, [], resumed]
        assert killed["steps"] == [1, 2, 3, 4, 5, 6]
        assert resumed["steps"] == [6, 7, 8]
        assert resumed["losses"] == straight["losses"]
        assert resumed["numbers"] == straight["numbers"]
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == []


def _only_a_stranger_has_one(index: int, folder: str) -> None:
    """A file of an earlier run on a node that is not the main one is nobody's business."""
    _join(index, Path(folder))
    path = Path(folder) / str(index) / "kept"
    if index == 1:
        model = tiny_bert()
        trainables = prepare(model, PLAN).trainables
        Snapshot.at(path, {}).write(
            {f"value/{n}": t.detach().numpy() for n, t in trainables.tensors.items()}, {"step": 5}
        )
    steps = _train("full", path)["steps"]
    (Path(folder) / f"{index}.json").write_text(json.dumps(steps))
    distributed.destroy_process_group()


@pytest.mark.long
def test_only_the_main_process_decides_where_to_resume(tmp_path: Path) -> None:
    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
    spawn(_only_a_stranger_has_one, (str(tmp_path),), nprocs=2)
    assert [json.loads((tmp_path / f"{index}.json").read_text()) for index in (0, 1)] == [list(range(1, 9))] * 2


def _send(index: int, folder: str) -> None:
    _join(index, Path(folder))
    processes = Processes.here()
    facts = processes.facts_of_main({"wörd": [1.5, None]} if index == 0 else "not this", CPU)
    nothing = processes.facts_of_main(None if index == 0 else "not this", CPU)
    sent = [
        torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16),
        torch.tensor(7, dtype=torch.int64),
        torch.tensor(0.1, dtype=torch.float64),
        torch.zeros(0, 3),
        torch.arange(6.0).view(2, 3).T,
        torch.tensor([True, False]),
    ]
    given = sent if index == 0 else [torch.empty_like(tensor) for tensor in sent]
    got = [processes.tensor_of_main(tensor, CPU) for tensor in given]
    same = [torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(got, sent, strict=True)]
    (Path(folder) / f"{index}.json").write_text(json.dumps([facts, nothing, same]))
    distributed.destroy_process_group()


@pytest.mark.long
def test_what_the_main_process_has_reaches_the_others(tmp_path: Path) -> None:
    spawn(_send, (str(tmp_path),), nprocs=2)
    for index in (0, 1):
        facts, nothing, same = json.loads((tmp_path / f"{index}.json").read_text())
        assert facts == {"wörd": [1.5, None]}
        assert nothing is None
        assert same == [True] * 6


def test_one_process_keeps_what_it_has() -> None:
    facts, tensor = object(), torch.ones(2)
    assert ALONE.facts_of_main(facts, CPU) is facts
    assert ALONE.tensor_of_main(tensor, CPU) is tensor


@pytest.mark.parametrize("count", [1, 2])
def test_a_process_that_is_not_the_main_one_never_reads(count: int, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "kept"
    Snapshot.at(path, {}).write({}, {"step": 1})
    monkeypatch.setattr(Processes, "facts_of_main", lambda _self, facts, _device: facts)
    found = Snapshot.at(path, {}).recall(Processes(count - 1, count), CPU)
    assert (found is None) == (count == 2)
