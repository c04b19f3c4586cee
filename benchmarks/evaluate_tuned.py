"""`evaluate --tuned` beside loading that folder and predicting, which is what it does after comparing two headers.

MiniLM and a fine-tune of it (every number of its layers moved) answer made-up sentences. Both jobs read the task's file, encode
its rows and run the same batches; `evaluate` also loads the base, whose readouts it uses, and lets it go. Peaks are those of a
process of its own for each job (`peaks`), after its imports.
"""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from measuring import GIGABYTE, Figure, Measured, Settings, command, interleaved, median_ratio, work_folder
from minilm import minilm_folder
from peaks import peak_of
from skillgraft.errors import RunError
from skillgraft.measure.evaluate import evaluate
from skillgraft.predictions.predictions import Predictions
from skillgraft.task_model import TaskModel
from skillgraft.tasks.data import Data
from skillgraft.values.names import in_layers

_ROWS = 600
_DATA = Data(readout="text-head")
_TEXT = "a the film plot is was not quite dull funny and moving cast but slow end never great terrible it to of"
_TASK = """
name = "films"
train = "rows.jsonl"
test = "rows.jsonl"
text = "text"
labels = ["bad", "good"]
max_length = 64
[describe]
bad = "a bad film"
good = "a good film"
"""


def measure(settings: Settings) -> Measured:
    """time, peak: evaluate / loading the tuned folder and predicting."""
    torch.set_num_threads(min(2, torch.get_num_threads()))
    with work_folder(settings, needed_bytes=GIGABYTE // 2) as folder:
        _write(folder, rows=settings.scaled(_ROWS))
        if _ours(folder).scores.tobytes() != _by_hand(folder).scores.tobytes():
            raise RunError("evaluate and the tuned folder, read with the base's head, disagree about the scores")
        jobs = {"evaluate": lambda: _ours(folder), "alone": lambda: _alone(folder)}
        seconds = interleaved(jobs, rounds=settings.rounds)
        peaks = {"evaluate": peak_of(_ours, folder), "alone": peak_of(_alone, folder)}
    taken = {name: statistics.median(found) for name, found in seconds.items()}
    used = {name: peak.peak - peak.baseline for name, peak in peaks.items()}
    return Measured(
        {
            "time": Figure(
                median_ratio(seconds["evaluate"], seconds["alone"]),
                f"evaluate {taken['evaluate']:.2f} s, alone {taken['alone']:.2f} s",
            ),
            "peak": Figure(
                used["evaluate"] / used["alone"], f"evaluate {used['evaluate']:.0f} MB, alone {used['alone']:.0f} MB"
            ),
        },
        {"seconds": seconds, "peaks": {name: vars(peak) for name, peak in peaks.items()}},
    )


def _write(folder: Path, *, rows: int) -> None:
    """base, tuned and the task in that folder."""
    shutil.copytree(minilm_folder(), folder / "base")
    shutil.copytree(folder / "base", folder / "tuned")
    draw = np.random.default_rng(0)
    weights = load_file(folder / "base" / "model.safetensors")
    for name, array in weights.items():
        if in_layers(name) and array.dtype.kind == "f":
            weights[name] = array + draw.normal(0, 1e-3, array.shape).astype(array.dtype)
    save_file(weights, folder / "tuned" / "model.safetensors", {"format": "pt"})
    words, lengths = _TEXT.split(), np.clip(draw.lognormal(2.7, 0.6, rows), 2, 60).astype(int)
    texts = [{"text": " ".join(draw.choice(words, length)), "label": row % 2} for row, length in enumerate(lengths)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts), encoding="utf-8")
    (folder / "films.toml").write_text(_TASK, encoding="utf-8")


def _ours(folder: Path) -> Predictions:
    tuned = {"tuned": folder / "tuned"}
    return evaluate(folder / "base", [folder / "films.toml"], tuned=tuned, data=_DATA, with_base=False)["films"][
        "tuned"
    ]


def _alone(folder: Path) -> Predictions:
    opened = TaskModel.open(folder / "tuned", [folder / "films.toml"], data=_DATA, splits=("test",))
    return opened.predict(split="test")["films"]


def _by_hand(folder: Path) -> Predictions:
    """The tuned folder with the base's text head, which `evaluate` reads every model with."""
    opened = TaskModel.open(folder / "base", [folder / "films.toml"], data=_DATA)
    return opened.rows.over(folder / "tuned").predict(split="test")["films"]


if __name__ == "__main__":
    command("evaluate_tuned", measure)
