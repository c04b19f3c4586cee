"""Where a killed run resumes: one safetensors file beside the output, replaced whole at every save.

It holds the trained numbers, the optimizer's state, the log so far and a digest of everything that decides the run; a
snapshot of other settings is not used. Rows and dropout are functions of seed and step, so there is no other state.

Of several processes the main one reads and writes the file, and sends the others what it read: they need not see its disk,
and all of them resume at the same step with the same numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skillgraft.errors import FormatError
from skillgraft.files import atomic
from skillgraft.files import tensors as tensor_file
from skillgraft.files.tensors import TensorFile
from skillgraft.live.grafted import as_numpy, as_torch
from skillgraft.opening.processes import ALONE, Processes
from skillgraft.training.trainables import Trainables
from skillgraft.values.numbers import DTYPES, Array

_STEP = "step"  # the optimizer's counter, which every process has


@dataclass
class TrainingProgress:
    """How far a run is."""

    step: int = 0
    log: list[dict[str, Any]] = field(default_factory=list)
    best_score: float | None = None
    best: dict[str, Tensor] = field(default_factory=dict)
    finished: bool = False


@dataclass(frozen=True)
class Snapshot:
    """The file that a run is kept in, and the settings it belongs to."""

    path: Path
    settings: str

    @classmethod
    def beside(cls, out: Path, settings: Mapping[str, Any]) -> Snapshot:
        """The hidden file beside an output."""
        return cls.at(out.parent / f".{out.name}.resume", settings)

    @classmethod
    def at(cls, path: Path, settings: Mapping[str, Any]) -> Snapshot:
        """This file, for a run with these settings."""
        return cls(path, hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest())

    def write(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Replace what is kept by these arrays and facts."""
        metadata = {"settings": self.settings, "progress": json.dumps(facts)}
        with atomic.new_file(self.path, overwrite=True) as temporary:
            tensor_file.write(temporary, arrays, metadata)

    def read(self) -> tuple[TensorFile, dict[str, Any]] | None:
        """The arrays and facts of an earlier run with the same settings; None if there is none."""
        if not self.path.is_file():
            return None
        try:
            file = TensorFile.open(self.path)
        except FormatError:
            return None
        if file.metadata.get("settings") != self.settings:
            return None
        return file, json.loads(file.metadata["progress"])

    def save(
        self,
        progress: TrainingProgress,
        trainables: Trainables,
        optimizer: torch.optim.Optimizer,
        *,
        processes: Processes = ALONE,
    ) -> None:
        """Keep it, with the trained numbers and the optimizer's state; of a split model all processes have to ask."""

        def whole(name: str, part: Tensor) -> Array:
            return as_numpy(trainables.whole(name, part, processes))

        arrays = {f"value/{name}": whole(name, tensor) for name, tensor in trainables.tensors.items()}
        arrays |= {f"best/{name}": whole(name, tensor) for name, tensor in progress.best.items()}
        for name, tensor in trainables.tensors.items():
            for key, part in optimizer.state.get(tensor, {}).items():
                state = torch.as_tensor(part)
                arrays[f"state/{key}/{name}"] = whole(name, state) if key != _STEP else as_numpy(state)
        if not processes.is_main:
            return
        facts = {"step": progress.step, "log": progress.log, "best_score": progress.best_score}
        self.write(arrays, {**facts, "finished": progress.finished})

    def load(
        self,
        trainables: Trainables,
        optimizer: torch.optim.Optimizer,
        *,
        processes: Processes = ALONE,
    ) -> TrainingProgress | None:
        """The progress of an earlier run with the same settings, its numbers put in place; None if there is none."""
        tensors = trainables.tensors
        found = self.recall(processes, next(iter(tensors.values())).device)
        if found is None:
            return None
        arrays, facts = found
        best = {}
        with torch.no_grad():
            for key, numbers in arrays:
                kind, _, rest = key.partition("/")
                if kind == "value":
                    tensors[rest].copy_(trainables.part(rest, numbers, processes))
                elif kind == "best":
                    best[rest] = trainables.part(rest, numbers, processes).to(tensors[rest].device)
                else:
                    state, _, name = rest.partition("/")
                    mine = numbers if state == _STEP else trainables.part(name, numbers, processes)
                    optimizer.state[tensors[name]][state] = _restored(mine, state, tensors[name])
        return TrainingProgress(facts["step"], facts["log"], facts["best_score"], best, facts["finished"])

    def recall(
        self, processes: Processes, device: torch.device
    ) -> tuple[Iterator[tuple[str, Tensor]], dict[str, Any]] | None:
        """What the main process reads, in every process: names with tensors on the device, one by one, and the facts.

        The tensors are sent as they are asked for: every process has to go through all of them.
        """
        found = self.read() if processes.is_main else None
        header = processes.facts_of_main(found and _header(*found), device)
        if header is None:
            return None
        return _received(header["arrays"], found[0] if found else None, processes, device), header["facts"]

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


def _header(file: TensorFile, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts, and what tensors follow: name, format and shape, in order."""
    arrays = [(key, entry.tag, entry.shape) for key, entry in file.entries.items()]
    return {"facts": facts, "arrays": arrays}


def _received(
    arrays: Sequence[tuple[str, str, Sequence[int]]],
    file: TensorFile | None,
    processes: Processes,
    device: torch.device,
) -> Iterator[tuple[str, Tensor]]:
    for key, tag, shape in arrays:
        mine = file.read(key) if file is not None else np.empty(shape, DTYPES[tag])
        yield key, processes.tensor_of_main(as_torch(mine), device)


def _restored(value: Tensor, state: str, tensor: Tensor) -> Tensor:
    """Optimizers keep their step counter on the CPU and the rest beside the parameter."""
    return value.cpu() if state == _STEP else value.to(tensor.device)
