"""Fine-tune a model folder on tasks and write a normal model folder: loadable without skillgraft, with its provenance.

    finetune("MiniLM", ["sst2"], "tuned", shots=64, plan=Plan(lr=0.02, batch_size=16, steps=200))

Data, region and settings are checked before the model is loaded. Killed and started again with the same arguments, it goes on
where it was and ends with the same numbers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from skillgraft import atomic
from skillgraft.bottleneck import Adapters
from skillgraft.checkpoint import Checkpoint
from skillgraft.errors import InputError
from skillgraft.ledger import LEDGER, UNDO, Ledger
from skillgraft.measure.metrics import METRICS
from skillgraft.measure.predict import predict
from skillgraft.readouts.loading import Opened, open_readouts
from skillgraft.readouts.readout import Readout
from skillgraft.readouts.source import silence
from skillgraft.region import Region
from skillgraft.tasks import Split, Task, load_task, training_split
from skillgraft.training.adapters import merge_lora
from skillgraft.training.loop import Course, OnStep, Scorer, train
from skillgraft.training.methods import prepare
from skillgraft.training.plan import Plan
from skillgraft.training.snapshot import Snapshot
from skillgraft.versions import versions
from skillgraft.weight_files import ADAPTER, INDEX, other_weights

LOG = "training.jsonl"  # one line per step


@dataclass(frozen=True)
class Tuned:
    """What a run gave: the folder, how many numbers were trained, its log, and validation scores by task."""

    path: Path
    readout: str
    trained: int
    steps: int
    log: tuple[Mapping[str, Any], ...]
    validation: Mapping[str, float]


def finetune(
    base: str | Path,
    tasks: Sequence[str | Path | Task],
    out: str | Path,
    *,
    plan: Plan | None = None,
    shots: int | None = None,
    rows: int | None = None,
    seed: int = 0,
    readout: str = "auto",
    max_length: int | None = None,
    only: Region | None = None,
    outside: Region | None = None,
    checkpoint_every: int | None = None,
    snapshot_seconds: float = 60.0,
    command: str = "",
    on_step: OnStep | None = None,
) -> Tuned:
    """Train on one task or on a mixture of several; see the module's docstring. `seed` draws the rows, `plan.seed` the run."""
    plan = plan or Plan()
    target = Path(out)
    accelerator = Accelerator()
    if accelerator.is_main_process:
        atomic.check_target(target)
    if accelerator.mixed_precision == "fp16":
        raise InputError("mixed precision fp16 needs a scaled loss, which this loop does not have; use bf16")
    if only is not None and outside is not None:
        raise InputError("train only inside a region or outside it, not both")
    if plan.method == "lora" and checkpoint_every:
        raise InputError(
            "a LoRA run is merged at its end: it has no checkpoints on the way; leave out checkpoint_every"
        )
    loaded = [task if isinstance(task, Task) else load_task(task) for task in tasks]
    splits = [training_split(task, shots=shots, rows=rows, seed=seed) for task in loaded]
    if plan.validate_every:
        check_validation(splits, "validate_every looks at validation rows")
    # Forward-mode derivatives need the plain attention kernel.
    attention = "eager" if plan.method == "linear" else "sdpa"
    opened = open_readouts(base, loaded, readout=readout, max_length=max_length, attention=attention, seed=plan.seed)
    model = opened.model.to(accelerator.device)
    trainables, scores, adapters = prepare(model, plan, only=only, outside=outside, read_heads=opened.reads_heads)
    courses = [_course(one, split) for one, split in zip(opened.readouts, splits, strict=True)]
    settings = _settings(opened, splits, plan, only, outside, accelerator.num_processes)
    snapshot = Snapshot.beside(target, settings)
    progress = train(
        model,
        courses,
        plan,
        trainables,
        accelerator=accelerator,
        scores=scores,
        snapshot=snapshot,
        snapshot_seconds=snapshot_seconds,
        on_step=on_step,
        on_checkpoint=_checkpoint_writer(opened, target, adapters) if accelerator.is_main_process else None,
        checkpoint_every=checkpoint_every,
    )
    validation = {
        course.readout.task.name: _validation_score(model, course, scores) for course in courses if course.validation
    }
    made = {
        "by": "finetune",
        "tasks": [task.name for task in loaded],
        "readout": {one.task.name: dict(one.settings) for one in opened.readouts},
        "plan": plan.as_dict(),
        "shots": shots,
        "rows": rows,
        "seed": seed,
        "only": len(only) if only is not None else None,
        "outside": len(outside) if outside is not None else None,
        "trained": len(trainables),
        "steps": progress.step,
        "validation": validation,
        "command": command,
    }
    if accelerator.is_main_process:
        if plan.method == "lora":
            merge_lora(model)
        with atomic.new_folder(target) as folder:
            write_folder(opened, folder, made, adapters)
            lines = "".join(json.dumps(entry) + "\n" for entry in progress.log)
            (folder / LOG).write_text(lines, encoding="utf-8")
        snapshot.delete()
    accelerator.wait_for_everyone()
    return Tuned(target, opened.name, len(trainables), progress.step, tuple(progress.log), validation)


def write_folder(opened: Opened, folder: Path, made: Mapping[str, Any], adapters: Adapters | None = None) -> None:
    """A normal model folder: the base's tokenizer and other small files, the new weights, and where they come from.

    Adapters cannot be merged into the weights: these are the base's own then, and the adapters lie in a file beside them.
    """
    source = opened.source.folder
    if source is not None and not opened.source.gguf:
        _copy_small_files(source, folder)
    else:  # a hub name or a GGUF file has no folder to copy from
        images = any(readout.task.kind == "image" for readout in opened.readouts)
        (opened.source.image_processor if images else opened.source.tokenizer).save_pretrained(folder)
    with silence():
        opened.model.save_pretrained(folder)  # type: ignore[operator]
    name, fingerprint = _identity(opened)
    if adapters is not None:
        adapters.save(folder / ADAPTER, base_fingerprint=fingerprint)
        made = {**made, "adapters": {"file": ADAPTER, **adapters.description}}
    Ledger(base=name, base_fingerprint=fingerprint, made=made).write(folder, versions=versions())
    card = ["---", f"base_model: {name}", "tags: [skillgraft]", "---", "", f"# {name}, fine-tuned", ""]
    card += [f"Fine-tuned on {', '.join(made['tasks'])} with skillgraft; `skillgraft.json` says how."]
    if adapters is not None:
        card += [
            "",
            f"The skill lies in `{ADAPTER}`; transformers alone loads the base. Measure it with `skillgraft evaluate`.",
        ]
    (folder / "README.md").write_text("\n".join(card) + "\n", encoding="utf-8")


def _copy_small_files(source: Path, folder: Path) -> None:
    skip = {file.name for file in other_weights(source)} | {LEDGER, UNDO, INDEX, "README.md"}
    for item in sorted(source.iterdir()):
        if item.suffix != ".safetensors" and item.name not in skip and not item.name.startswith("."):
            (shutil.copytree if item.is_dir() else shutil.copyfile)(item, folder / item.name)


def check_validation(splits: Sequence[Split], why: str) -> None:
    """Refuse tasks without validation rows where something is decided by them."""
    for split in splits:
        if not len(split.validation):
            raise InputError(f"{why}, but task {split.train.task!r} has none left: train on fewer rows")


def _identity(opened: Opened) -> tuple[str, str]:
    """Name and fingerprint of the base; a hub name and a GGUF file have no fingerprint."""
    folder = opened.source.folder
    if folder is None:
        return opened.source.name, ""
    if opened.source.gguf:
        return opened.source.gguf, ""
    checkpoint = Checkpoint.open(folder)
    return checkpoint.name, checkpoint.fingerprint


def _course(readout: Readout, split: Split) -> Course:
    return Course(readout, readout.encode(split.train), readout.encode(split.validation))


def _validation_score(model: nn.Module, course: Course, scores: Scorer) -> float:
    readout = course.readout
    said = predict(model, readout, course.validation, scores=lambda m, batch: scores(m, readout, batch))
    return METRICS["score"](said)


def _checkpoint_writer(opened: Opened, out: Path, adapters: Adapters | None) -> Callable[[int], None]:
    def write(step: int) -> None:
        target = out.parent / f"{out.name}.steps" / f"step-{step:06d}"
        if target.exists():  # from before the run was killed
            return
        with atomic.new_folder(target) as folder:
            write_folder(opened, folder, {"by": "finetune", "tasks": [], "step": step}, adapters)

    return write


def _settings(
    opened: Opened,
    splits: Sequence[Split],
    plan: Plan,
    only: Region | None,
    outside: Region | None,
    processes: int,
) -> dict[str, Any]:
    """Everything that decides the numbers: a snapshot of other settings is not resumed."""
    return {
        "base": _identity(opened),
        "readouts": [dict(one.settings) for one in opened.readouts],
        "rows": [(split.train.digest, split.validation.digest) for split in splits],
        "plan": plan.as_dict(),
        "only": only.digest if only is not None else None,
        "outside": outside.digest if outside is not None else None,
        "processes": processes,
    }
