"""A search in several processes finds what one process finds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import spawn

from skillgraft import load, localize_live
from skillgraft.opening.processes import Processes, _buckets
from skillgraft.predictions.predict import predict
from tests.regions.films import Films
from tests.regions.toys import net, net_batches, net_loss
from tests.running import start
from tests.training.toys import ToyReadout, tiny_bert, toy_rows

LIVE: dict[str, Any] = {
    "loss": net_loss, "scope": "all", "method": "learned", "entries": 12, "steps": 5, "lr": 3.0, "start": 4 / 56,
}  # fmt: skip


def test_two_processes_find_the_region_of_one(films: Films, tmp_path: Path) -> None:
    """Rows are summed in another order, which moves growths by rounding alone: the best entries are far apart enough."""
    printed = {}
    for processes in (1, 2):
        words = (
            *films.words,
            "--method",
            "learned",
            "--entries",
            40,
            "--steps",
            8,
            "--lr",
            "1e5",
            "--look-every",
            2,
            "--json",
        )
        run = start(tmp_path, *words, "-o", f"p{processes}.safetensors", processes=processes)
        out, err = run.communicate(timeout=240)
        assert run.returncode == 0, err
        printed[processes] = json.loads(out)  # one object: only the main process prints
    one, two = (load(tmp_path / f"p{processes}.safetensors") for processes in (1, 2))
    assert one.digest == two.digest
    assert printed[1]["validation"] == printed[2]["validation"]
    losses = [[loss for _, loss in printed[processes]["search"]["losses"]] for processes in (1, 2)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p1.safetensors", "p2.safetensors"]


def _work(index: int, folder: str) -> None:
    """One of two gloo processes: what it found goes into a file of its own."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=index, world_size=2)
    processes = Processes.here()
    parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(4))]
    parameters[0].grad = torch.full((3,), 1.0 + index)
    if index == 1:
        parameters[1].grad = torch.tensor([0.5, -1.0])
    total = processes.sum_gradients(parameters, 0.25 + index, torch.device("cpu"))
    model, readout = tiny_bert(), ToyReadout()
    predictions = predict(model, readout, toy_rows(9), processes=processes)
    graft = localize_live(net(0), net(1), net_batches(8), **LIVE)
    found = {
        "total": total,
        "gradients": [None if p.grad is None else p.grad.tolist() for p in parameters],
        "scores": predictions.scores.tolist(),
        "labels": predictions.labels.tolist(),
        "few": predict(model, readout, toy_rows(1), processes=processes).scores.tolist(),
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
    graft = localize_live(net(0), net(1), net_batches(8), **LIVE)
    assert first["graft"] == graft.digest
    np.testing.assert_allclose(first["losses"], graft.info["recipe"]["search"]["losses"], rtol=1e-5)


def test_one_process_exchanges_nothing() -> None:
    processes = Processes.here()
    assert (processes.index, processes.count, processes.is_main) == (0, 1, True)
    assert processes.sum_gradients([nn.Parameter(torch.zeros(1))], 0.75, torch.device("cpu")) == 0.75
    assert Processes(1, 3).share([0, 1, 2, 3, 4]) == [1, 4]


def test_buckets_hold_all_tensors_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skillgraft.opening.processes._BUCKET", 5)
    tensors = [torch.zeros(size) for size in (2, 3, 1, 9, 1)]
    assert [[len(tensor) for tensor in bucket] for bucket in _buckets(tensors)] == [[2, 3], [1], [9], [1]]
    assert list(_buckets([])) == []
