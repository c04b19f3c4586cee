"""Fine-tune on one task from a base that has grafts on, with the base's own readout: one more step of a sequence of tasks.

A readout belongs to the base. The frozen text head is made of the base's embeddings of the labels, so training from a folder with
grafts on would aim at other directions than those that every later measurement, which starts from the base, compares with.
Here the base is loaded, its readout made, and only then the grafts are put on.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from skillgraft import atomic
from skillgraft.checkpoint import Checkpoint
from skillgraft.errors import InputError
from skillgraft.graft import Graft
from skillgraft.ledger import LEDGER, Ledger
from skillgraft.live import live_model
from skillgraft.localize.skill import Rows
from skillgraft.readouts.loading import Opened, open_readouts
from skillgraft.region import Region
from skillgraft.tasks import Split, Task, training_split
from skillgraft.training.finetune import check_validation, write_folder
from skillgraft.training.loop import Course, OnStep, train
from skillgraft.training.methods import prepare
from skillgraft.training.plan import Plan
from skillgraft.training.snapshot import Snapshot

METHODS = ("full", "bias")


def tune(
    base: str | Path,
    task: Task,
    out: Path,
    *,
    plan: Plan,
    start: Graft | None = None,
    only: Region | None = None,
    data: Rows = Rows(),
    on_step: OnStep | None = None,
    snapshot_seconds: float = 60.0,
) -> Path:
    """The base with `start` on, trained on the task (inside `only`, if given), as a folder. Without `start` it is `finetune`.

    A folder that an earlier call with the same arguments has finished is taken as it is, one of other arguments is refused;
    a call that was killed goes on where it was.
    """
    if plan.method not in METHODS:
        raise InputError(
            f"a sequence of tasks trains the model itself: method {' or '.join(METHODS)}, not {plan.method!r}"
        )
    split = training_split(task, shots=data.shots, rows=data.rows, seed=data.seed)
    if plan.validate_every:
        check_validation([split], "validate_every looks at validation rows")
    snapshot = Snapshot.beside(out, _settings(base, split, plan, start, only, data))
    if (out / LEDGER).is_file():
        return _finished(out, snapshot.settings)
    atomic.check_target(out)
    accelerator = Accelerator()
    opened = open_readouts(base, [task], readout=data.readout, max_length=data.max_length, seed=plan.seed)
    model = opened.model.to(accelerator.device)
    if start is not None:
        live_model(model).put_on(start)
    readout = opened.readouts[0]
    course = Course(readout, readout.encode(split.train), readout.encode(split.validation))
    train(
        model,
        [course],
        plan,
        prepare(model, plan, only=only).trainables,
        accelerator=accelerator,
        snapshot=snapshot,
        snapshot_seconds=snapshot_seconds,
        on_step=on_step,
    )
    _write(
        opened, out, {"by": "continual", "tasks": [task.name], "plan": plan.as_dict(), "settings": snapshot.settings}
    )
    snapshot.delete()
    return out


def _write(opened: Opened, out: Path, made: Mapping[str, Any]) -> None:
    with atomic.new_folder(out) as folder:
        write_folder(opened, folder, made, None)


def _finished(out: Path, settings: str) -> Path:
    found = Ledger.of(Checkpoint.open(out)).made
    if found.get("settings") != settings:
        raise InputError(f"{out} was made with other settings, rows or base; remove it or choose another folder")
    return out


def _settings(
    base: str | Path, split: Split, plan: Plan, start: Graft | None, only: Region | None, data: Rows
) -> dict[str, Any]:
    """Everything that decides the numbers."""
    return {
        "base": Checkpoint.open(base).fingerprint,
        "rows": (split.train.digest, split.validation.digest),
        "read": (data.readout, data.max_length),
        "plan": plan.as_dict(),
        "start": start.digest if start is not None else None,
        "only": only.digest if only is not None else None,
    }
