"""A model split over two gloo processes (FSDP2): tuned, searched and scored as one process does it, half of it in each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed
from torch.multiprocessing.spawn import spawn

from skillgraft import choose_region, finetune, load, localize
from skillgraft.opening.runtime import Runtime
from skillgraft.opening.shards import own, own_shape, stretch
from skillgraft.task_model import TaskModel
from skillgraft.values.names import is_head
from tests.model_folders import tensors_of
from tests.regions.films import QUICK, Films

# Under 0.55 of the bytes in each process; losses within 1e-5; at least 99.9 % of the sites the same.
MOST_BYTES, LOSS, SITES = 0.55, 1e-5, 0.999
SEARCH: dict[str, Any] = {"method": "learned", "entries": 2000, "steps": 6, "lr": 1e5}


def _losses(out: Path) -> list[float]:
    lines = (out / "training.jsonl").read_text(encoding="utf-8").splitlines()
    return [entry["loss"] for entry in map(json.loads, lines) if "loss" in entry]


def _work(folder: Path, films: Films, runtime: Runtime) -> None:
    """All three pieces of work, into files of the folder."""
    tuned = finetune(films.base, [films.task], out=folder / "tuned", plan=QUICK.with_changes(steps=6), runtime=runtime)
    assert tuned is not None
    localize(films.base, films.tuned, task=films.task, out=folder / "learned.safetensors", runtime=runtime, **SEARCH)
    chosen = choose_region(films.base, task=films.task, density=0.1, runtime=runtime)
    if not runtime.shard or distributed.get_rank() == 0:
        chosen.save(folder / "fisher.safetensors")


def _split(index: int, folder: str, films: Films) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=index, world_size=2)
    os.environ |= {"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    opened = TaskModel.open(films.base, [films.task], device="cpu", shard=True)
    sizes = {}
    for name, parameter in opened.model.named_parameters():
        if is_head(name):  # these travel whole, and stay whole in every process
            continue
        assert isinstance(parameter, distributed.tensor.DTensor), name
        low, high = stretch(parameter)
        assert own(parameter).numel() == high - low == int(np.prod(own_shape(parameter)))
        sizes[name] = [high - low, parameter.numel()]
    (Path(folder) / f"{index}.json").write_text(json.dumps(sizes))
    _work(Path(folder), films, Runtime(device="cpu", shard=True))
    distributed.destroy_process_group()


@pytest.mark.long
def test_two_processes_with_half_a_model_each_do_what_one_does(tmp_path: Path) -> None:
    films = Films.make(tmp_path)
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    _work(one, films, Runtime(device="cpu"))
    spawn(_split, (str(two), films), nprocs=2)

    held = [json.loads((two / f"{index}.json").read_text()) for index in (0, 1)]
    whole = sum(size for _, size in held[0].values())
    assert sum(mine for each in held for mine, _ in each.values()) == whole
    shares = [sum(mine for mine, _ in each.values()) / whole for each in held]
    assert max(shares) <= MOST_BYTES, shares

    np.testing.assert_allclose(_losses(two / "tuned"), _losses(one / "tuned"), rtol=LOSS)
    ours, theirs = tensors_of(two / "tuned"), tensors_of(one / "tuned")
    assert ours.keys() == theirs.keys()
    # A key's bias has no gradient but rounding, because softmax ignores it, and AdamW makes steps of that.
    bodies = [name for name in ours if not name.endswith("key.bias")]
    near = np.concatenate([(np.abs(ours[name] - theirs[name]) < 1e-4).ravel() for name in bodies])
    assert near.mean() >= SITES, near.mean()
    for file in ("learned.safetensors", "fisher.safetensors"):
        found, wanted = (_region(each / file) for each in (two, one))
        assert len(found) == len(wanted)
        assert found.coverage(of=wanted) >= SITES


def _region(file: Path) -> Any:
    from skillgraft import Region

    return load(file).region if file.name == "learned.safetensors" else Region.load(file)
