"""Steps of task arithmetic: choose a task's vector among learning rates, combine tasks' vectors at the scale that validation
rows choose, take one task's away.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft import graft_file
from skillgraft.errors import InputError
from skillgraft.graft import Graft
from skillgraft.ledger import LEDGER
from skillgraft.reproduce.jobs.artefacts import GRAFT, MODEL, Needs, change_of, write_facts
from skillgraft.reproduce.jobs.job import Job, no_tokens, say_tokens
from skillgraft.tasks import load_task
from skillgraft.weight_files import read_json

# Validation scores are fractions of whole rows: 0.81 − 0.01 must reach 0.80, whatever the last bit.
_ROUNDING = 1e-9


def best(out: Path, needs: Needs, *, task: str, within: float = 0.0) -> None:
    """Of models tuned with several learning rates the one that P2's comparison takes; needs are learning rate → tuned model.

    It is the one with the smallest learning rate whose validation score lies at most `within` below the best: larger steps
    than a skill needs spoil its vector. The model's files are linked, not copied.
    """
    scores = {lr: _validation_score(step, load_task(task).name) for lr, step in needs.items()}
    enough = [lr for lr, score in scores.items() if score >= max(scores.values()) - within - _ROUNDING]
    chosen = min(enough, key=float)
    shutil.rmtree(out / MODEL, ignore_errors=True)  # what a killed run left
    shutil.copytree(needs[chosen] / MODEL, out / MODEL, copy_function=os.link)
    write_facts(out, lr=float(chosen), validation=scores)


def _validation_score(step: Path, task: str) -> float:
    found = read_json(step / MODEL / LEDGER)["made"]["validation"]
    if task not in found:
        raise InputError(
            f"a learning rate is chosen on validation rows, but task {task!r} has none left: train on fewer rows"
        )
    return float(found[task])


def add(
    out: Path,
    needs: Needs,
    *,
    base: str,
    tasks: Sequence[str],
    rule: str = "sum",
    options: Mapping[str, Any] | None = None,
    **bench: Any,
) -> None:
    """Combine the changes of several tasks by a rule; needs are a task's name → its graft or tuned model.

    The scale is the best of 21 on validation, by accuracy over that of each task's own change alone (P2, addition).
    """
    from skillgraft.compose.bench import Workbench
    from skillgraft.compose.rules import combine
    from skillgraft.compose.scales import search_scale, single_scores

    place = Workbench.open(base, tasks, **bench)
    changes = {name: change(needs[name], base) for name in place.tasks}
    together = combine(list(changes.values()), rule=rule, **(options or {}))
    search = search_scale(place, together, singles=single_scores(place, changes))
    graft_file.save((search.scale * together).with_info(scores=None), out / GRAFT, overwrite=True)
    write_facts(out, **search.as_json())


def negate(
    out: Path, needs: Needs, *, base: str, task: str, tasks: Sequence[str], keep: float = 0.95, **bench: Any
) -> None:
    """Take a task's change away from the base as far as the control `tasks` bear it (P2, negation); perhaps nothing of it."""
    from skillgraft.compose.bench import Workbench
    from skillgraft.compose.forgetting import forget

    place = Workbench.open(base, [task, *tasks], **bench)
    target, *controls = place.tasks
    found = forget(place, change(needs["change"], base), target=target, controls=controls, keep=keep, or_base=True)
    graft_file.save(found.graft, out / GRAFT, overwrite=True)
    write_facts(out, **found.as_json())


def change(step: Path, base: str) -> Graft:
    """What a step changes in the base: its graft, or all of its tuned model's delta. Heads take no part."""
    role = "tuned" if (step / MODEL).exists() else "graft"
    return change_of({role: step}, base).without_heads()


def _search_tokens(settings: Mapping[str, Any]) -> float:
    """21 points, each over every task's rows; of a linearised model the base and one slope, which costs about two passes."""
    many = len(settings["tasks"]) + ("task" in settings)
    passes = 3 if settings.get("linear") else 21
    return passes * many * say_tokens({"rows": 200, **settings})


JOBS: Mapping[str, Job] = MappingProxyType(
    {
        "best": Job(best, no_tokens),
        "add": Job(add, _search_tokens),
        "negate": Job(negate, _search_tokens),
    }
)
