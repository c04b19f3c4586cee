"""LoTA, P2's comparison: where a first fine-tune moved the most, a second one trains again from the base.

    finetune("MiniLM", ["sst2"], "first", plan=plan)
    lota("MiniLM", "first", ["sst2"], "second", density=0.1, plan=plan)

On the command line: `localize BASE FIRST --method movement --budget 0.1`, then `finetune BASE --only` that graft.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skillgraft.checkpoint import Checkpoint
from skillgraft.extraction import open_tuned
from skillgraft.movement import most_moved
from skillgraft.region import Region, Scope
from skillgraft.tasks import Task
from skillgraft.training.finetune import Tuned, finetune


def lota_region(base: str | Path, first: str | Path, *, density: float = 0.1, scope: str = "layers") -> Region:
    """The entries that a first fine-tune (a folder or LoRA adapter) moved the most: 10 % of the scope, as in P2."""
    source = Checkpoint.open(base)
    return most_moved(source, open_tuned(Path(first), source), Scope.select(scope, source.shapes), density)


def lota(
    base: str | Path,
    first: str | Path,
    tasks: Sequence[str | Path | Task],
    out: str | Path,
    *,
    density: float = 0.1,
    scope: str = "layers",
    **training: Any,
) -> Tuned:
    """Fine-tune the base again, inside `lota_region` alone. `training` has the keywords of `finetune`.

    Law: the same as `finetune(base, tasks, out, only=lota_region(base, first), **training)`.
    """
    return finetune(base, tasks, out, only=lota_region(base, first, density=density, scope=scope), **training)
