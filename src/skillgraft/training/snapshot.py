"""Where a killed run resumes: one safetensors file beside the output, replaced whole at every save.

It holds tensors by kind and name, facts as JSON, and a digest of everything that decides the run; a snapshot of other settings
is not used. Fine-tuning and the search for a region keep their progress in it. Rows and dropout are functions of seed and
step, so there is no other state.

Of several processes the main one reads and writes the file, and sends the others what it read: they need not see its disk,
and all of them resume at the same step with the same numbers.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from skillgraft.live.grafted import as_torch
from skillgraft.opening.processes import Processes
from skillgraft.values.numbers import DTYPES, Array


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
        """Replace what is kept by these arrays, named `kind/name`, and facts."""
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

    def recall(
        self, processes: Processes, device: torch.device
    ) -> tuple[Iterator[tuple[str, str, Tensor]], dict[str, Any]] | None:
        """What the main process reads, in every process: kinds and names with tensors on the device, one by one, and the facts.

        The tensors are sent as they are asked for: every process has to go through all of them.
        """
        found = self.read() if processes.is_main else None
        header = processes.facts_of_main(found and _header(*found), device)
        if header is None:
            return None
        return _received(header["arrays"], found[0] if found else None, processes, device), header["facts"]

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


@dataclass
class Saving:
    """When a run is saved, if it has a snapshot: every so many seconds, in all processes after the same step."""

    snapshot: Snapshot | None
    seconds: float
    processes: Processes
    device: torch.device
    saved: float = field(default_factory=time.monotonic)

    def after_step(self, save: Callable[[Snapshot], None]) -> None:
        """Save where it is time to."""
        late = time.monotonic() - self.saved >= self.seconds
        if self.snapshot is not None and self.processes.due(late, self.device):
            save(self.snapshot)
            self.saved = time.monotonic()


def _header(file: TensorFile, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts, and what tensors follow: name, format and shape, in order."""
    arrays = [(key, entry.tag, entry.shape) for key, entry in file.entries.items()]
    return {"facts": facts, "arrays": arrays}


def _received(
    arrays: Sequence[tuple[str, str, Sequence[int]]],
    file: TensorFile | None,
    processes: Processes,
    device: torch.device,
) -> Iterator[tuple[str, str, Tensor]]:
    for key, tag, shape in arrays:
        mine = file.read(key) if file is not None else np.empty(shape, DTYPES[tag])
        kind, _, name = key.partition("/")
        yield kind, name, processes.tensor_of_main(as_torch(mine), device)
