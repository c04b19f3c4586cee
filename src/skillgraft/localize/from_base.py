"""Regions that need no tuned model: from the base's numbers alone, or from how sensitive a task's answers are to them.

    sensed, fingerprint, info = localize_base("MiniLM", "sst2", name="lowest-fisher", data=Rows(rows=256))
    sensed, fingerprint, info = localize_base("MiniLM", name="random-region", density=0.1)

`BASE_METHODS` is the table. To add a method: write it with the keywords `scope` and `density`, add its row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft.checkpoint import Checkpoint
from skillgraft.errors import InputError, did_you_mean
from skillgraft.localize.sensitivity import DENSITY, Sensed, least_sensitive, most_sensitive
from skillgraft.localize.without_data import highest_magnitude, lowest_magnitude, random_region
from skillgraft.localize.workplace import Rows
from skillgraft.movement import count_of
from skillgraft.provenance import Info
from skillgraft.readouts.loading import open_readouts
from skillgraft.region import Scope
from skillgraft.tasks import Task, load_task, training_split
from skillgraft.versions import versions


@dataclass(frozen=True)
class BaseMethod:
    """A way to choose a region of the base: a function of its folder, or of its model, a readout and encoded rows."""

    choose: Callable[..., Sensed]
    reads_rows: bool

    @property
    def options(self) -> list[str]:
        """The keywords that it takes."""
        taken = inspect.signature(self.choose).parameters.values()
        return [each.name for each in taken if each.kind is inspect.Parameter.KEYWORD_ONLY]


BASE_METHODS: Mapping[str, BaseMethod] = MappingProxyType(
    {
        "lowest-fisher": BaseMethod(least_sensitive, reads_rows=True),
        "highest-fisher": BaseMethod(most_sensitive, reads_rows=True),
        "lowest-magnitude": BaseMethod(lowest_magnitude, reads_rows=False),
        "highest-magnitude": BaseMethod(highest_magnitude, reads_rows=False),
        "random-region": BaseMethod(random_region, reads_rows=False),
    }
)


def localize_base(
    base: str | Path,
    task: str | Path | Task | None = None,
    *,
    name: str = "lowest-fisher",
    scope: str = "layers",
    density: float = DENSITY,
    data: Rows = Rows(),
    **options: Any,
) -> tuple[Sensed, str, Info]:
    """The region, the base's fingerprint, and the provenance for the region file.

    `density` up to 1 is a share of the scope, otherwise a count of entries. A method that reads no rows needs no task;
    `data.seed` seeds every method.
    """
    method = _method(name, options)
    source = Checkpoint.open(base)
    asked = {"scope": scope, "density": _share(density, scope, source)}
    if "seed" in method.options:
        asked["seed"] = data.seed
    about: dict[str, Any] = {}
    if method.reads_rows:
        sensed, about = _with_rows(method, base, task, data, {**asked, **options})
    else:
        sensed = method.choose(source, **asked, **options)
    plain = {key: value for key, value in options.items() if not callable(value)}
    drawn = {"shots": data.shots, "rows": data.rows, "seed": data.seed} if method.reads_rows else {}
    recipe = {**asked, **drawn, **plain, **sensed.facts}
    info = Info(base=source.name, method=name, recipe=recipe, versions=versions(), **about)
    return sensed, source.fingerprint, info


def _method(name: str, options: Mapping[str, Any]) -> BaseMethod:
    if name not in BASE_METHODS:
        raise InputError(f"unknown method {name!r} without a tuned model; {did_you_mean(name, BASE_METHODS)}")
    method = BASE_METHODS[name]
    for option in options:
        if option not in method.options:
            raise InputError(f"the method {name!r} takes no {option!r}; {did_you_mean(option, method.options)}")
    return method


def _share(density: float, scope: str, source: Checkpoint) -> float:
    if density <= 1:
        return density
    chosen = Scope.select(scope, source.shapes)
    return count_of(density, chosen) / chosen.size


def _with_rows(
    method: BaseMethod, base: str | Path, task: str | Path | Task | None, data: Rows, options: Mapping[str, Any]
) -> tuple[Sensed, dict[str, Any]]:
    """The region by a task's training rows, and what the provenance says about the task."""
    if task is None:
        raise InputError("this method looks at how a task's rows are answered: name the task")
    loaded = task if isinstance(task, Task) else load_task(task)
    split = training_split(loaded, shots=data.shots, rows=data.rows, seed=data.seed)
    opened = open_readouts(base, [loaded], readout=data.readout, max_length=data.max_length)
    readout = opened.readouts[0]
    sensed = method.choose(opened.model, readout, readout.encode(split.train), **options)
    return sensed, {"task": loaded.name, "readout": dict(readout.settings)}
