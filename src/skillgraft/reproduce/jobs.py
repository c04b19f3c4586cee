"""The kinds of work that recipes are made of: one table, each row a short function over the library.

A job fills a folder from its settings and from the folders of the steps it needs. It may be killed at any time: it is
called again with what it left.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft import graft_file
from skillgraft.errors import InputError, did_you_mean
from skillgraft.extraction import extract
from skillgraft.graft import Graft
from skillgraft.region import Region

MODEL, GRAFT, REGION, SAID, FACTS = "model", "graft.safetensors", "region.safetensors", "said.npz", "facts.json"
Needs = Mapping[str, Path]
# Seconds per token and million entries of a model's layers, forward and backward, on two cores; a forward pass is a third.
SECONDS = 7.5e-5


@dataclass(frozen=True)
class Job:
    """How a kind of step runs, and how many tokens it takes forward and backward (for an estimate of its time).

    `version` is raised when the same settings come to mean other numbers: what older versions made is made anew.
    """

    run: Callable[..., None]
    tokens: Callable[[Mapping[str, Any]], float]
    version: int = 1


def tune(
    out: Path,
    needs: Needs,
    *,
    base: str,
    tasks: list[str],
    plan: Mapping[str, Any],
    checkpoint_every: int | None = None,
    **data: Any,
) -> None:
    """Fine-tune; `only` and `outside` are regions, `start` a model to go on from."""
    from skillgraft.training.finetune import finetune
    from skillgraft.training.plan import Plan

    if (out / MODEL).exists():  # killed after the last file
        return
    regions: dict[str, Any] = {role: region_of(needs[role]) for role in ("only", "outside") if role in needs}
    begin = needs["start"] / MODEL if "start" in needs else base
    finetune(begin, tasks, out / MODEL, plan=Plan(**plan), checkpoint_every=checkpoint_every, **data, **regions)


def localize(
    out: Path, needs: Needs, *, base: str, task: str, data: Mapping[str, Any], checkpoint: str = "", **options: Any
) -> None:
    """Find a task's region in a tuned model and cut the graft; `start` may be another step's region."""
    from skillgraft.localize.skill import Rows, localize_skill

    if "start" in needs:
        options["start"] = needs["start"] / (REGION if (needs["start"] / REGION).exists() else GRAFT)
    located = localize_skill(base, model_of(needs["tuned"], checkpoint), task, data=Rows(**data), **options)
    graft_file.save(located.graft, out / GRAFT, overwrite=True)
    write_facts(out, curve=list(located.curve))


def base_region(out: Path, _needs: Needs, *, base: str, task: str, data: Mapping[str, Any], **options: Any) -> None:
    """A region of the base alone (lowest and highest Fisher, …)."""
    from skillgraft.localize.from_base import localize_base
    from skillgraft.localize.skill import Rows

    sensed, fingerprint, info = localize_base(base, task, data=Rows(**data), **options)
    graft_file.save_region(sensed.region, out / REGION, base_fingerprint=fingerprint, info=info, overwrite=True)
    write_facts(out, **sensed.facts)


def cut(out: Path, needs: Needs, *, base: str, budget: float | None = None, checkpoint: str = "") -> None:
    """The graft of a tuned model in a region (or in the entries that moved most)."""
    region = {"region": region_of(needs["region"])} if "region" in needs else {"budget": budget}
    graft_file.save(extract(base, model_of(needs["tuned"], checkpoint), **region), out / GRAFT, overwrite=True)


def say(
    out: Path, needs: Needs, *, base: str, task: str, scale: float = 1.0, checkpoint: str = "", **rows: Any
) -> None:
    """What base, a tuned model or a graft on the base says about a task's rows."""
    from skillgraft.measure.evaluate import evaluate

    name = next(iter(needs), "base")
    grafts, tuned = {}, {}
    if "graft" in needs or scale != 1.0:
        grafts[name] = scale * change_of(needs, base, checkpoint)
    elif "tuned" in needs:
        tuned[name] = model_of(needs["tuned"], checkpoint)
    found = evaluate(base, [task], tuned=tuned, grafts=grafts, with_base=not needs, **rows)
    (said,) = found.said.values()
    said[name].save(out / SAID)


def change_of(needs: Needs, base: str, checkpoint: str = "") -> Graft:
    """The graft that a step made, or all that its tuned model changes."""
    if "graft" in needs:
        return graft_file.load(needs["graft"] / GRAFT)
    return extract(base, model_of(needs["tuned"], checkpoint))


def model_of(step: Path, checkpoint: str = "") -> Path:
    """A tuning step's model, or one of its checkpoints."""
    return step / f"{MODEL}.steps" / checkpoint if checkpoint else step / MODEL


def region_of(step: Path) -> Region:
    """The region that a step found, or that of its graft."""
    path = step / REGION
    return graft_file.load_region(path if path.exists() else step / GRAFT)


def write_facts(out: Path, **facts: Any) -> None:
    (out / FACTS).write_text(json.dumps(facts, default=float) + "\n", encoding="utf-8")


def read_facts(step: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((step / FACTS).read_text(encoding="utf-8"))
    return found


def _tune_tokens(settings: Mapping[str, Any]) -> float:
    plan = settings["plan"]
    return float(plan["steps"] * plan["batch_size"] * _length(settings))


def _search_tokens(settings: Mapping[str, Any]) -> float:
    data = settings["data"]
    rows = min(data.get("batch_size", 1024), data.get("rows") or 2 * (data.get("shots") or 512))
    return float(settings.get("steps", 1)) * rows * _length(data) * 1.25


def _say_tokens(settings: Mapping[str, Any]) -> float:
    return float(settings.get("rows") or 1000) * _length(settings) / 3


def _length(settings: Mapping[str, Any]) -> float:
    return 0.5 * (settings.get("max_length") or 128)  # rows are about half as long as they may be


JOBS: Mapping[str, Job] = MappingProxyType(
    {
        "tune": Job(tune, _tune_tokens),
        "localize": Job(localize, _search_tokens),
        "base-region": Job(base_region, _search_tokens),
        "cut": Job(cut, lambda _settings: 0.0),
        "say": Job(say, _say_tokens),
    }
)


def job(name: str) -> Job:
    """A job by name."""
    if name not in JOBS:
        raise InputError(f"unknown job {name!r}; {did_you_mean(name, JOBS)}")
    return JOBS[name]
