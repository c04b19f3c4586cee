"""Regions that need no tuned model: from the base's numbers alone, or from how sensitive a task's answers are to them.

    region = choose_region("MiniLM", task="sst2", method="lowest-fisher", data=Data(train_rows=256))
    region = choose_region("MiniLM", method="random-region", density=0.1)

`BASE_METHODS` is the table. To add a method: write it with the keywords `scope` and `density`, add its row.

`p2_methods` has P2's training methods side by side: full, linearised, LoRA, and inside a random, a LoTA or a TaLoS region. LoTA
trains again from the base, where a first fine-tune moved the most. On the command line: `extract BASE FIRST --density 0.1`, then
`finetune BASE --inside` that graft.

    methods = p2_methods("MiniLM", "sst2", plan=TrainingPlan(optimizer="adamw", lr=5e-5), data=Data(train_rows=256))
    training_costs("MiniLM", "sst2", methods)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError, did_you_mean
from skillgraft.folders.checkpoint import Checkpoint, Tensors
from skillgraft.folders.extract import extract
from skillgraft.folders.movement import check_budget, count_of
from skillgraft.opening.device import working_format
from skillgraft.opening.runtime import Runtime
from skillgraft.regions.fisher import Averaging
from skillgraft.regions.ranking import Ranking
from skillgraft.regions.sensitivity import DENSITY, Sensed, least_sensitive, most_sensitive, share_of
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data, TaskLike
from skillgraft.training.costs import Setup
from skillgraft.training.finetune import Tuned, finetune
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.info import Info, versions
from skillgraft.values.numbers import widen
from skillgraft.values.region import Region, Scope

Array = npt.NDArray[np.floating[Any]]


def highest_magnitude(base: Tensors, *, scope: str = "layers", density: float = DENSITY) -> Sensed:
    """The entries with the largest |base|; of equal ones the first by name and index."""
    return _best(base, scope, density, lambda name: _sizes(base, name))


def lowest_magnitude(base: Tensors, *, scope: str = "layers", density: float = DENSITY) -> Sensed:
    """The entries with the smallest |base|; of equal ones the first by name and index."""
    return _best(base, scope, density, lambda name: -_sizes(base, name))


def random_region(base: Tensors, *, scope: str = "layers", density: float = DENSITY, seed: int = 0) -> Sensed:
    """Entries drawn at random, all with the same chance; the same under a seed."""
    draw = np.random.default_rng(seed)
    return _best(base, scope, density, lambda name: draw.random(base.shapes[name]))


def _best(base: Tensors, scope: str, density: float, score: Callable[[str], Array]) -> Sensed:
    chosen = Scope.select(scope, base.shapes)
    count = share_of(chosen, density)
    return Sensed(Ranking(chosen, score, lambda name: np.zeros(chosen.shapes[name], np.float32), most=count).top(count))


def _sizes(base: Tensors, name: str) -> Array:
    numbers = base.flat(name)
    return np.abs(numbers if numbers.dtype == np.float64 else widen(numbers))


@dataclass(frozen=True)
class BaseMethod:
    """A method that chooses a region of the base: a function of its folder, or of its model, a readout and encoded rows."""

    choose: Callable[..., Sensed]
    reads_rows: bool

    @property
    def options(self) -> list[str]:
        """The keywords that it takes."""
        taken = inspect.signature(self.choose).parameters.values()
        own = [each.name for each in taken if each.kind is inspect.Parameter.KEYWORD_ONLY and each.name != "processes"]
        return [*own, *Averaging.__annotations__] if self.reads_rows else own


BASE_METHODS: Mapping[str, BaseMethod] = MappingProxyType(
    {
        "lowest-fisher": BaseMethod(least_sensitive, reads_rows=True),
        "highest-fisher": BaseMethod(most_sensitive, reads_rows=True),
        "lowest-magnitude": BaseMethod(lowest_magnitude, reads_rows=False),
        "highest-magnitude": BaseMethod(highest_magnitude, reads_rows=False),
        "random-region": BaseMethod(random_region, reads_rows=False),
    }
)


@dataclass(frozen=True)
class ChosenRegion:
    """A region of the base, facts about how it was chosen, and what its file records."""

    region: Region
    facts: Mapping[str, Any] = field(default_factory=dict)
    base_fingerprint: str = ""
    info: Info = field(default_factory=Info)


def choose_region(base: str | Path, **asked: Any) -> Region:
    """The region alone; the keywords are those of `choose`."""
    return choose(base, **asked).region


def choose(
    base: str | Path,
    *,
    task: TaskLike | None = None,
    method: str = "lowest-fisher",
    scope: str = "layers",
    density: float | None = None,
    entries: int | None = None,
    data: Data = Data(),
    runtime: Runtime = Runtime(),
    **options: Any,
) -> ChosenRegion:
    """A region from the base alone: a tenth of the scope (P2), another `density` of it, or so many `entries`.

    A method that reads no rows needs no task; `data.seed` seeds every method. `options` are the method's own.
    """
    known = _method(method, options)
    check_budget(density, entries)
    source = Checkpoint.open(base)
    chosen = Scope.select(scope, source.shapes)
    share = DENSITY if density is None else density
    if entries is not None:
        share = count_of(chosen, entries=entries) / chosen.size
    asked: dict[str, Any] = {"scope": scope, "density": share}
    asked |= {"seed": data.seed} if "seed" in known.options else {}
    about: dict[str, Any] = {}
    if known.reads_rows:
        found, about = _with_rows(known, source, task, data, runtime, {**asked, **options})
    else:
        found = known.choose(source, **asked, **options)
    drawn = asdict(data) if known.reads_rows else {}
    recipe = {**asked, **drawn, **options, **found.facts}
    info = Info(
        base=source.name, method=method, recipe=recipe, versions=versions(), command=runtime.command or None, **about
    )
    return ChosenRegion(found.region, found.facts, source.fingerprint, info)


def _method(name: str, options: Mapping[str, Any]) -> BaseMethod:
    if name not in BASE_METHODS:
        raise InputError(f"unknown method {name!r} without a tuned model; {did_you_mean(name, BASE_METHODS)}")
    method = BASE_METHODS[name]
    for option in options:
        if option not in method.options:
            raise InputError(f"the method {name!r} takes no {option!r}; {did_you_mean(option, method.options)}")
    return method


def _with_rows(
    method: BaseMethod,
    base: Checkpoint,
    task: TaskLike | None,
    data: Data,
    runtime: Runtime,
    options: Mapping[str, Any],
) -> tuple[Sensed, dict[str, Any]]:
    """The region by a task's training rows, and what the provenance says about the task.

    float16 folders are looked at in float32: squared gradients of a small loss vanish in float16.
    """
    if task is None:
        raise InputError("this method looks at how a task's rows are answered: name the task")
    dtype = working_format(str(base.format), runtime.dtype)
    opened = TaskModel.open(
        base.path, [task], data=data, dtype=dtype, device=runtime.device, splits=("train",), shard=runtime.shard
    )
    (name,) = opened.tasks
    readout = opened.rows.readout(name)
    rows = opened.rows.encoded(name, "train")
    split = {"processes": opened.processes} if opened.processes.split else {}
    found = method.choose(opened.model, readout, rows, **options, **split)
    return found, {"task": name, "readout": dict(readout.settings)}


def p2_methods(
    base: str | Path,
    task: TaskLike,
    *,
    plan: TrainingPlan,
    density: float = DENSITY,
    scope: str = "layers",
    first: str | Path | None = None,
    data: Data = Data(),
) -> dict[str, Setup]:
    """Every method with the same plan, and regions of the same density. LoTA is there if a `first` fine-tune is.

    TaLoS's region is found on the training rows of `data`; its seed draws the random one.
    """
    asked: dict[str, Any] = {"density": density, "scope": scope, "data": data}
    regions = {
        "random": choose_region(base, method="random-region", **asked),
        "talos": choose_region(base, task=task, method="lowest-fisher", **asked),
    }
    if first is not None:
        regions["lota"] = lota_region(base, first, density=density, scope=scope)
    whole = {name: Setup(plan.with_changes(method=name)) for name in ("full", "linear", "lora")}
    return whole | {name: Setup(plan, inside=region) for name, region in regions.items()}


def lota_region(base: str | Path, first: str | Path, *, density: float = DENSITY, scope: str = "layers") -> Region:
    """The entries that a first fine-tune (a folder or LoRA adapter) moved the most: 10 % of the scope, as in P2."""
    return extract(base, first, density=density, scope=scope).region


def lota(
    base: str | Path,
    first: str | Path,
    tasks: Sequence[TaskLike],
    *,
    density: float = DENSITY,
    scope: str = "layers",
    **training: Any,
) -> Tuned:
    """Fine-tune the base again, inside `lota_region` alone. `training` has the keywords of `finetune`.

    Law: the same as `finetune(base, tasks, inside=lota_region(base, first), **training)`.
    """
    return finetune(base, tasks, inside=lota_region(base, first, density=density, scope=scope), **training)
