"""Peak memory of a search among candidates in a real language model, in sizes of the model.

    SKILLGRAFT_DATA=… OMP_NUM_THREADS=1 python examples/search_memory.py MODELS/gemma3-270m

TUNED is BASE with noise in its layers, since memory does not depend on what was learned. Two processes of their own are watched:
`localize` with the budgeted search at density 1e-3 (three steps of eight rows of nl2bash), and plain forward and backward
passes of the same batches, of which each gradient is dropped as it is made: what they need beyond the model are the activations.
Anonymous memory counts; where a loader maps the weights instead of copying them, their bytes are added.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

from peaks import peak_of
from skillgraft import Data, localize
from skillgraft.files.tensors import TensorFile, write
from skillgraft.task_model import TaskModel
from skillgraft.values.names import in_layers

MEGABYTE = 1e6
TASK, STEPS, ROWS, DENSITY, CANDIDATES = "nl2bash", 3, 8, 1e-3, 0.05
DATA = Data(train_rows=STEPS * ROWS, validation_rows=ROWS)


def noisy(base: Path, folder: Path) -> None:
    """A copy of the folder whose layers have moved a little, in the base's own format."""
    folder.mkdir()
    for item in base.iterdir():
        if item.suffix == ".json":
            shutil.copyfile(item, folder / item.name)
    file, draw = TensorFile.open(base / "model.safetensors"), np.random.default_rng(0)
    tensors = {name: file.read(name) for name in file.entries}
    for name, numbers in tensors.items():
        if in_layers(name.removeprefix("model.")):
            noise = draw.standard_normal(numbers.shape, np.float32) * 1e-2 * np.abs(numbers.astype(np.float32)).mean()
            tensors[name] = (numbers.astype(np.float32) + noise).astype(numbers.dtype)
    write(folder / "model.safetensors", tensors, {"format": "pt"})


def search(base: Path, tuned: Path, out: Path) -> None:
    """What a user calls."""
    _one_thread()
    localize(
        base, tuned, task=TASK, method="budgeted", density=DENSITY, steps=STEPS, batch_size=ROWS, candidates=CANDIDATES,
        data=DATA, out=out,
    )  # fmt: skip


def plain(base: Path) -> None:
    """Forward and backward passes alone, over the batches of the search's steps."""
    _one_thread()
    import torch

    opened = TaskModel.open(base, [TASK], data=DATA, splits=("train",))
    steps = opened.steps({TASK: opened.rows.encoded(TASK, "train")}, batch_size=ROWS)

    def drop(parameter: torch.Tensor) -> None:
        parameter.grad = None

    for name, parameter in opened.model.named_parameters():
        if parameter.requires_grad_(in_layers(name.removeprefix("model."))).requires_grad:
            parameter.register_post_accumulate_grad_hook(drop)
    for step in range(STEPS):
        for batch, _share in steps(step):
            opened.loss(opened.model, batch).backward()


def loaded(base: Path) -> None:
    """The model alone, every number read."""
    _one_thread()
    opened = TaskModel.open(base, [TASK], data=DATA, splits=("train",))
    for parameter in opened.model.parameters():
        float(parameter.detach().sum())


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)  # each thread has buffers of its own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("base", type=Path)
    base = parser.parse_args().base.absolute()
    entries = TensorFile.open(base / "model.safetensors").entries.values()
    size = sum(entry.nbytes for entry in entries) / MEGABYTE
    with tempfile.TemporaryDirectory() as folder:
        noisy(base, Path(folder) / "tuned")
        peaks = {
            "loaded": peak_of(loaded, base),
            "plain": peak_of(plain, base),
            "search": peak_of(search, base, Path(folder) / "tuned", Path(folder) / "g.safetensors"),
        }
    used = {name: peak.peak - peak.baseline for name, peak in peaks.items()}
    mapped = used["loaded"] < size / 2
    added = size if mapped else 0.0
    activations = used["plain"] + added - size
    found = {
        "model": base.name, "megabytes": size, "mapped": mapped, "activations": activations,
        **{f"peak of {name}": taken + added for name, taken in used.items()},
        "peak less activations, in sizes of the model": (used["search"] + added - activations) / size,
    }  # fmt: skip
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
