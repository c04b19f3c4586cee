"""Tiny folders and the film reviews that they are asked about: a base, and the same base tuned."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skillgraft.files import tensors as tensor_file
from skillgraft.measure.evaluate import evaluate
from skillgraft.opening.runtime import Progress, Runtime
from skillgraft.predictions.predictions import Predictions
from skillgraft.regions.localize import Localization, localize
from skillgraft.training.finetune import finetune
from skillgraft.training.plan import TrainingPlan
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import Array
from tests.model_folders import FORMATS, tensors_of
from tests.readouts import making

QUICK = TrainingPlan(optimizer="adamw", lr=3e-3, batch_size=8, steps=30, dropout=False)
STEPS: dict[str, Any] = {"method": "learned", "steps": 6, "lr": 1e5}


@dataclass(frozen=True)
class Films:
    """A folder with films.toml and its rows, a sentence encoder as the base, and the base tuned on the films."""

    folder: Path
    base: Path
    tuned: Path

    @classmethod
    def make(cls, folder: Path) -> Films:
        """The task, the encoder and its tuned folder."""
        made = cls(folder, making.sentence_encoder(folder / "encoder"), folder / "skilled")
        making.write_films(folder)
        finetune(made.base, [made.task], out=made.tuned, plan=QUICK.with_changes(steps=100))
        return made

    @property
    def task(self) -> Path:
        return self.folder / "films.toml"

    @property
    def words(self) -> tuple[object, ...]:
        """Base, tuned and task as the command line takes them."""
        return "localize", self.base, self.tuned, "--task", self.task

    def localize(self, **asked: Any) -> Localization:
        return localize(self.base, self.tuned, task=self.task, **asked)

    def graft(self, **asked: Any) -> Graft:
        return self.localize(**asked).graft

    def predictions(self, *, graft: Graft | None = None, **asked: Any) -> dict[str, Predictions]:
        """What base, tuned and graft answer about the validation rows, as `evaluate` asks them."""
        grafts = {} if graft is None else {"graft": graft}
        tuned = {"tuned": self.tuned}
        found = evaluate(self.base, [self.task], tuned=tuned, grafts=grafts, split="validation", **asked)
        return dict(found["films"])

    def in_format(self, name: str, folder: Path) -> Films:
        """The same films with base and tuned in another number format."""
        if name == "float32":
            return self
        folder.mkdir()
        making.write_films(folder)
        base = converted(self.base, folder / "encoder", name)
        return Films(folder, base, converted(self.tuned, folder / "skilled", name))


def rewritten(folder: Path, target: Path, change: Callable[[str, Array], Array]) -> Path:
    """A copy of a model folder in which every tensor is what `change` makes of it."""
    shutil.copytree(folder, target)
    tensors = {name: change(name, array) for name, array in tensors_of(folder).items()}
    (target / "model.safetensors").unlink()
    tensor_file.write(target / "model.safetensors", tensors, {"format": "pt"})
    return target


def converted(folder: Path, target: Path, name: str) -> Path:
    """A copy of a model folder, rounded to another number format."""
    rewritten(folder, target, lambda _, array: array.astype(FORMATS[name]))
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**config, "dtype": name}))
    return target


def accuracy(predictions: Predictions) -> float:
    return float((predictions.predicted == predictions.labels).mean())


class Killed(Exception):
    """Stands for kill -9 in the middle of a search."""


def watching(seen: list[int], *, kill_after: int | None = None) -> Runtime:
    """Notes the number of every step, keeps a snapshot of each, and stops the search after so many of them."""
    began = len(seen)

    def step_done(step: int, _total: int, _facts: Any) -> None:
        seen.append(step)
        if kill_after is not None and len(seen) - began == kill_after:
            raise Killed

    progress: Progress = step_done
    return Runtime(progress=progress, snapshot_seconds=0.0)
