"""Model folders in another number format, and what formats a folder, a graft and a live model have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from skillgraft import Graft
from skillgraft.folders.checkpoint import Checkpoint

FORMATS = ("float32", "bfloat16", "float16")
NARROW = FORMATS[1:]


def in_format(folder: Path, out: Path, dtype: str) -> Path:
    """A copy of a model folder whose floating-point weights are rounded to that format."""
    shutil.copytree(folder, out)
    weights = load_file(out / "model.safetensors")
    wanted = getattr(torch, dtype)
    rounded = {
        name: numbers.to(wanted) if numbers.is_floating_point() else numbers for name, numbers in weights.items()
    }
    save_file(rounded, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "dtype": dtype}))
    return out


def formats_of(value: Path | Graft) -> set[str]:
    """The number formats of a folder's tensors, or of all numbers of a graft."""
    if isinstance(value, Graft):
        return {str(part.dtype) for parts in (value.before, value.change, value.heads) for part in parts.values()}
    return {str(dtype) for dtype in Checkpoint.open(value).dtypes.values()}
