"""Golden packed grafts: what was written when version 2 was fixed is read today, and written again.

`python -m tests.golden.test_packed` writes the files again. zstd may compress otherwise in another version, so that frames are
compared by what they hold; all else is compared byte for byte.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft.files import packed
from skillgraft.files.graft_file import load_info
from skillgraft.files.graft_stream import open_stream, save_stream
from skillgraft.files.tensors import TensorFile
from skillgraft.folders.checkpoint import MemoryTensors
from skillgraft.values.graft import Graft
from skillgraft.values.numbers import BFLOAT16
from skillgraft.values.region import Region, Scope

from .make_golden import FINGERPRINT, HEADS, INFO

HERE = Path(__file__).parent / "packed"
SCOPE = Scope.of("layers", {"encoder.layer.0.query.weight": (40, 16), "encoder.layer.0.query.bias": (16,)})
FORMATS: dict[str, Any] = {"float32": np.float32, "bfloat16": BFLOAT16, "float16": np.float16, "float64": np.float64}


def base(dtype: Any) -> dict[str, np.ndarray]:
    return {name: (np.arange(np.prod(shape)) / 64).astype(dtype).reshape(shape) for name, shape in SCOPE.shapes.items()}


def graft(name: str) -> Graft:
    """Every third entry of the weight and all of the bias, each with its sign turned or a little larger."""
    before = base(FORMATS[name])
    after = {key: array.copy() for key, array in before.items()}
    after["encoder.layer.0.query.weight"].reshape(-1)[1::3] *= -1
    after["encoder.layer.0.query.bias"] += np.array(1, FORMATS[name])
    region = Region(SCOPE, {key: np.flatnonzero(before[key] != after[key]) for key in before})
    heads = HEADS if name == "float32" else {}
    return Graft.between(before, after, region, base_fingerprint=FINGERPRINT, heads=heads, info=INFO)


def content(path: Path) -> dict[str, Any]:
    """Everything in a file that another version of zstd must write alike."""
    file = TensorFile.open(path)
    with file.reading() as read:
        found: dict[str, Any] = {key: read(key, 0, entry.size).tobytes() for key, entry in file.entries.items()}
    for key in [key for key in found if key.endswith(f".{packed.XOR}")]:
        del found[key]
        table = np.frombuffer(found[key.replace(packed.XOR, packed.TABLE)], np.int64)
        found[key.replace(packed.XOR, packed.TABLE)] = table[1::2].tolist()
    return {**found, "metadata": dict(file.metadata)}


@pytest.mark.parametrize("name", FORMATS)
def test_read_and_written_again(name: str, tmp_path: Path) -> None:
    golden, again = HERE / f"{name}.safetensors", tmp_path / "again.safetensors"
    stream = open_stream(golden)
    assert Graft.collected(stream.based(MemoryTensors(base(FORMATS[name])))) == graft(name)
    assert stream.digest == graft(name).digest
    save_stream(graft(name).stream(), again, pack=True)
    assert content(again) == content(golden)
    assert open_stream(again).digest == stream.digest
    assert load_info(golden) == (stream.base_fingerprint, stream.info)
    assert (TensorFile.open(golden).metadata["format_version"], golden.stat().st_size < 8192) == ("2", True)


def test_byte_planes() -> None:
    """The lowest bytes first: 0x0201 and 0x0403 are 01 03 02 04."""
    assert packed.planes(np.array([0x0201, 0x0403], "<u2")) == bytes([1, 3, 2, 4])
    for dtype in FORMATS.values():
        numbers = np.arange(7).astype(dtype)
        width = numbers.dtype.itemsize
        assert packed.from_planes(packed.planes(numbers), numbers.dtype).tobytes() == numbers.tobytes()
        assert packed.from_planes(packed.planes(numbers), numbers.dtype).itemsize == width


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for each in FORMATS:
        (HERE / f"{each}.safetensors").unlink(missing_ok=True)
        save_stream(graft(each).stream(), HERE / f"{each}.safetensors", pack=True)
