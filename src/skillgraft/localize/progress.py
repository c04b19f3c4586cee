"""How far the search for a learned region is, and the snapshot from which a killed one goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from skillgraft.errors import RunError
from skillgraft.live import as_numpy, as_torch
from skillgraft.region import Region, Scope
from skillgraft.training.snapshot import Snapshot

Look = tuple[int, int, float]  # step, entries of the rounded region, its score


@dataclass
class Progress:
    """The losses of the steps so far, the looks, and the region of the best one."""

    losses: list[float] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    best: Region | None = None

    @property
    def step(self) -> int:
        """How many steps are done."""
        return len(self.losses)

    def look(self, region: Region, score: float) -> None:
        """Note the score of this step's region; the first of the best ones is kept."""
        if not math.isfinite(score):
            raise RunError(f"the score is {score} at step {self.step}: regions can only be compared by finite numbers")
        if all(score > earlier for _, _, earlier in self.looks):
            self.best = region
        self.looks.append((self.step, len(region), score))

    def is_stale(self, patience: int | None) -> bool:
        """Whether so many looks brought nothing better."""
        scores = [score for _, _, score in self.looks]
        return patience is not None and bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= patience

    def save(self, snapshot: Snapshot, s: Mapping[str, Tensor]) -> None:
        """Keep it in the snapshot, with S."""
        arrays = {f"s/{name}": as_numpy(tensor) for name, tensor in s.items()}
        arrays |= {f"best/{name}": at for name, at in self.best.sites.items()} if self.best is not None else {}
        snapshot.write(arrays, {"losses": self.losses, "looks": self.looks, "best": self.best is not None})

    @classmethod
    def load(cls, snapshot: Snapshot, s: Mapping[str, Tensor], scope: Scope) -> Progress | None:
        """The progress of an earlier search with the same settings, S put in place; None if there is none."""
        found = snapshot.read()
        if found is None:
            return None
        file, facts = found
        sites = {}
        with torch.no_grad():
            for key in file.entries:
                kind, _, name = key.partition("/")
                if kind == "s":
                    s[name].copy_(as_torch(file.read(key)))
                else:
                    sites[name] = file.read(key).copy()
        best = Region(scope, sites) if facts["best"] else None
        return cls(facts["losses"], [(step, entries, score) for step, entries, score in facts["looks"]], best)
