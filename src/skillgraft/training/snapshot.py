"""Where a killed run resumes: one safetensors file beside the output, replaced whole at every save.

It holds the trained numbers, the optimizer's state, the log so far and a digest of everything that decides the run; a
snapshot of other settings is not used. Rows and dropout are functions of seed and step, so there is no other state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from skillgraft import atomic, tensor_file
from skillgraft.dtypes import Array
from skillgraft.errors import FormatError
from skillgraft.live import as_numpy, as_torch
from skillgraft.tensor_file import TensorFile


@dataclass
class Progress:
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

    def save(self, progress: Progress, tensors: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        arrays = {f"value/{name}": as_numpy(tensor) for name, tensor in tensors.items()}
        arrays |= {f"best/{name}": as_numpy(tensor) for name, tensor in progress.best.items()}
        for name, tensor in tensors.items():
            for key, part in optimizer.state.get(tensor, {}).items():
                arrays[f"state/{key}/{name}"] = as_numpy(torch.as_tensor(part))
        facts = {"step": progress.step, "log": progress.log, "best_score": progress.best_score}
        self.write(arrays, {**facts, "finished": progress.finished})

    def load(self, tensors: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> Progress | None:
        """The progress of an earlier run with the same settings, its numbers put in place; None if there is none."""
        found = self.read()
        if found is None:
            return None
        file, facts = found
        best = {}
        with torch.no_grad():
            for key in file.entries:
                kind, _, rest = key.partition("/")
                if kind == "value":
                    tensors[rest].copy_(as_torch(file.read(key)))
                elif kind == "best":
                    best[rest] = as_torch(file.read(key)).to(tensors[rest].device)
                else:
                    state, _, name = rest.partition("/")
                    optimizer.state[tensors[name]][state] = _restored(as_torch(file.read(key)), state, tensors[name])
        return Progress(facts["step"], facts["log"], facts["best_score"], best, facts["finished"])

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


def _restored(value: Tensor, state: str, tensor: Tensor) -> Tensor:
    """Optimizers keep their step counter on the CPU and the rest beside the parameter."""
    return value if state == "step" else value.to(tensor.device)
