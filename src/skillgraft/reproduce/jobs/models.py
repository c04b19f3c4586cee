"""Steps that make models, regions and grafts of one task: tune, localize, nested, base-region, cut."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft import graft_file
from skillgraft.extraction import extract
from skillgraft.movement import count_of
from skillgraft.reproduce.jobs.artefacts import (
    GRAFT,
    MODEL,
    REGION,
    Needs,
    model_of,
    region_file,
    region_of,
    write_facts,
)
from skillgraft.reproduce.jobs.job import Job, no_tokens, search_tokens, tune_tokens
from skillgraft.tasks import load_task
from skillgraft.tasks.splits import training_pool

TRAINED_ON = 0.95  # of the rows, where all are taken: a twentieth validates (P1 B.2)


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
    rows = counted(tasks[0], data)
    finetune(begin, tasks, out / MODEL, plan=Plan(**plan), checkpoint_every=checkpoint_every, **rows, **regions)


def localize(
    out: Path, needs: Needs, *, base: str, task: str, data: Mapping[str, Any], checkpoint: str = "", **options: Any
) -> None:
    """Find a task's region in a tuned model and cut the graft; `start` may be another step's region.

    With reference="zero" it leaves the region alone: what is 0 outside it is no graft.
    """
    from skillgraft.localize.skill import Rows, localize_skill

    if "start" in needs:
        options["start"] = region_file(needs["start"])
    if not (out / GRAFT).exists():  # it resumes, and then the graft is its last file
        rows = Rows(**counted(task, data))
        localize_skill(base, model_of(needs["tuned"], checkpoint), task, data=rows, out=out / GRAFT, **options)
    if options.get("reference") == "zero":
        region_alone(out)


def nested(
    out: Path,
    needs: Needs,
    *,
    base: str,
    task: str,
    data: Mapping[str, Any],
    budgets: list[float],
    start: float,
    steps: int,
) -> None:
    """Grafts of several budgets from one search, each a prefix of the next: graft-BUDGET.safetensors."""
    from skillgraft.localize.methods import learned
    from skillgraft.localize.workplace import Rows, open_workplace

    with open_workplace(base, model_of(needs["tuned"]), task, data=Rows(**data)) as place:
        counts = {budget: count_of(budget, place.problem.scope) for budget in budgets}
        most = max(counts.values())
        found = learned(place.problem, place.start(start), most=most, steps=steps)
        for budget, count in counts.items():
            graft_file.save(place.cut(found.ranking.top(count)), out / _nested_file(budget), overwrite=True)


def pick(out: Path, needs: Needs, *, budget: float) -> None:
    """One graft of a nested search, as a step of its own."""
    shutil.copyfile(needs["nested"] / _nested_file(budget), out / GRAFT)


def _nested_file(budget: float) -> str:
    return f"graft-{budget:g}.safetensors"


def region_alone(out: Path) -> None:
    """Keep the region of a graft and not its numbers."""
    graft = graft_file.load(out / GRAFT)
    graft_file.save_region(
        graft.region, out / REGION, base_fingerprint=graft.base_fingerprint, info=graft.info, overwrite=True
    )
    (out / GRAFT).unlink()


def base_region(out: Path, _needs: Needs, *, base: str, task: str, data: Mapping[str, Any], **options: Any) -> None:
    """A region of the base alone (lowest and highest Fisher, …)."""
    from skillgraft.localize.from_base import localize_base
    from skillgraft.localize.skill import Rows

    sensed, fingerprint, info = localize_base(base, task, data=Rows(**data), **options)
    graft_file.save_region(sensed.region, out / REGION, base_fingerprint=fingerprint, info=info, overwrite=True)
    write_facts(out, **sensed.facts)


def cut(
    out: Path,
    needs: Needs,
    *,
    base: str,
    budget: float | None = None,
    scope: str = "layers",
    checkpoint: str = "",
) -> None:
    """The graft of a tuned model in a region (or in the entries of the scope that moved most)."""
    where: dict[str, Any] = {"budget": budget, "scope": scope}
    if "region" in needs:
        where = {"region": region_of(needs["region"])}
    graft_file.save(extract(base, model_of(needs["tuned"], checkpoint), **where), out / GRAFT, overwrite=True)


def counted(task: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Data settings as the library takes them: `most` rows per class, as far as there are, become a number of rows."""
    given = dict(data)
    most = given.pop("most", None)
    if most is None:
        return given
    pool = training_pool(load_task(task))
    limit = most * max(1, len(pool.label_names))
    return {**given, "rows": max(1, int(TRAINED_ON * min(len(pool), limit)))}


JOBS: Mapping[str, Job] = MappingProxyType(
    {
        "tune": Job(tune, tune_tokens),
        "localize": Job(localize, search_tokens),
        "base-region": Job(base_region, search_tokens),
        "nested": Job(nested, search_tokens),
        "pick": Job(pick, no_tokens),
        "cut": Job(cut, no_tokens),
    }
)
