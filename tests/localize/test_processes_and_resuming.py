"""A search in several processes finds what one process finds; killed and started again, it ends with the same bytes."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import spawn

from skillgraft import load
from skillgraft.errors import InputError
from skillgraft.localize import localize
from skillgraft.localize.skill import Rows, localize_skill
from skillgraft.measure.predict import predict
from skillgraft.training.finetune import finetune
from skillgraft.training.processes import Processes, _buckets
from tests.localize.test_any_model import loss, net, rows
from tests.running import start
from tests.training.test_finetune import QUICK, place  # noqa: F401
from tests.training.toys import ToyReadout, tiny_bert, toy_rows

SEARCH = ("--task", "films.toml", "--budget", 40, "--steps", 8, "--lr", "1e5", "--look-every", 2)


@pytest.fixture(scope="module")
def tuned(place: Path) -> Path:  # noqa: F811
    finetune(place / "encoder", [place / "films.toml"], place / "skilled", plan=QUICK.with_changes(steps=100))
    return place / "skilled"


def test_two_processes_find_the_region_of_one(place: Path, tuned: Path, tmp_path: Path) -> None:  # noqa: F811
    """Rows are summed in another order, which moves growths by rounding alone: the best entries are far apart enough."""
    told = {}
    for processes in (1, 2):
        words = ("localize", "encoder", tuned.name, *SEARCH, "-o", tmp_path / f"p{processes}.safetensors", "--json")
        run = start(place, *words, processes=processes)
        out, err = run.communicate(timeout=240)
        assert run.returncode == 0, err
        told[processes] = json.loads(out)  # one object: only the main process prints
    one, two = (load(tmp_path / f"p{processes}.safetensors") for processes in (1, 2))
    assert one.digest == two.digest
    assert told[1]["validation"] == told[2]["validation"]
    losses = [[loss for _, loss in told[processes]["search"]["losses"]] for processes in (1, 2)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p1.safetensors", "p2.safetensors"]


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_killed_and_started_again_it_ends_with_the_same_bytes(
    place: Path,  # noqa: F811
    tuned: Path,
    tmp_path: Path,
    processes: int,
) -> None:
    words = (
        "localize",
        "encoder",
        tuned.name,
        *SEARCH,
        "--steps",
        60,
        "--snapshot-seconds",
        0,
        "-o",
        "cut.safetensors",
    )
    words = (*words, "--paper-curve") if processes == 1 else words
    for folder in ("straight", "killed"):
        (tmp_path / folder).mkdir()
        for item in place.iterdir():
            (tmp_path / folder / item.name).symlink_to(item)
    straight = start(tmp_path / "straight", *words, processes=processes)
    assert straight.wait(timeout=240) == 0, straight.stderr.read() if straight.stderr else ""
    killed = start(tmp_path / "killed", *words, processes=processes)
    resume = tmp_path / "killed" / (".cut.safetensors.curve.resume" if processes == 1 else ".cut.safetensors.resume")
    deadline = time.monotonic() + 120
    while not resume.exists() and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    assert resume.exists()
    assert not (tmp_path / "killed" / "cut.safetensors").exists()
    again = start(tmp_path / "killed", *words, processes=processes)
    assert again.wait(timeout=240) == 0, again.stderr.read() if again.stderr else ""
    ends = [(tmp_path / folder / "cut.safetensors").read_bytes() for folder in ("straight", "killed")]
    assert ends[0] == ends[1]
    assert not list((tmp_path / "killed").glob(".cut*"))


class Killed(Exception):
    pass


def test_every_part_of_the_work_resumes(place: Path, tuned: Path, tmp_path: Path) -> None:  # noqa: F811
    """Stopped at any step of the search itself or of one of the curve's, it goes on there and not before."""
    steps: list[int] = []

    def counting(limit: int | None) -> Any:
        def on_step(step: int, *_: Any) -> None:
            steps.append(step)
            if limit is not None and len(steps) == limit:
                raise Killed

        return on_step

    settings: dict[str, Any] = {"budget": 25, "steps": 5, "lr": 1e5, "look_every": 2, "snapshot_seconds": 0.0}
    settings |= {"densities": (1e-3, 1e-2), "curve": "paper", "out": tmp_path / "g.safetensors"}
    three = (place / "encoder", tuned, place / "films.toml")
    straight = localize_skill(*three, **{**settings, "out": None})
    done = 0
    for _ in range(3):
        steps.clear()
        with pytest.raises(Killed):
            localize_skill(*three, on_step=counting(4), **settings)
        done += 4
    steps.clear()
    resumed = localize_skill(*three, on_step=counting(None), **settings)
    assert done + len(steps) == 3 * 5
    assert resumed.curve == straight.curve
    assert resumed.graft == straight.graft
    assert load(tmp_path / "g.safetensors") == straight.graft
    assert [path.name for path in tmp_path.iterdir()] == ["g.safetensors"]
    with pytest.raises(InputError, match="exists already"):
        localize_skill(*three, **settings)


@pytest.mark.parametrize(
    ("change", "first"),
    [
        ({}, 4),
        ({"budget": 30}, 4),
        ({"lr": 2e5}, 1),
        ({"start": 1e-2}, 1),
        ({"scope": "biases"}, 1),
        ({"reference": "zero"}, 1),
        ({"data": Rows(labels="tuned")}, 1),
        ({"data": Rows(batch_size=20)}, 1),
        ({"data": Rows(rows=40)}, 1),
    ],
)
def test_only_a_search_with_the_same_settings_goes_on(
    change: dict[str, Any],
    first: int,
    place: Path,  # noqa: F811
    tuned: Path,
    tmp_path: Path,
) -> None:
    """Whatever decides the search begins it anew; how many entries are cut from it does not."""
    steps: list[int] = []

    def stop(step: int, *_: Any) -> None:
        steps.append(step)
        if step == 3:
            raise Killed

    settings: dict[str, Any] = {"budget": 25, "steps": 4, "lr": 1e5, "snapshot_seconds": 0.0}
    settings["out"] = tmp_path / "g.safetensors"
    three = (place / "encoder", tuned, place / "films.toml")
    with pytest.raises(Killed):
        localize_skill(*three, on_step=stop, **settings)
    steps.clear()
    localize_skill(*three, on_step=lambda step, *_: steps.append(step), **{**settings, **change})
    assert steps[0] == first


def _work(index: int, folder: str) -> None:
    """One of two gloo processes: what it found goes into a file of its own."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=index, world_size=2)
    processes = Processes.here()
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(4))]
    parameters[0].grad = torch.full((3,), 1.0 + index)
    if index == 1:
        parameters[1].grad = torch.tensor([0.5, -1.0])
    total = processes.sum_gradients(parameters, 0.25 + index)
    model, readout = tiny_bert(), ToyReadout()
    said = processes.predict(model, readout, toy_rows(9))
    base, tuned = net(0), net(1)
    x, y = rows()
    batches = [(x[low : low + 8], y[low : low + 8]) for low in range(0, 32, 8)]
    graft = localize(base, tuned, batches, loss=loss, scope="all", budget=12, steps=5, lr=3.0, start=4)
    found = {
        "total": total,
        "gradients": [None if p.grad is None else p.grad.tolist() for p in parameters],
        "scores": said.scores.tolist(),
        "labels": said.labels.tolist(),
        "few": processes.predict(model, readout, toy_rows(1)).scores.tolist(),
        "graft": graft.digest,
        "losses": graft.info["recipe"]["search"]["losses"],
    }
    (Path(folder) / f"{index}.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def test_processes_get_the_same_sums_and_predictions(tmp_path: Path) -> None:
    spawn(_work, (str(tmp_path),), nprocs=2)
    first, second = (json.loads((tmp_path / f"{index}.json").read_text()) for index in (0, 1))
    assert first == second
    assert first["total"] == 1.5
    assert first["gradients"] == [[3.0, 3.0, 3.0], [0.5, -1.0], None]
    alone = predict(tiny_bert(), ToyReadout(), toy_rows(9))
    np.testing.assert_allclose(first["scores"], alone.scores, atol=1e-5)
    assert first["labels"] == alone.labels.tolist()
    assert len(first["few"]) == 1
    x, y = rows()
    batches = [(x[low : low + 8], y[low : low + 8]) for low in range(0, 32, 8)]
    graft = localize(net(0), net(1), batches, loss=loss, scope="all", budget=12, steps=5, lr=3.0, start=4)
    assert first["graft"] == graft.digest
    np.testing.assert_allclose(first["losses"], graft.info["recipe"]["search"]["losses"], rtol=1e-5)


def test_one_process_exchanges_nothing() -> None:
    processes = Processes.here()
    assert (processes.index, processes.count, processes.is_main) == (0, 1, True)
    assert processes.sum_gradients([nn.Parameter(torch.zeros(1))], 0.75) == 0.75
    assert Processes(1, 3).share([0, 1, 2, 3, 4]) == [1, 4]


def test_buckets_hold_all_tensors_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillgraft.training.processes._BUCKET", 5)
    tensors = [torch.zeros(size) for size in (2, 3, 1, 9, 1)]
    assert [[len(tensor) for tensor in bucket] for bucket in _buckets(tensors)] == [[2, 3], [1], [9], [1]]
    assert list(_buckets([])) == []
