"""The laws of folders: what is extracted can be put on and taken off, bit for bit, and fits no other base."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.errors import WrongBase
from skillgraft.files import tensors as tensor_file
from skillgraft.folders.apply import apply, remove
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from skillgraft.values.numbers import Array, same_bits

from ..strategies import FORMATS, arrays, examples

pytestmark = pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
SHAPES = {
    "embeddings.word_embeddings.weight": (2, 3),
    "encoder.layer.0.query.weight": (3, 3),
    "encoder.layer.1.bias": (3,),
}
few = examples(12)


def folder_with(path: Path, tensors: dict[str, Array]) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    tensor_file.write(path / "model.safetensors", tensors, {"format": "pt"})
    return path


def same_tensors(a: Path, b: Path) -> bool:
    ours, theirs = Checkpoint.open(a), Checkpoint.open(b)
    return ours.shapes == theirs.shapes and all(same_bits(ours.read(name), theirs.read(name)) for name in ours.shapes)


def draw_tensors(data: st.DataObject, dtype: np.dtype) -> dict[str, Array]:
    return {name: data.draw(arrays(dtype, math.prod(shape))).reshape(shape) for name, shape in SHAPES.items()}


@few
@given(data=st.data())
def test_extract_apply_remove(dtype, data, tmp_path_factory):
    root = tmp_path_factory.mktemp("surgery")
    base = folder_with(root / "base", draw_tensors(data, dtype))
    tuned = folder_with(root / "tuned", draw_tensors(data, dtype))
    graft = Named(extract(base, tuned), "g.safetensors")
    if len(graft.graft):
        apply(base, graft, out=root / "on")
        assert same_tensors(root / "on", tuned)
        remove(root / "on", graft, out=root / "off")
        assert same_tensors(root / "off", base)
    shutil.rmtree(root)


def test_another_base_is_refused(dtype, tmp_path):
    zeros = {name: np.zeros(shape, dtype) for name, shape in SHAPES.items()}
    ones = {name: np.ones(shape, dtype) for name, shape in SHAPES.items()}
    twos = {name: array + array for name, array in ones.items()}
    base, tuned = folder_with(tmp_path / "base", zeros), folder_with(tmp_path / "tuned", ones)
    other = folder_with(tmp_path / "other", twos)
    with pytest.raises(WrongBase, match=r"encoder\.layer\.0\.query\.weight|embeddings"):
        apply(other, Named(extract(base, tuned), "g.safetensors"), out=tmp_path / "on")
    assert not (tmp_path / "on").exists()
