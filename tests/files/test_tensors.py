"""One safetensors file: written with fixed bytes, read lazily, agreed on with the safetensors package."""

from __future__ import annotations

import os

import numpy as np
import pytest

from skillgraft.errors import FormatError, InputError
from skillgraft.files.tensors import MAX_HEADER_BYTES, TensorFile, copy_range, write
from skillgraft.values.numbers import BFLOAT16, DTYPES, same_bits
from tests.fuzz.raw_file import RawFile, with_header

TENSORS = {tag: np.arange(6).reshape(2, 3).astype(dtype) for tag, dtype in DTYPES.items()}


def test_every_dtype_comes_back(tmp_path):
    write(tmp_path / "t.safetensors", TENSORS, {"b": "2", "a": "ä"})
    file = TensorFile.open(tmp_path / "t.safetensors")
    assert file.metadata == {"a": "ä", "b": "2"}
    for name, array in TENSORS.items():
        assert same_bits(file.read(name), array)
        assert not file.read(name).flags.writeable
        assert file.flat(name, 2, 5).tolist() == array.reshape(-1)[2:5].tolist()
        assert file.entries[name].size == 6


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (1, 1, 1), (2, 0, 3)])
def test_scalars_and_empty_tensors(tmp_path, shape):
    tensors = {"a": np.ones(shape, np.float32), "z": np.ones(shape, np.uint8)}
    write(tmp_path / "t.safetensors", tensors, {})
    file = TensorFile.open(tmp_path / "t.safetensors")
    assert file.metadata == {}
    assert all(same_bits(file.read(name), array) for name, array in tensors.items())


def test_no_tensors_at_all(tmp_path):
    write(tmp_path / "t.safetensors", {}, {})
    assert (tmp_path / "t.safetensors").read_bytes() == with_header(b"{}      ")
    assert TensorFile.open(tmp_path / "t.safetensors").entries == {}


def test_bytes_do_not_depend_on_the_order_nor_on_the_memory_layout(tmp_path):
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    write(tmp_path / "a", {"m": matrix, "n": matrix[:, ::2]}, {"x": "1", "y": "2"})
    write(tmp_path / "b", {"n": matrix[:, ::2].copy(), "m": np.asfortranarray(matrix)}, {"y": "2", "x": "1"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_wider_numbers_come_first_and_are_aligned(tmp_path):
    write(tmp_path / "t", TENSORS, {"odd": "x"})
    entries = sorted(TensorFile.open(tmp_path / "t").entries.values(), key=lambda entry: entry.start)
    assert [(-entry.dtype.itemsize, entry.name) for entry in entries] == sorted(
        (-array.dtype.itemsize, name) for name, array in TENSORS.items()
    )
    assert all(entry.start % entry.dtype.itemsize == 0 for entry in entries)
    assert list(RawFile.read(tmp_path / "t").header) == ["__metadata__", *(entry.name for entry in entries)]


def test_the_safetensors_package_reads_ours(tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import load_file

    tensors = {tag: array for tag, array in TENSORS.items() if tag != "BF16"}
    write(tmp_path / "t", tensors, {"format": "pt"})
    theirs = load_file(tmp_path / "t")
    assert theirs.keys() == tensors.keys()
    assert all(same_bits(theirs[name], array) for name, array in tensors.items())
    with safe_open(tmp_path / "t", "numpy") as file:
        assert file.metadata() == {"format": "pt"}


def test_we_read_the_safetensors_packages(tmp_path):
    import torch
    from safetensors.torch import save_file

    tensors = {
        "bf16": torch.tensor([1.5, -0.0, 1e38], dtype=torch.bfloat16),
        "f16": torch.tensor([[1.5], [6e-8]], dtype=torch.float16),
        "f32": torch.linspace(0, 1, 5),
        "i64": torch.tensor(7),
        "bool": torch.tensor([True, False]),
        "none": torch.zeros(0, 3),
    }
    save_file(tensors, tmp_path / "t", metadata={"k": "v"})
    file = TensorFile.open(tmp_path / "t")
    assert file.metadata == {"k": "v"}
    assert file.read("bf16").dtype == BFLOAT16
    for name, tensor in tensors.items():
        assert file.entries[name].shape == tuple(tensor.shape)
        assert file.read(name).astype(np.float64).tolist() == tensor.double().tolist()


def test_a_file_that_changes_after_it_was_opened_is_refused(tmp_path):
    path = tmp_path / "t.safetensors"
    write(path, TENSORS, {})
    file, other = TensorFile.open(path), TensorFile.open(path)
    file.check_unchanged()
    assert file.read("F32").tolist() == TENSORS["F32"].tolist()
    os.utime(path, ns=(0, 0))
    with pytest.raises(InputError, match="changed while it was being read; run again"):
        file.check_unchanged()
    with pytest.raises(InputError, match="changed while it was being read"):
        other.read("F32")
    path.unlink()
    with pytest.raises(InputError, match="disappeared while working"):
        file.check_unchanged()


def test_the_longest_header(tmp_path):
    path = tmp_path / "t.safetensors"
    path.write_bytes((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{")
    with pytest.raises(FormatError, match="claims 100,000,001 bytes, the most allowed is 100,000,000"):
        TensorFile.open(path)
    path.write_bytes(with_header(b"{}" + b" " * 98))
    with pytest.raises(FormatError, match="claims 100 bytes, the most allowed is 99"):
        TensorFile.open(path, max_header_bytes=99)


def test_copy_range(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    with (tmp_path / "a").open("rb") as source, (tmp_path / "b").open("wb") as target:
        target.write(b"start ")
        target.flush()
        copy_range(source, target.fileno(), 2, 5, 6)
        with pytest.raises(InputError, match="became shorter while it was being copied"):
            copy_range(source, target.fileno(), 8, 5, 11)
    assert (tmp_path / "b").read_bytes().startswith(b"start 23456")
