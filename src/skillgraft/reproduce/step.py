"""One piece of work: a job by name, its settings, and the steps whose artefacts it needs.

Law: equal content of all inputs gives an equal key, and an equal key the same artefacts; so a step runs once, whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from skillgraft.reproduce.content import content_of, digest
from skillgraft.reproduce.jobs import job


@dataclass(frozen=True, eq=False)
class Step:
    """`settings` are JSON values; `needs` maps the roles that the job knows to earlier steps."""

    job: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: Mapping[str, Step] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """What decides the artefacts: the job and its version, the content of its inputs, the keys of what it needs."""
        settings = {name: content_of(name, value) for name, value in self.settings.items()}
        needs = {role: step.key for role, step in self.needs.items()}
        return digest([self.job, job(self.job).version, settings, needs])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Step) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def title(self) -> str:
        """A few words for people: the job and what tells it from its neighbours."""
        facts = {**self.settings.get("data", {}), **self.settings}
        tasks = [Path(task).stem for task in (*facts.get("tasks", ()), facts.get("task", "")) if task]
        words = [
            str(facts[name]) for name in ("name", "budget", "density", "scale", "checkpoint", "split") if name in facts
        ]
        counts = [f"{facts['shots']} shots"] if facts.get("shots") else []
        counts += [f"seed {facts['seed']}"] if "seed" in facts else []
        roles = [f"of {role}" for role in self.needs]
        return " ".join([self.job, *tasks, *words, *counts, *roles])


def in_order(wanted: Iterable[Step]) -> list[Step]:
    """All steps that are needed, each once, every one after those it needs."""
    found: dict[str, Step] = {}
    for step in wanted:
        _visit(step, found)
    return list(found.values())


def _visit(step: Step, found: dict[str, Step]) -> None:
    if step.key in found:
        return
    for needed in step.needs.values():
        _visit(needed, found)
    found[step.key] = step
