"""Damaged files of every form: each loads as a sound graft or is refused with a FormatError, quickly, in little memory."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from skillgraft.errors import FormatError, InputError
from skillgraft.files.graft_file import load, load_info, load_region, save

from ..golden.make_golden import HERE as GOLDEN
from .mutations import MUTATIONS
from .raw_file import with_header

SEEDS = {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.safetensors"))}
MEGABYTE = 1 << 20


def outcome(path: Path, read: Callable[[Path], object]) -> str:
    """ "read", or the message of the refusal; any other exception escapes and fails the test."""
    try:
        read(path)
    except FormatError as error:
        return str(error)
    return "read"


def seconds(path: Path, read: Callable[[Path], object]) -> float:
    """Processor time, so that a busy machine does not count."""
    started = time.process_time()
    outcome(path, read)
    return time.process_time() - started


def peak_bytes(path: Path, read: Callable[[Path], object]) -> int:
    tracemalloc.start()
    outcome(path, read)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def read_and_use(path: Path) -> None:
    """A graft that loads can be used: written, subtracted from itself, saved and loaded again."""
    graft = load(path)
    try:
        for name in graft.region:
            graft.written(name)
        nothing = graft - graft
    except InputError:  # damage can make numbers so large that their sum overflows
        nothing = graft
    assert nothing.region == graft.region
    again = path.with_name("again.safetensors")
    save(graft, again, overwrite=True)
    assert load(again) == graft


def fuzz(path: Path, *, count: int, seed: int) -> Counter[bool]:
    """Read `count` damaged files, every fiftieth also with an eye on memory; how many were read and how many refused."""
    rng = random.Random(seed)
    outcomes: Counter[bool] = Counter()
    names = list(SEEDS)
    for number in range(count):
        mutation = MUTATIONS[number % len(MUTATIONS)]
        content = mutation(rng, SEEDS[names[number // len(MUTATIONS) % len(names)]])
        path.write_bytes(content)
        read = rng.choice((read_and_use, read_and_use, load_region, load_info))
        started = time.process_time()
        message = outcome(path, read)
        assert time.process_time() - started < 1
        if message != "read":
            assert message.startswith(f"{path}: ")
            assert len(message) < 1000
            assert message.encode(), "can be printed"
        if number % 50 == 0:
            assert peak_bytes(path, read) <= 64 * MEGABYTE + 40 * len(content)
        outcomes[message == "read"] += 1
    return outcomes


def test_three_thousand_damaged_files(tmp_path):
    outcomes = fuzz(tmp_path / "g.safetensors", count=3000, seed=1)
    assert outcomes[False] > 2000
    assert outcomes[True] > 100, "some damage is harmless: the fuzzer must reach what comes after the checks"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_hundred_thousand_damaged_files(tmp_path, seed):
    assert fuzz(tmp_path / "g.safetensors", count=10_000, seed=seed).total() == 10_000


def test_the_fuzzer_is_deterministic():
    def contents(seed: int) -> list[bytes]:
        rng = random.Random(seed)
        return [mutation(rng, SEEDS["heads"]) for mutation in MUTATIONS]

    assert contents(5) == contents(5)


@pytest.mark.parametrize("piece", [b'"%d":[]', b'"%d":{}', b'"%d":[[],[],[],[],[],[]]', b'"%d":"text"'])
@pytest.mark.parametrize("inside", [b"{%s}", b'{"__metadata__":{%s}}'])
def test_a_large_header_costs_a_bounded_multiple_of_its_size(tmp_path, piece, inside):
    path = tmp_path / "g.safetensors"
    header = inside % b",".join(piece % number for number in range(20_000))
    path.write_bytes(with_header(header))
    assert outcome(path, load) != "read"
    assert seconds(path, load) < 1
    assert peak_bytes(path, load) <= 40 * len(header)


@pytest.mark.parametrize("name", ["region-bitmap", "bitmap", "int64"])
def test_a_good_file_costs_a_bounded_multiple_of_its_size(name):
    assert peak_bytes(GOLDEN / f"{name}.safetensors", load_region) <= MEGABYTE
