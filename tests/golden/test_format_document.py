"""docs/format.md says what the code does: its example is the golden file, its code runs, its tables are complete."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft.files import graft_file
from skillgraft.files import tensors as tensor_file
from skillgraft.files.tensors import TensorFile
from skillgraft.folders.checkpoint import MemoryTensors, fingerprint
from skillgraft.interop.export import export_patch
from skillgraft.values.info import ITEMS
from skillgraft.values.numbers import BFLOAT16, DTYPES, FLOATS

from .make_golden import HERE, grafts

DOCUMENT = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", DOCUMENT, re.DOTALL)
_TYPES = {"text": str, "list": list, "object": dict, "whole number": int}


def code(function: str) -> Any:
    """A function that the document defines in one of its blocks."""
    (block,) = (text for language, text in BLOCKS if language == "python" and f"def {function}(" in text)
    namespace: dict[str, Any] = {"hashlib": hashlib}
    exec(block, namespace)  # noqa: S102 (the document's own code)
    return namespace[function]


def table_rows() -> dict[str, list[str]]:
    """First column → the other columns, of every table row whose first column is `a key`."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", DOCUMENT, re.MULTILINE)
    return {key: [cell.strip() for cell in rest.split("|")] for key, rest in rows}


def test_the_example_is_the_golden_file():
    (text,) = (text for language, text in BLOCKS if language == "text")
    data = b"".join(bytes.fromhex(line[6 : 6 + 3 * 16].split("  ")[0]) for line in text.splitlines())
    assert data == (HERE / "tiny.safetensors").read_bytes()


def test_the_reader_in_plain_python():
    metadata, graft = code("read_graft")(HERE / "tiny.safetensors")
    assert "".join(text for _, text in BLOCKS if "read_graft" in text).count("\n") <= 16, (
        "the document says it is short"
    )
    assert graft == {"w": {"before": (1.5, -0.0), "indices": (1, 10), "values": (2.0, 3.0)}}
    assert metadata["scope_shapes"] == '{"w":[8,8]}'


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_the_fingerprint(dtype):
    sizes = {
        "encoder.layer.0.weight": 5000,
        "encoder.layer.1.bias": 4096 // dtype.itemsize,
        "b": 4096 // dtype.itemsize + 1,
    }
    tensors = {name: np.arange(size).astype(dtype) for name, size in sizes.items()}
    tensors["encoder.layer.0.weight"] = tensors["encoder.layer.0.weight"].reshape(50, 100)
    uncounted = {"classifier.weight": np.ones(3, dtype), "lm_head.bias": np.ones(3, dtype), "b.steps": np.arange(3)}
    assert code("fingerprint")(tensors) == fingerprint(MemoryTensors({**uncounted, **tensors}))


def test_the_metadata_tables_are_complete():
    rows = table_rows()
    assert {key: _TYPES[cells[0]] for key, cells in rows.items() if len(cells) == 2} == dict(ITEMS)
    assert tuple(key for key, cells in rows.items() if len(cells) == 1) == graft_file._RESERVED


def test_numbers_that_the_document_mentions():
    assert f"{graft_file._MAX_HEADER_BYTES:,} bytes" in DOCUMENT
    assert f"more than {tensor_file._MAX_DIMENSIONS} of them" in DOCUMENT
    assert f"`{' '.join(DTYPES)}`" in DOCUMENT
    assert f"version {graft_file.FORMAT_VERSION}\n" in DOCUMENT


def test_the_patch_layout(tmp_path):
    graft = dict(grafts())["heads"] * 0.5
    export_patch(graft, tmp_path / "patch.safetensors")
    file = TensorFile.open(tmp_path / "patch.safetensors")
    parts = {f"{name}.{part}" for name in graft.region for part in ("indices", "values")}
    assert file.entries.keys() == parts
    assert file.metadata["format"] == "pt"
    assert TensorFile.open(tmp_path / "patch.dense.safetensors").entries.keys() == graft.heads.keys()
    for name, at in graft.region.sites.items():
        assert file.read(f"{name}.indices").tolist() == at.tolist()
        assert file.read(f"{name}.values").tolist() == graft.written(name).tolist()
    bitmaps = dict(grafts())["bitmap"]
    export_patch(bitmaps, tmp_path / "dense.safetensors")
    (values,) = (
        entry for name, entry in TensorFile.open(tmp_path / "dense.safetensors").entries.items() if "values" in name
    )
    assert values.dtype == BFLOAT16
