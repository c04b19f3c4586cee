"""TIES of three whole deltas, a share of every tensor kept: `combine` of three graft files beside mergekit on the same folders.

mergekit runs from a virtual environment of its own: the variable MERGEKIT names its `mergekit-yaml`. float32, because there the
definitions agree: the results are compared entry by entry. mergekit keeps int(density · entries) of a tensor, we round to the
nearest, so the share that is kept here is one that is whole for every tensor.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np

from folders import decoder, write_folder
from measuring import GIGABYTE, Figure, Measured, Settings, command, work_folder
from peaks import peak_of_command
from skillgraft.errors import InputError, RunError
from skillgraft.files.graft_stream import save_stream
from skillgraft.folders.apply import apply
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extracted

_KEEP = 0.25
_MODELS = ("one", "two", "three")


def measure(settings: Settings) -> Measured:
    """time and peak: ours / mergekit's."""
    program = os.environ.get("MERGEKIT", "")
    if not Path(program).is_file():
        raise InputError(
            "MERGEKIT must name the mergekit-yaml of a virtual environment with mergekit; see benchmarks/ties.py"
        )
    hidden, vocabulary = (512, 8_000) if settings.small else (2048, 32_000)
    layout = decoder(settings.scaled(2 * GIGABYTE), hidden=hidden, vocabulary=vocabulary)
    with work_folder(settings, needed_bytes=16 * layout.nbytes) as folder:
        base = write_folder(folder / "base", layout)
        _describe(base, hidden, vocabulary)
        for seed, name in enumerate(_MODELS, start=1):
            _describe(write_folder(folder / name, layout, tuned=True, seed=seed), hidden, vocabulary)
        theirs, theirs_peak = _timed(
            [program, str(_plan(folder)), str(folder / "merged"), "--lazy-unpickle", "--quiet"]
        )
        files = []
        for name in _MODELS:
            files.append(folder / f"{name}.safetensors")
            save_stream(extracted(base, folder / name), files[-1])
            shutil.rmtree(folder / name)
        joint = folder / "joint.safetensors"
        options = ["--rule", "ties", "--trim", "tensor", "--keep", str(_KEEP), "-o", str(joint)]
        ours_program = str(Path(sys.executable).parent / "skillgraft")
        ours, ours_peak = _timed([ours_program, "combine", *map(str, files), *options])
        for file in files:
            file.unlink()
        apply(base, joint, out=folder / "applied")
        differ, largest = _compare(folder / "applied", folder / "merged")
    sizes = f"3 × {layout.nbytes / GIGABYTE:.2f} GB of float32"
    return Measured(
        {
            "time": Figure(ours / theirs, f"combine {ours:.1f} s, mergekit {theirs:.1f} s ({sizes})"),
            "peak": Figure(ours_peak / theirs_peak, f"combine {ours_peak:.0f} MB, mergekit {theirs_peak:.0f} MB"),
        },
        {"share_of_entries_that_differ": differ, "largest_difference": largest, "bytes": layout.nbytes},
    )


def _describe(folder: Path, hidden: int, vocabulary: int) -> None:
    """A config that names the architecture's sizes: mergekit looks its tensors up."""
    layers = sum(".input_layernorm." in name for name in Checkpoint.open(folder).shapes)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": hidden * 11 // 4, "num_hidden_layers": layers, "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64, "vocab_size": vocabulary, "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def _plan(folder: Path) -> Path:
    plan = {
        "merge_method": "ties",
        "base_model": str(folder / "base"),
        "models": [{"model": str(folder / name), "parameters": {"density": _KEEP, "weight": 1.0}} for name in _MODELS],
        "parameters": {"normalize": True},
        "dtype": "float32",
    }
    path = folder / "plan.yaml"
    path.write_text(json.dumps(plan), encoding="utf-8")  # JSON is YAML
    return path


def _timed(program: list[str]) -> tuple[float, float]:
    """Seconds, and the highest anonymous memory in MB."""
    began = time.perf_counter()
    peak = peak_of_command(program)
    return time.perf_counter() - began, peak


def _compare(ours: Path, theirs: Path) -> tuple[float, float]:
    """The share of entries that differ by more than rounding, and the largest difference."""
    a, b = Checkpoint.open(ours), Checkpoint.open(theirs)
    if a.shapes != b.shapes:
        raise RunError(f"mergekit wrote other tensors: {sorted(a.shapes.keys() ^ b.shapes.keys())[:5]}")
    wrong = total = 0
    largest = 0.0
    for name, shape in a.shapes.items():
        difference = np.abs(a.flat(name) - b.flat(name))
        largest = max(largest, float(difference.max()))
        wrong += int(np.count_nonzero(difference > 1e-6))
        total += int(np.prod(shape))
    return wrong / total, largest


if __name__ == "__main__":
    command("ties", measure)
