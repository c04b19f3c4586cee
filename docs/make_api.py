"""Write docs/api.md from the docstrings: `python docs/make_api.py`. A test tells when it is out of date."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import skillgraft

TARGET = Path(__file__).parent / "api.md"
# What a user of the library reads, from the two values outwards; the rest is how it is done.
MODULES = (
    "values.region", "values.graft", "files.graft_file", "folders.diff", "folders.extract", "folders.apply",
    "live.grafted", "live.bank", "interop.export", "folders.compare", "errors", "tasks.task", "tasks.task_file", "tasks.asking",
    "tasks.data",
    "tasks.examples", "opening.runtime", "task_model", "readouts.readout", "predictions.predictions",
    "measure.evaluate", "measure.metrics", "measure.comparisons", "measure.calibration", "measure.intervals",
    "measure.summary", "measure.matrices", "training.plan", "training.finetune", "regions.localize", "regions.search",
    "regions.live", "regions.choose", "regions.methods", "regions.fisher", "compose.rules", "compose.scales",
    "compose.forgetting", "compose.maps", "compose.multitask", "compose.continual", "report.sheet", "report.page",
    "papers.profile", "papers.steps", "papers.run",
)  # fmt: skip


def page() -> str:
    """The whole page."""
    lines = [
        "# API reference",
        "",
        "Made from the docstrings by `docs/make_api.py`. The names at the top can be imported from `skillgraft` itself;",
        "they are loaded when first used.",
        "",
        "| name | from |",
        "|---|---|",
        *(f"| `{name}` | `{_home(getattr(skillgraft, name))}` |" for name in skillgraft.__all__),
        "",
    ]
    for name in MODULES:
        lines += _module(import_module(f"skillgraft.{name}"))
    return "\n".join(lines).rstrip() + "\n"


def _home(value: Any) -> str:
    return str(value.__module__)


def _module(module: ModuleType) -> list[str]:
    parts = [f"## {module.__name__}", "", *_prose(module), ""]
    for name, value in _public(module):
        parts += [f"### {name}", "", "```python", *_signature(name, value), "```", "", *_prose(value), ""]
        if inspect.isclass(value):
            parts += _methods(value)
    return parts


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Functions and classes that are written in this module, in the order of the file."""
    own = [
        (name, value)
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
        and inspect.getdoc(value)
    ]
    return iter(sorted(own, key=lambda pair: inspect.getsourcelines(pair[1])[1]))


def _methods(owner: type) -> list[str]:
    lines = []
    for name, value in vars(owner).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else getattr(value, "fget", value)
        function = getattr(function, "func", function)  # a cached property
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        kind = "" if inspect.isfunction(value) or isinstance(value, classmethod) else " (property)"
        lines.append(f"- `{name}`{kind}: {_first_line(function)}")
    return [*lines, ""] if lines else []


def _signature(name: str, value: Any) -> list[str]:
    if inspect.isclass(value) and issubclass(value, Exception):
        return [f"class {name}({value.__bases__[0].__name__})"]
    try:
        written = str(inspect.signature(value)).replace("'", "").replace("skillgraft.", "")
        written = re.sub(r"<function (\w+) at 0x\w+>", r"\1", written)
    except ValueError:
        written = "(…)"
    prefix = "class " if inspect.isclass(value) else ""
    one = f"{prefix}{name}{written}"
    if len(one) <= 110:
        return [one]
    inside, _, after = written[1:].rpartition(")")
    return [f"{prefix}{name}(", *(f"    {part}," for part in _split(inside)), f"){after}"]


def _split(arguments: str) -> list[str]:
    """At commas that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(arguments):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(arguments[start:index].strip())
            start = index + 1
    return [*parts, arguments[start:].strip()]


def _prose(value: Any) -> list[str]:
    """A docstring as Markdown: what is set in, is code."""
    return (inspect.getdoc(value) or "").splitlines()


def _first_line(function: Any) -> str:
    return (inspect.getdoc(function) or "").splitlines()[0]


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
