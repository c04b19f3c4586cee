"""Regions that need no tuned model: a task's rows tell which entries of the base it is least, or most, sensitive to.

sensed, fingerprint = localize_base("MiniLM", "sst2", name="lowest-fisher", data=Rows(rows=256))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft.checkpoint import Checkpoint
from skillgraft.errors import InputError, did_you_mean
from skillgraft.localize.sensitivity import Sensed, least_sensitive, most_sensitive
from skillgraft.localize.skill import Rows
from skillgraft.provenance import Info
from skillgraft.readouts.loading import open_readouts
from skillgraft.tasks import Task, load_task, training_split
from skillgraft.versions import versions

FROM_BASE: Mapping[str, Callable[..., Sensed]] = MappingProxyType(
    {"lowest-fisher": least_sensitive, "highest-fisher": most_sensitive}
)


def localize_base(
    base: str | Path,
    task: str | Path | Task,
    *,
    name: str = "lowest-fisher",
    scope: str = "layers",
    density: float = 0.1,
    data: Rows = Rows(),
    **options: Any,
) -> tuple[Sensed, str, Info]:
    """The region, the base's fingerprint, and the provenance for the region file."""
    if name not in FROM_BASE:
        raise InputError(f"unknown method {name!r} without a tuned model; {did_you_mean(name, FROM_BASE)}")
    loaded = task if isinstance(task, Task) else load_task(task)
    split = training_split(loaded, shots=data.shots, rows=data.rows, seed=data.seed)
    source = Checkpoint.open(base)
    opened = open_readouts(base, [loaded], readout=data.readout, max_length=data.max_length)
    readout = opened.readouts[0]
    rows = readout.encode(split.train)
    sensed = FROM_BASE[name](opened.model, readout, rows, scope=scope, density=density, seed=data.seed, **options)
    plain = {key: value for key, value in options.items() if not callable(value)}
    recipe = {"density": density, "scope": scope, "shots": data.shots, "rows": data.rows, "seed": data.seed, **plain}
    info = Info(
        base=source.name,
        method=name,
        task=loaded.name,
        readout=dict(readout.settings),
        recipe={**recipe, **sensed.facts},
        versions=versions(),
    )
    return sensed, source.fingerprint, info
