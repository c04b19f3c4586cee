"""Base, tuned models and grafts on tasks' rows: every model is asked the same rows through the base's own readouts.

    found = evaluate("MiniLM", ["sst2"], tuned={"tuned": "TUNED"}, grafts={"graft": graft}, data=Data(test_rows=1000))
    found["sst2"]["graft"].predicted

Grafts, and LoRA adapters, are put on the loaded base. A tuned folder is compared with the base by its headers and then loaded
by itself, once the base is let go: one model is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from skillgraft.errors import InputError, WrongBase, listed
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import check_pair, extract, is_adapter, refuse_new_rows
from skillgraft.folders.hub import located
from skillgraft.folders.ledger import LEDGER
from skillgraft.folders.weight_files import ADAPTER, has_adapters, read_json
from skillgraft.live.bottleneck import stated_base
from skillgraft.measure.summary import Compared, mean_summary, repaired, role_of, summary
from skillgraft.opening.runtime import Runtime
from skillgraft.predictions.completions import side_by_side
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.task_model import TaskModel, TaskRows
from skillgraft.tasks.data import Data, TaskLike, as_rows, as_task
from skillgraft.values.graft import Graft, GraftLike, graft_of
from skillgraft.values.info import FORMATS
from skillgraft.values.printing import score_table

T = TypeVar("T")
BASE = "base"
Models = Mapping[str, AnyPredictions]


@dataclass(frozen=True)
class Evaluation:
    """What every model answered about every task: `found[task][model]`, and the readout that was used.

    `tuned` names the models that shares and gains are relative to: the one that was tuned on this very task, else the first.
    `controls` are the tasks that no model was meant to change.
    """

    readout: str
    predictions: Mapping[str, Models]
    tuned: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()

    def __getitem__(self, task: str) -> Models:
        return self.predictions[task]

    def __iter__(self) -> Iterator[str]:
        return iter(self.predictions)

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Task → model → its `summary`: metrics with intervals, compared with base and with a tuned model.

        Models called `name@seed` (`full@0`, `full@1`, …) are compared with the tuned model of their seed, and have a row of
        their mean below.
        """
        return {task: self._summaries(models) for task, models in self.predictions.items()}

    def _summaries(self, models: Models) -> dict[str, Any]:
        compared = {name: self._compared(name, models) for name in models}
        alone = {name: summary(each, base=base, tuned=tuned) for name, (each, base, tuned) in compared.items()}
        means = {
            f"{name}, {len(each)} seeds": mean_summary([compared[one] for one in each])
            for name, each in by_seed(models).items()
        }
        return {**alone, **means}

    def _compared(self, name: str, models: Models) -> Compared:
        """A model, with the base and the tuned model that it is compared with: its seed's, this very task's, or the first."""
        own_task = {each: models[each].made_by.get("tasks") == models[each].task for each in self.tuned}
        order = sorted(self.tuned, key=lambda each: (not same_seed(each, name), not own_task[each]))
        base, tuned = models.get(BASE), models[order[0]] if order else None
        own = models[name]
        return own, None if base is own else base, None if tuned is own else tuned

    def repaired(self) -> dict[str, dict[str, Any]]:
        """Model → what it keeps of tuned's improvement, what it damages, and how much of tuned's damage it gives back."""
        if not self.controls or not self.tuned:
            return {}
        apart = {task: models for task, models in self.predictions.items() if task not in self.controls}
        return repaired(apart, {task: self.predictions[task] for task in self.controls}, tuned=self.tuned[0])

    def as_json(self, *, split: str) -> dict[str, Any]:
        """The summaries, and of each model its role and the tasks that it was made for."""
        models = {name: each for task in self.predictions.values() for name, each in task.items()}
        kept = ("role", "tasks", "temperature", "shift")
        about = {name: {key: each.made_by[key] for key in kept if key in each.made_by} for name, each in models.items()}
        facts = {"format": FORMATS["evaluation"], "readout": self.readout, "split": split, "models": about}
        return {**facts, "tasks": self.summaries()}

    def table(self) -> str:
        """Every task's models as aligned lines: score, calibration, agreement with tuned, what is kept of it."""
        return "\n\n".join("\n".join(score_table(task, models)) for task, models in self.summaries().items())

    def examples(self, rows: int = 3) -> dict[str, list[dict[str, str]]]:
        """Task → a few rows: the prompt, the true completion, and what every model generated, side by side.

        The rows are spread evenly over the split. Tasks of classes, and those for which nothing was generated, have none.
        """
        return {task: found for task, models in self.predictions.items() if (found := side_by_side(models, rows))}

    def save(self, folder: str | Path) -> None:
        """Write all predictions, one file for each task and model; `skillgraft report` shows them."""
        for task, models in self.predictions.items():
            for name, each in models.items():
                each.save(Path(folder) / f"{task}--{name}.npz")

    def to_frame(self) -> Any:
        """The summaries as a pandas DataFrame: one row for each task and model, one column for each metric."""
        try:
            import pandas
        except ImportError:
            raise InputError("a DataFrame needs pandas, which is not installed: pip install pandas") from None
        rows = [
            {"task": task, "model": model, **{key: _value(found) for key, found in facts.items() if key != "task"}}
            for task, models in self.summaries().items()
            for model, facts in models.items()
        ]
        return pandas.DataFrame(rows).drop(columns="intervals").set_index(["task", "model"])


def same_seed(one: str, other: str) -> bool:
    """Whether both names end with one seed."""
    seeds = {name.rpartition("@")[2] for name in (one, other) if "@" in name}
    return len(seeds) == 1 and "@" in one and "@" in other and seeds.pop().isdecimal()


def by_seed(names: Iterable[str]) -> dict[str, list[str]]:
    """The names `name@seed` that belong together, by what stands before the `@`; one seed alone is none."""
    found: dict[str, list[str]] = {}
    for each in names:
        name, sign, seed = each.rpartition("@")
        if name and sign and seed.isdecimal():
            found.setdefault(name, []).append(each)
    return {name: each for name, each in found.items() if len(each) > 1}


def _value(found: Any) -> Any:
    """An estimate's own number; what is no estimate, as it is."""
    return found["value"] if isinstance(found, Mapping) and "value" in found else found


def evaluate(
    base: str | Path,
    tasks: Sequence[TaskLike],
    *,
    tuned: Mapping[str, str | Path] | Sequence[str | Path] = (),
    grafts: Mapping[str, GraftLike] | Sequence[GraftLike] = (),
    controls: Sequence[TaskLike] = (),
    split: str = "test",
    data: Data = Data(),
    convert: bool = False,
    batch_size: int = 64,
    with_base: bool = True,
    generates: bool = True,
    runtime: Runtime = Runtime(),
) -> Evaluation:
    """Run base, tuned models and grafts over the tasks' rows. Everything about data and folders is checked before that.

    Models are given by name; in a list a path is called by its last part, a graft that is a value after its task.
    `split` is test, or train or validation of the same shots and seed that a run was trained with. `convert` takes tuned
    folders of another number format than the base's, rounded to it. Where prompts are completed `generates` has answers written.
    `controls` are tasks and files of plain text that no model should have changed: they are measured as well.
    """
    base, tuned = located(base), {name: located(path) for name, path in _by_name(tuned).items()}
    skills = {name: graft_of(graft) for name, graft in _by_name(grafts).items()}
    changes, folders = _sorted_out(Path(base), tuned, skills, convert=convert)
    asked_about = [*map(as_task, tasks), *map(as_rows, controls)]
    runtime.check_whole("evaluate")
    opened = TaskModel.open(base, asked_about, data=data, dtype=runtime.dtype, device=runtime.device, splits=(split,))
    models = [*([BASE] if with_base else []), *changes, *folders]
    roles = {BASE: {"role": "base"}, **{name: _of_tuned(path) for name, path in tuned.items()}}
    roles |= {name: _of_graft(graft) for name, graft in skills.items()}
    total, rows = len(models) * sum(len(opened.rows.examples(task, split)) for task in opened.tasks), opened.rows

    def ask(model: TaskModel, name: str, graft: Graft | None = None) -> dict[str, AnyPredictions]:
        asked: dict[str, Any] = {"split": split, "batch_size": batch_size, "made_by": {"model": name, **roles[name]}}
        asked["progress"] = _reporter(runtime, rows, split, models.index(name), total)
        own = list(rows.readouts)
        found = model.predict(graft, tasks=own[: len(tasks)], generates=generates, **asked)
        return found | (model.predict(graft, tasks=own[len(tasks) :], **asked) if controls else {})

    found = {BASE: ask(opened, BASE)} if with_base else {}
    found |= {name: ask(opened, name, change) for name, change in changes.items()}
    own = opened.source.format if convert else None
    del opened  # a tuned folder is as large as the base
    found |= {name: ask(rows.over(folder, rounded_to=own), name) for name, folder in folders.items()}
    ordered = [name for name in (BASE, *tuned, *skills) if name in found]
    answers = {task: {name: found[name][task] for name in ordered} for task in rows.readouts}
    return Evaluation(rows.name, answers, tuple(tuned), tuple(answers)[len(tasks) :])


def _of_tuned(path: str | Path) -> dict[str, str]:
    """What predictions say of a tuned folder: the tasks that it was tuned on, where finetune made it."""
    ledger = Path(path) / LEDGER
    made = read_json(ledger).get("made") if ledger.is_file() else None
    tasks = made.get("tasks") if isinstance(made, dict) else None
    return {"role": "tuned", "tasks": ", ".join(map(str, tasks or ()))}


def _of_graft(graft: Graft) -> dict[str, str]:
    return {"role": role_of(graft), "tasks": graft.info.text("task")}


def _by_name(models: Mapping[str, T] | Sequence[T]) -> Mapping[str, T]:
    """What to call each model in the results; two of one name are refused."""
    if isinstance(models, Mapping):
        return models
    names = [
        (each.info.text("task") or "graft") if isinstance(each, Graft) else Path(str(each)).name for each in models
    ]
    named = dict(zip(names, models, strict=True))
    if len(named) < len(names):
        raise InputError(f"two of {listed(names)} have one name, and results are shown by name: give {{name: model}}")
    return named


def _sorted_out(
    base: Path, tuned: Mapping[str, str | Path], grafts: Mapping[str, Graft], *, convert: bool
) -> tuple[dict[str, Graft], dict[str, Path]]:
    """What goes on the loaded base, and which folders are loaded by themselves; a folder that does not fit is refused."""
    twice = ({BASE} & (tuned.keys() | grafts.keys())) | (tuned.keys() & grafts.keys())
    if twice:
        raise InputError(f"two models are called {sorted(twice)[0]!r}; call the folder or graft something else")
    is_folder = base.is_dir() and any(base.glob("*.safetensors"))  # a hub name or GGUF file cannot be compared
    adapters = {name: Path(path) for name, path in tuned.items() if is_folder and is_adapter(Path(path))}
    folders = {name: Path(path) for name, path in tuned.items() if name not in adapters}
    for folder in folders.values() if is_folder else ():
        _check_folder(base, folder, convert=convert)
    return {**{name: extract(base, path) for name, path in adapters.items()}, **grafts}, folders


def _check_folder(base: Path, folder: Path, *, convert: bool) -> None:
    if not has_adapters(folder):
        refuse_new_rows(check_pair(base, folder, convert=convert)[2], folder)
        return
    wanted, found = stated_base(folder / ADAPTER), Checkpoint.open(base).fingerprint
    if wanted and wanted != found:
        raise WrongBase(
            f"the adapters in {folder} were trained on a base of fingerprint {wanted[:12]}…, {base} has {found[:12]}…: "
            "evaluate them beside the base that skillgraft.json there names"
        )


def _reporter(runtime: Runtime, rows: TaskRows, split: str, index: int, total: int) -> Callable[[str, int, int], None]:
    """Progress over the rows of all tasks and models."""
    sizes = {task: len(rows.examples(task, split)) for task in rows.readouts}
    before = {task: sum(list(sizes.values())[:at]) for at, task in enumerate(sizes)}

    def report(task: str, done: int, _of: int) -> None:
        runtime.progress(index * sum(sizes.values()) + before[task] + done, total, {"task": task})

    return report
