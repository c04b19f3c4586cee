"""Steps: calls of library functions whose results are kept, and found again by the content of their arguments.

    tuned = Step(finetune, {"base": "MiniLM", "tasks": ["sst2"], "plan": plan, "data": data})
    graft = Step(localize, {"base": "MiniLM", "tuned": tuned, "task": "sst2", "density": 1e-4, "data": data})
    answer = Step(ask, {"base": "MiniLM", "task": "sst2", "graft": graft})

An argument is plain JSON, a frozen value (TrainingPlan, Data, Region …), another step, or a `Part` of one: these are
replaced by results when the step runs.

Law: equal content of all arguments gives an equal key, and an equal key the same result; so a step runs once, whoever asks.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.tasks import Task, load_task
from skillgraft.tasks.sources import origin_of, source_path
from skillgraft.tasks.task import AS
from skillgraft.tasks.task_file import definition
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region, Scope
from skillgraft.values.strict_json import canonical

# Raised for a function, by name, when the same arguments come to mean other numbers (a default of a plan, too): older
# results are made anew.
VERSIONS: Mapping[str, int] = MappingProxyType(
    {"combine": 2, "forget": 2, "localize": 2, "purified": 2, "search_scale": 2, "task_regions": 2, "ticket_region": 2}
)
# The files of a model folder, besides its numbers, that decide what it answers.
_SMALL = (".json", ".txt", ".model", ".jinja")


@dataclass(frozen=True, eq=False)
class Step:
    """One call: a function of the library, or of `calls`, and its keyword arguments. `out` and `reuse` are added at run time."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        signature_of(self.function).bind_partial(**self.arguments)  # a misspelt keyword is known before anything runs

    @cached_property
    def key(self) -> str:
        """What decides the result: the function and its version, and the content of its arguments."""
        content = {name: _argument(name, value) for name, value in self.arguments.items()}
        return digest([self.name, VERSIONS.get(self.name, 1), content])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Step) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def name(self) -> str:
        return self.function.__name__

    @cached_property
    def needs(self) -> tuple[Step, ...]:
        """The steps whose results are among the arguments."""
        return tuple(dict.fromkeys(steps_in(self.arguments)))

    @property
    def region(self) -> Part:
        """The region of its graft, read without the graft's numbers."""
        return Part(self, "region")

    @property
    def facts(self) -> Part:
        """The plain facts that stand beside a model or a region."""
        return Part(self, "facts")

    @property
    def recipe(self) -> Part:
        """What its graft records about how it was made, read without the graft's numbers."""
        return Part(self, "recipe")

    def checkpoint(self, name: str) -> Part:
        """A checkpoint of a fine-tune: `step-000010`."""
        return Part(self, "checkpoint", name)

    def at(self, density: float) -> Part:
        """The graft of one density of a search over several."""
        return Part(self, "density", f"{density:g}")

    def __getitem__(self, name: str) -> Part:
        """One of several grafts that go by name."""
        return Part(self, "item", name)

    @property
    def title(self) -> str:
        """A few words for people: the function and what tells this call from its neighbours."""
        given = self.arguments
        tasks = [*given.get("tasks", ()), *([given["task"]] if given.get("task") else [])]
        words = [str(given[name]) for name in ("method", "density", "scale", "rule", "split") if name in given]
        shots, seed = (getattr(given.get("data"), name, None) for name in ("shots", "seed"))
        counts = [f"{shots} shots"] * bool(shots) + [f"seed {seed}"] * (seed is not None)
        roles = [f"of {name}" for name, value in given.items() if any(steps_in(value))]
        return " ".join([self.name, *map(_stem, tasks), *words, *counts, *roles])


def _stem(task: Any) -> str:
    return AS.join(Path(name).stem for name in str(task).split(AS))


@dataclass(frozen=True)
class Part:
    """A part of a step's result: `name` is a row of `run.PARTS`, `of` says which one where there are several."""

    step: Step
    name: str
    of: str = ""


Asked = Step | Part


def steps_in(value: Any) -> Iterator[Step]:
    """All steps in a value, however deep."""
    if isinstance(value, Step | Part):
        yield value.step if isinstance(value, Part) else value
    for inner in _inside(value):
        yield from steps_in(inner)


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return _values(value).values() if _is_value(value) else value if isinstance(value, list | tuple) else ()


def resolved(value: Any, read: Callable[[Step | Part], Any]) -> Any:
    """The value with results in place of steps and parts."""
    if isinstance(value, Step | Part):
        return read(value)
    if not any(steps_in(value)):
        return value
    if isinstance(value, Mapping):
        return {name: resolved(inner, read) for name, inner in value.items()}
    if _is_value(value):
        return replace(value, **{name: resolved(inner, read) for name, inner in _values(value).items()})
    return [resolved(inner, read) for inner in value]


def in_order(wanted: Iterable[Step | Part]) -> list[Step]:
    """All steps that are needed, each once, every one after those it needs."""
    found: dict[str, Step] = {}

    def visit(step: Step) -> None:
        if step.key not in found:
            for needed in step.needs:
                visit(needed)
            found[step.key] = step

    for step in steps_in(list(wanted)):
        visit(step)
    return list(found.values())


@lru_cache(maxsize=256)
def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def digest(value: Any) -> str:
    """SHA-256 of a JSON value."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def _argument(name: str, value: Any) -> Any:
    """An argument as it enters a key: bases and tasks by what is in them, everything else as it is."""
    known = _BY_CONTENT.get(name)
    if known is None or value is None or isinstance(value, Step | Part):
        return content(value)
    return [known(each) for each in value] if isinstance(value, list | tuple) else known(value)


def content(value: Any) -> Any:
    """A value as JSON that is equal exactly where the values are. Nested names keep their order, which may matter."""
    if isinstance(value, Step | Part):
        return ["step", value.key] if isinstance(value, Step) else ["part", value.step.key, value.name, value.of]
    if isinstance(value, Region | Graft):
        scope = value.scope if isinstance(value, Region) else value.region.scope
        return [type(value).__name__, value.digest, scope.label]
    if isinstance(value, Task):
        return _task_content(value)
    if isinstance(value, Mapping):
        return [[name, content(inner)] for name, inner in value.items()]
    if _is_value(value):
        # Only what differs from its default: a value that gets one more field keeps its key.
        defaults = _defaults(type(value))
        chosen = {name: inner for name, inner in _values(value).items() if inner != defaults.get(name, _NONE)}
        return [type(value).__name__, {name: content(inner) for name, inner in chosen.items()}]
    if isinstance(value, list | tuple):
        return [content(inner) for inner in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise InputError(
        f"a step's argument is plain JSON, a frozen value or a step; found {type(value).__name__}: {value}"
    )


def plain(value: Any) -> Any:
    """A value as JSON for people and records; steps go by their keys."""
    if isinstance(value, Step | Part):
        return (
            f"{value.name} {value.key}"
            if isinstance(value, Step)
            else f"{value.name} {value.of} of {plain(value.step)}"
        )
    if hasattr(value, "as_json"):
        return value.as_json()
    if isinstance(value, Mapping):
        return {str(name): plain(inner) for name, inner in value.items()}
    if _is_value(value):
        return {name: plain(inner) for name, inner in _values(value).items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _is_value(value: Any) -> bool:
    """Whether it is a frozen value of plain fields (Data, TrainingPlan, Setup …)."""
    opaque = isinstance(value, Step | Part | Region | Graft | type)
    return is_dataclass(value) and not opaque


def _values(value: Any) -> dict[str, Any]:
    return {each.name: getattr(value, each.name) for each in fields(value)}


_NONE = object()


def _defaults(kind: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in fields(kind):
        if each.default is not MISSING:
            found[each.name] = each.default
        elif each.default_factory is not MISSING:
            found[each.name] = each.default_factory()
    return found


@lru_cache(maxsize=64)
def base_content(base: str) -> str:
    """A model folder by all its numbers and its small files."""
    folder = Path(base)
    small = sorted(file for file in folder.rglob("*") if file.suffix in _SMALL and file.is_file())
    return digest([Checkpoint.open(folder).digest, [[str(file.relative_to(folder)), _bytes(file)] for file in small]])


@lru_cache(maxsize=64)
def scope_of(base: str) -> Scope:
    """The layers of a model folder, from its headers."""
    return Scope.select("layers", Checkpoint.open(base).shapes)


@lru_cache(maxsize=256)
def task_of(name: str) -> Task:
    """A task by its name or file, read once: recipes ask for it a thousand times."""
    return load_task(name)


@lru_cache(maxsize=256)
def task_content(name: str) -> str:
    """A task by its definition and the bytes of its sources; a public dataset by its name.

    A task whose data are not here has a content too: its steps fail when they run, with the reason, and nothing is kept.
    """
    return _task_content(task_of(name))


def _task_content(task: Task) -> str:
    try:
        origin = origin_of(task)
    except InputError:
        return digest(["not here", task.name])
    sources = [*origin.train, *origin.test, *origin.validation]
    return digest([definition(replace(task, data=origin, hub=None)), [_source(source) for source in sources]])


def _source(source: str) -> str:
    if source.startswith("hf:"):
        return source
    path = source_path(source)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return digest([[file.name, _bytes(file)] for file in files])


def _bytes(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _by_name(task: str | Path | Task) -> str:
    return _task_content(task) if isinstance(task, Task) else task_content(str(task))


# Arguments that name what lies on a disk.
_BY_CONTENT: Mapping[str, Callable[[Any], str]] = MappingProxyType(
    {"base": lambda base: base_content(str(base)), "task": _by_name, "tasks": _by_name, "controls": _by_name}
)
