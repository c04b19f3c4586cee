"""Fine-tune a model folder on tasks and write a normal model folder: loadable without skillgraft, with its provenance.

    finetune("MiniLM", ["sst2"], out="tuned", plan=TrainingPlan(lr=0.02, batch_size=16, steps=200), data=Data(shots=64))

Data, region and settings are checked before the model is loaded. Killed and started again with the same arguments, it goes on
where it was and ends with the same numbers. The folder has the base's number format; what trains has float32 masters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from skillgraft.errors import InputError, RunError
from skillgraft.files import atomic
from skillgraft.folders.beside import copy_file, travelling_files
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.ledger import LEDGER, UNDO, Ledger
from skillgraft.folders.weight_files import ADAPTER, INDEX, other_weights
from skillgraft.live.bottleneck import Adapters
from skillgraft.live.grafted import live_model
from skillgraft.opening.device import autocast, find_device, torch_dtype, working_format
from skillgraft.opening.processes import Processes
from skillgraft.opening.runtime import Runtime
from skillgraft.opening.shards import whole_state
from skillgraft.opening.source import Source, silence
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data, TaskLike, load_tasks
from skillgraft.tasks.task import Task
from skillgraft.tasks.task_file import definition
from skillgraft.training.loop import Course, Prepared, Training, train
from skillgraft.training.methods import merge_lora, prepare
from skillgraft.training.plan import TrainingPlan
from skillgraft.training.snapshot import Snapshot
from skillgraft.values.escaping import markdown, yaml
from skillgraft.values.graft import Graft
from skillgraft.values.info import versions
from skillgraft.values.numbers import is_float
from skillgraft.values.region import Region


def write_folder(
    opened: TaskModel,
    folder: Path,
    made: Mapping[str, Any],
    *,
    adapters: Adapters | None = None,
    state: Mapping[str, Any] | None = None,
) -> None:
    """Fill a new folder with the model's numbers, or with those of `state`.

    Adapters cannot be merged into the weights: these are the base's own then, and the adapters lie in a file beside them.
    """
    source = opened.source
    if source.folder is not None and not source.gguf:
        _copy_small_files(source.folder, folder)
    else:  # a hub name or a GGUF file has no folder to copy from
        images = any(readout.task.kind == "image" for readout in opened.rows.readouts.values())
        (source.image_processor if images else source.tokenizer).save_pretrained(folder)
    with silence():
        opened.model.save_pretrained(folder, state_dict=state)  # type: ignore[operator]
    name, fingerprint = base_identity(source)
    if adapters is not None:
        adapters.save(folder / ADAPTER, base_fingerprint=fingerprint)
        made = {**made, "adapters": {"file": ADAPTER, **adapters.description}}
    Ledger(base=name, base_fingerprint=fingerprint, made=made).write(folder, versions=versions())
    card = ["---", f"base_model: {yaml(name)}", "tags: [skillgraft]", "---", "", f"# {markdown(name)}, fine-tuned", ""]
    card += [f"Fine-tuned on {markdown(', '.join(made['tasks']))} with skillgraft; `skillgraft.json` says how."]
    if adapters is not None:
        card += [
            "",
            f"The skill lies in `{ADAPTER}`; transformers alone loads the base. Measure it with `skillgraft evaluate`.",
        ]
    (folder / "README.md").write_text("\n".join(card) + "\n", encoding="utf-8")


def base_identity(source: Source) -> tuple[str, str]:
    """Name and fingerprint of the base; a hub name and a GGUF file have no fingerprint."""
    if source.checkpoint is None:
        return source.gguf or source.name, ""
    return source.checkpoint.name, source.checkpoint.fingerprint


def _state(opened: TaskModel) -> dict[str, Any] | None:
    """The numbers to save, each rounded to the format that the base stores it in; None where the model holds all of them so.

    Tied tensors stay one tensor, so that they are stored once. The main process alone has those of a split model, for which
    all of them have to ask.
    """
    formats, processes = _stored_formats(opened), opened.processes
    if not (processes.split or processes.is_main):
        return None
    state = whole_state(opened.model, keep=processes.is_main) if processes.split else opened.model.state_dict()
    if not processes.split and all(
        numbers.dtype == formats.get(name, numbers.dtype) for name, numbers in state.items()
    ):
        return None
    copies: dict[tuple[int, torch.Size], torch.Tensor] = {}
    rounded = {
        name: numbers
        if numbers.dtype == formats.get(name, numbers.dtype)
        else copies.setdefault((numbers.data_ptr(), numbers.shape), numbers.to(formats[name]))
        for name, numbers in state.items()
    }
    for name, numbers in rounded.items():
        if numbers.is_floating_point() and not torch.isfinite(numbers).all():
            raise RunError(f"{name} has numbers too large for {numbers.dtype}; use a smaller learning rate")
    return rounded


def _stored_formats(opened: TaskModel) -> dict[str, torch.dtype]:
    """The format in which the base's folder stores each of the model's tensors; what it does not store gets its usual one."""
    checkpoint = opened.source.checkpoint
    if checkpoint is None:
        return {}
    stored = {name: torch_dtype(str(dtype)) for name, dtype in checkpoint.dtypes.items() if is_float(dtype)}
    prefix = f"{getattr(opened.model, 'base_model_prefix', '')}."
    return {
        name: stored.get(name.removeprefix(prefix), torch_dtype(str(checkpoint.format)))
        for name, numbers in opened.model.state_dict().items()
        if numbers.is_floating_point()
    }


def _copy_small_files(source: Path, folder: Path) -> None:
    """Tokenizer, settings and what else lies beside the weights; nothing through a link that leads away."""
    weights = {item.name for item in (*other_weights(source), *source.glob("*.safetensors"))}
    for name in travelling_files(source, apart={*weights, LEDGER, UNDO, INDEX, "README.md"}):
        copy_file(source / name, folder / name)


LOG = "training.jsonl"  # one line per step
SPLITS = ("train", "validation")
FROM_GRAFTS = ("full", "bias")  # the methods that can start from a base with grafts on


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
    tasks: Sequence[TaskLike],
    *,
    out: str | Path,
    plan: TrainingPlan = TrainingPlan(),
    inside: Region | None = None,
    outside: Region | None = None,
    start: Graft | None = None,
    data: Data = Data(),
    reuse: bool = False,
    runtime: Runtime = Runtime(),
) -> Tuned:
    """Train on one task or on a mixture of several. `data.seed` draws the rows, `plan.seed` the run.

    `inside` and `outside` are regions that alone train, or alone do not. `start` is a graft that is on the base when training
    begins; the readout stays the base's own. With `reuse` a folder that an earlier call with the same arguments finished is
    taken as it is, and one of other arguments refused.
    """
    target, loaded = Path(out), load_tasks(tasks)
    _check_request(plan, inside, outside, start)
    source = Source.of(base)
    # Forward-mode derivatives are taken in float32; float16 has too little room for gradients.
    format = working_format(source.format, runtime.dtype, wide=plan.method == "linear")
    device, processes = find_device(runtime.device, shard=runtime.shard)
    _check_split(processes, plan, start)
    rows = {(task.name, split): data.examples(task, split) for task in loaded for split in SPLITS}
    if plan.validate_every:
        for task in loaded:
            check_validation(task, len(rows[task.name, "validation"]), "validate_every looks at validation rows")
    settings = {
        "base": _content(source), "tasks": [definition(task) for task in loaded], "data": asdict(data), "dtype": format,
        "rows": [examples.digest for examples in rows.values()], "plan": plan.as_dict(), "processes": processes.count,
        **{name: value.digest for name, value in (("inside", inside), ("outside", outside), ("start", start)) if value},
    }  # fmt: skip
    snapshot = Snapshot.beside(target, settings)
    if reuse and (done := _finished_before(target, snapshot.settings, processes, device)) is not None:
        return done
    if processes.is_main:
        atomic.check_target(target)
    opened = TaskModel.open(
        base, loaded, data=data, dtype=format, device=device, splits=SPLITS,
        attention="eager" if plan.method == "linear" else None, seed=plan.seed, shard=runtime.shard,
    )  # fmt: skip
    if start is not None:
        live_model(opened.model).put_on(opened.fitted(start))
    prepared = prepare(opened.model, plan, inside=inside, outside=outside, read_heads=opened.rows.reads_heads)
    made = {
        "by": "finetune", "tasks": list(opened.tasks), "plan": plan.as_dict(), **asdict(data),
        "readout": {task: dict(readout.settings) for task, readout in opened.rows.readouts.items()},
        "inside": len(inside) if inside is not None else None, "outside": len(outside) if outside is not None else None,
        "trained": len(prepared.trainables), "settings": snapshot.settings, "command": runtime.command,
    }  # fmt: skip
    return _run(opened, prepared, plan, target, snapshot, made, runtime)


def _run(
    opened: TaskModel,
    prepared: Prepared,
    plan: TrainingPlan,
    target: Path,
    snapshot: Snapshot,
    made: Mapping[str, Any],
    runtime: Runtime,
) -> Tuned:
    """Train the opened model, which is this run's own, and write its folder."""
    courses = [
        Course(readout, opened.rows.encoded(task, "train"), opened.rows.encoded(task, "validation"))
        for task, readout in opened.rows.readouts.items()
    ]
    accelerator = Accelerator(cpu=opened.device.type == "cpu")
    if accelerator.mixed_precision == "fp16":
        raise InputError("mixed precision fp16 needs a scaled loss, which this loop does not have; use bf16")
    precision = partial(autocast, opened.device, plan.mixed_precision)
    training = Training(
        opened.model, courses, plan, prepared, opened.processes,
        accelerator.autocast if plan.mixed_precision == "no" else precision,
    )  # fmt: skip

    def checkpoint(step: int) -> None:
        folder = target.parent / f"{target.name}.steps" / checkpoint_name(step)
        made, state = {"by": "finetune", "tasks": [], "step": step}, _state(opened)
        if opened.processes.is_main and not folder.exists():  # it may be there from before the run was killed
            with atomic.new_folder(folder) as temporary:
                write_folder(opened, temporary, made, adapters=prepared.adapters, state=state)

    progress = train(training, snapshot=snapshot, runtime=runtime, on_checkpoint=checkpoint)
    validation = {
        course.readout.task.name: training.score(course, "validation", metric="score")
        for course in courses
        if course.validation
    }
    if opened.processes.is_main and plan.method == "lora":
        merge_lora(opened.model)
    state = _state(opened)
    if opened.processes.is_main:
        facts = {**made, "steps": progress.step, "validation": validation}
        try:
            with atomic.new_folder(target) as folder:
                write_folder(opened, folder, facts, adapters=prepared.adapters, state=state)
                lines = "".join(json.dumps(entry) + "\n" for entry in progress.log)
                (folder / LOG).write_text(lines, encoding="utf-8")
        finally:
            if target.exists():  # ours, or that of a process which was faster
                snapshot.delete()
    accelerator.wait_for_everyone()
    trained = len(prepared.trainables)
    return Tuned(target, opened.rows.name, trained, progress.step, tuple(progress.log), validation)


def _finished_before(target: Path, settings: str, processes: Processes, device: torch.device) -> Tuned | None:
    """What an earlier call with these arguments wrote, as the main process sees it: the others need not see its disk."""
    there = processes.is_main and (target / LEDGER).is_file()
    found = {**vars(finished(target, settings=settings)), "path": str(target)} if there else None
    facts = processes.facts_of_main(found, device)
    return None if facts is None else Tuned(**{**facts, "path": target, "log": tuple(facts["log"])})


def finished(out: Path, *, settings: str) -> Tuned:
    """What an earlier call wrote; a folder that was made with other settings is refused."""
    made = Ledger.of(Checkpoint.open(out)).made
    if made.get("settings") != settings:
        raise InputError(f"{out} was made with other settings, rows or base; remove it or choose another folder")
    readouts = "+".join(dict.fromkeys(each["readout"] for each in made["readout"].values()))
    log = [json.loads(line) for line in (out / LOG).read_text(encoding="utf-8").splitlines()]
    return Tuned(out, readouts, made["trained"], made["steps"], tuple(log), made["validation"])


def check_validation(task: Task, rows: int, why: str) -> None:
    """Refuse a task without validation rows where something is decided by them."""
    if not rows:
        raise InputError(f"{why}, but task {task.name!r} has none left: train on fewer rows")


def checkpoint_name(step: int) -> str:
    """What the folder of a run's checkpoint is called, below `OUT.steps`."""
    return f"step-{step:06d}"


def _check_split(processes: Processes, plan: TrainingPlan, start: Graft | None) -> None:
    if processes.split and (plan.adds_parameters or plan.method == "linear" or start is not None):
        what = f"method {plan.method!r}" if start is None else "training from a base with grafts on"
        raise InputError(
            f"{what} needs the whole model in each process: a model that is split trains by method full or bias, "
            "in a region or out of one; leave out --shard"
        )


def _check_request(plan: TrainingPlan, inside: Region | None, outside: Region | None, start: Graft | None) -> None:
    if inside is not None and outside is not None:
        raise InputError("train only inside a region or outside it, not both")
    if start is not None and plan.method not in FROM_GRAFTS:
        raise InputError(
            f"training from a base with grafts on changes the model itself: method {' or '.join(FROM_GRAFTS)}, "
            f"not {plan.method!r}"
        )


def _content(source: Source) -> str:
    """What decides that the base is the same: all numbers of a folder, the bytes of a GGUF file, a hub name as it stands."""
    if source.checkpoint is not None:
        return source.checkpoint.digest
    return source.gguf_digest if source.gguf else source.name
