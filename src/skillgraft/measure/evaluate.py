"""Base, tuned models and grafts on tasks' test rows: one loaded base, everything else put on it live.

A tuned folder (or LoRA adapter) is evaluated as the graft of all that it changes, so a folder of another architecture or
base is refused with the reason, and the exact old numbers are back after each model. A base that is no folder of
safetensors (a hub name, a GGUF file) cannot be compared entry by entry; its tuned folders are loaded beside it. So are
folders with bottleneck adapters, which add parameters instead of changing the base's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from skillgraft.bottleneck import stated_base
from skillgraft.checkpoint import Checkpoint
from skillgraft.errors import InputError, WrongBase
from skillgraft.extraction import extract
from skillgraft.graft import Graft
from skillgraft.live import grafted
from skillgraft.measure.predict import predict
from skillgraft.measure.predictions import Predictions
from skillgraft.readouts.loading import Opened, open_readouts
from skillgraft.tasks import Task, load_task, measured_split
from skillgraft.weight_files import ADAPTER, has_adapters

BASE = "base"
OnModel = Callable[[str, str, int, int], None]


@dataclass(frozen=True)
class Evaluation:
    """What every model said about every task: `said[task][model]`, and the readout that was used."""

    readout: str
    said: Mapping[str, Mapping[str, Predictions]]


def evaluate(
    base: str | Path,
    tasks: Sequence[str | Path | Task],
    *,
    tuned: Mapping[str, str | Path] | None = None,
    grafts: Mapping[str, Graft] | None = None,
    readout: str = "auto",
    split: str = "test",
    rows: int | None = None,
    shots: int | None = None,
    seed: int = 0,
    max_length: int | None = None,
    batch_size: int = 64,
    with_base: bool = True,
    on_model: OnModel | None = None,
) -> Evaluation:
    """Run base, tuned models and grafts over the tasks' rows. Everything about the data is checked before the model loads.

    `split` is test, or train or validation of the same `shots` and `seed` that a run was trained with.
    """
    loaded = [task if isinstance(task, Task) else load_task(task) for task in tasks]
    examples = [measured_split(task, split, rows=rows, shots=shots, seed=seed) for task in loaded]
    changes = _changes(base, tuned or {}, grafts or {})
    if not with_base:
        del changes[BASE]
    opened = open_readouts(base, loaded, readout=readout, max_length=max_length)
    encoded = [one.encode(split_rows) for one, split_rows in zip(opened.readouts, examples, strict=True)]
    said: dict[str, dict[str, Predictions]] = {task.name: {} for task in loaded}
    for name, change in changes.items():
        with _changed(opened, change) as model:
            for one, rows_of_task in zip(opened.readouts, encoded, strict=True):
                said[one.task.name][name] = predict(
                    model,
                    one,
                    rows_of_task,
                    batch_size=batch_size,
                    progress=_reporter(on_model, name, one.task.name),
                    made_by={"model": name, "split": split, "readout": opened.name},
                )
    return Evaluation(opened.name, said)


def _changes(
    base: str | Path, tuned: Mapping[str, str | Path], grafts: Mapping[str, Graft]
) -> dict[str, Graft | Path | None]:
    """Every model by name: None is the base itself, a graft goes on it, a folder is loaded beside it."""
    twice = ({BASE} & (tuned.keys() | grafts.keys())) | (tuned.keys() & grafts.keys())
    if twice:
        raise InputError(f"two models are called {sorted(twice)[0]!r}; call the folder or graft something else")
    comparable = Path(base).is_dir() and any(Path(base).glob("*.safetensors"))
    folders = {name: _change(Path(base), Path(folder), comparable=comparable) for name, folder in tuned.items()}
    return {BASE: None, **folders, **grafts}


def _change(base: Path, folder: Path, *, comparable: bool) -> Graft | Path:
    if not comparable:
        return folder
    if not has_adapters(folder):
        return extract(base, folder)
    wanted, found = stated_base(folder / ADAPTER), Checkpoint.open(base).fingerprint
    if wanted and wanted != found:
        raise WrongBase(
            f"the adapters in {folder} were trained on a base of fingerprint {wanted[:12]}…, {base} has {found[:12]}…: "
            "evaluate them beside the base that skillgraft.json there names"
        )
    return folder


def _changed(opened: Opened, change: Graft | Path | None) -> AbstractContextManager[nn.Module]:
    if isinstance(change, Graft):
        return grafted(opened.model, change)
    return nullcontext(opened.model if change is None else opened.load(change))


def _reporter(on_model: OnModel | None, model: str, task: str) -> Callable[[int, int], None] | None:
    return (lambda done, total: on_model(model, task, done, total)) if on_model else None
