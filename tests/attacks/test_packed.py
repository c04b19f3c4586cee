"""Packed grafts as a stranger might damage or make them, and graft files read lazily: refused in words, in little memory."""

from __future__ import annotations

import random
import shutil
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from skillgraft.errors import FormatError, InputError
from skillgraft.files import packed
from skillgraft.files.graft_stream import open_stream
from skillgraft.files.tensors import TensorFile, write
from skillgraft.folders.checkpoint import MemoryTensors
from skillgraft.values.graft import Graft
from tests.fuzz.mutations import MUTATIONS
from tests.fuzz.test_fuzz import SEEDS
from tests.golden.test_packed import FORMATS, HERE, base

WEIGHT = "encoder.layer.0.query.weight"


def used(path: Path, name: str) -> str:
    """ "read", or the message with which the file was refused; anything else escapes and fails the test."""
    try:
        stream = open_stream(path)
        stream.describe()
        Graft.collected(stream.based(MemoryTensors(base(FORMATS[name]))))
    except InputError as error:
        return str(error)
    return "read"


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    rng, path = random.Random(name), tmp_path / "p.safetensors"
    sound = (HERE / f"{name}.safetensors").read_bytes()
    outcomes: Counter[bool] = Counter()
    for number in range(120):
        path.write_bytes(MUTATIONS[number % len(MUTATIONS)](rng, sound))
        began = time.process_time()
        message = used(path, name)
        assert time.process_time() - began < 1
        assert len(message) < 1000
        outcomes[message == "read"] += 1
    assert outcomes[False] > outcomes[True]


def test_lazily_read_files_refuse_what_loading_refuses(tmp_path: Path) -> None:
    """A damaged graft of version 1 is never read to its end by stretches where `load` finds something wrong."""
    from skillgraft.files.graft_file import load

    rng, path = random.Random(1), tmp_path / "g.safetensors"
    for number in range(300):
        name = list(SEEDS)[number % len(SEEDS)]
        if name == "int64":  # a parameter of 2^31 entries takes thousands of windows
            continue
        path.write_bytes(MUTATIONS[number % len(MUTATIONS)](rng, SEEDS[name]))
        try:
            whole = load(path)
        except FormatError:
            with pytest.raises(InputError):
                Graft.collected(open_stream(path))
        else:
            assert Graft.collected(open_stream(path)) == whole


def remade(tmp_path: Path, **changes: np.ndarray) -> Path:
    """The golden file with some tensors replaced, by their last component."""
    file = TensorFile.open(HERE / "float32.safetensors")
    with file.reading() as read:
        tensors = {key: read(key, 0, entry.size).reshape(entry.shape) for key, entry in file.entries.items()}
    for part, array in changes.items():
        tensors[f"{WEIGHT}.{part}"] = array
    write(tmp_path / "p.safetensors", tensors, file.metadata)
    return tmp_path / "p.safetensors"


def test_a_frame_that_promises_terabytes_is_not_unpacked(tmp_path: Path) -> None:
    import zstandard

    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(200_000_000))
    assert len(bomb) < 50_000
    sites = open_stream(HERE / "float32.safetensors").counts[WEIGHT]
    path = remade(tmp_path, xor=np.frombuffer(bomb, np.uint8), windows=np.array([[len(bomb), sites]]))
    tracemalloc.start()
    assert "a window's frame promises other than its 2560 bytes" in used(path, "float32")
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2560))
    path = remade(tmp_path, xor=np.frombuffer(unsized, np.uint8), windows=np.array([[len(unsized), sites]]))
    assert "promises other than its 2560 bytes" in used(path, "float32")


@pytest.mark.parametrize(
    ("windows", "message"),
    [
        ([[-1, 5]], "impossible lengths or numbers of sites"),
        ([[2**62, 5]], "frames of 4611686018427387904 bytes"),
        ([[0, 0]], "frames of 0 bytes"),
        ([[9, 0]], "impossible lengths"),
        ([[9, 10_000]], "impossible lengths"),
        ([[9, 5], [0, 0]], r"expected I64 \[1, 2\]"),
    ],
)
def test_tables_that_cannot_be(windows: list[list[int]], message: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=message):
        open_stream(remade(tmp_path, windows=np.array(windows)))


def test_a_site_more_or_less_is_seen(tmp_path: Path) -> None:
    import zstandard

    sites = open_stream(HERE / "float32.safetensors").counts[WEIGHT]
    frame = zstandard.ZstdCompressor().compress(packed.planes(np.arange(640, dtype=np.uint32)))
    path = remade(tmp_path, xor=np.frombuffer(frame, np.uint8), windows=np.array([[len(frame), sites]]))
    assert f"a window has 639 sites, its table says {sites}" in used(path, "float32")


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    path = shutil.copy(HERE / "bfloat16.safetensors", tmp_path / "p.safetensors")
    stream = open_stream(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(InputError, match="changed while it was being read"):
        stream.describe()
