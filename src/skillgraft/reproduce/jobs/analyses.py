"""Steps that look into how skills share a model, and what training them costs (P2): disentangle, prune, cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft.reproduce.jobs.arithmetic import change
from skillgraft.reproduce.jobs.artefacts import Needs, region_of, write_facts
from skillgraft.reproduce.jobs.job import Job, say_tokens, tune_tokens
from skillgraft.tasks import load_task


def disentangle(
    out: Path, needs: Needs, *, base: str, tasks: Sequence[str], alphas: Sequence[float], **bench: Any
) -> None:
    """ξ over the scales of two tasks' changes (P2 fig. 2); needs are a task's name → its graft or tuned model."""
    from skillgraft.compose.bench import Workbench
    from skillgraft.compose.maps import disentanglement_map

    place = Workbench.open(base, tasks, **bench)
    found = disentanglement_map(place, {name: change(needs[name], base) for name in place.tasks}, alphas=alphas)
    write_facts(out, **found.as_json())


def prune(
    out: Path,
    _needs: Needs,
    *,
    base: str,
    task: str,
    tasks: Sequence[str],
    shares: Sequence[float],
    rows: int | None,
    scope: str,
    data: Mapping[str, Any],
) -> None:
    """Every one of `tasks` without the entries that `task` is least sensitive to, over base (P2 fig. 1)."""
    from skillgraft.localize.pruning import pruning_sensitivity
    from skillgraft.localize.workplace import Rows

    finder = load_task(task).name
    asked: dict[str, Any] = {"found_on": [finder], "shares": shares, "rows": rows, "scope": scope}
    found = pruning_sensitivity(base, tasks, data=Rows(**data), **asked)
    ratios = {
        scored: {f"{share:g}": ratio.as_json() for share, ratio in by_share.items()}
        for scored, by_share in found.ratios[finder].items()
    }
    write_facts(out, found_on=finder, ratios=ratios)


def cost(
    out: Path,
    needs: Needs,
    *,
    base: str,
    task: str,
    plan: Mapping[str, Any],
    ways: Mapping[str, Mapping[str, Any]],
    **options: Any,
) -> None:
    """What a step of each way of training costs, side by side; `ways` change the plan, needs are a way → its region."""
    from skillgraft.training.costs import Way, training_costs
    from skillgraft.training.plan import Plan

    whole = Plan(**plan)
    every = {
        name: Way(whole.with_changes(**changes), only=region_of(needs[name]) if name in needs else None)
        for name, changes in ways.items()
    }
    found = training_costs(base, task, every, **options)
    facts = {each.name: {key: value for key, value in vars(each).items() if key != "name"} for each in found}
    write_facts(out, ways=facts)


def _map_tokens(settings: Mapping[str, Any]) -> float:
    """Each task alone at every scale, both at every pair of scales."""
    points = len(settings["alphas"])
    return 2 * (points + points**2) * say_tokens({"rows": 200, **settings})


def _prune_tokens(settings: Mapping[str, Any]) -> float:
    times = len(settings["tasks"]) * (len(settings["shares"]) + 1)
    return times * say_tokens({"max_length": settings["data"].get("max_length"), **settings})


def _cost_tokens(settings: Mapping[str, Any]) -> float:
    """Ten counted steps of each way, two before them, and two more for the memory."""
    return len(settings["ways"]) * tune_tokens({**settings, "plan": {**settings["plan"], "steps": 14}})


JOBS: Mapping[str, Job] = MappingProxyType(
    {
        "disentangle": Job(disentangle, _map_tokens),
        "prune": Job(prune, _prune_tokens),
        "cost": Job(cost, _cost_tokens),
    }
)
