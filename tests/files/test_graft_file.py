"""Graft files: what is written, what is read, and the safetensors package as a second opinion."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from skillgraft.errors import InputError, RunError
from skillgraft.files.graft_file import is_region_file, load, load_info, load_region, save, save_region
from skillgraft.files.tensors import TensorFile
from skillgraft.values.graft import Graft, total
from skillgraft.values.info import Info
from skillgraft.values.numbers import BFLOAT16
from skillgraft.values.region import Region, Scope
from tests.fuzz.raw_file import RawFile, with_header
from tests.golden.make_golden import HERE as GOLDEN
from tests.golden.make_golden import REGION, graft_of

WEIGHT, BIAS = "encoder.layer.0.query.weight", "encoder.layer.0.query.bias"


def test_a_scope_of_any_size_costs_nothing(tmp_path):
    scope = Scope.of("all", {f"layer.{n}": (2**20, 2**20, 2**18) for n in range(50)})
    region = Region(scope, {"layer.7": [2**58 - 1]})
    save_region(region, tmp_path / "r.safetensors")
    assert load_region(tmp_path / "r.safetensors") == region


def test_i64_indices_are_read_everywhere(tmp_path):
    raw = RawFile.read(GOLDEN / "region.safetensors")
    low = raw.array(f"{WEIGHT}.indices")
    bitmap = raw.array(f"{BIAS}.bitmap")
    raw = RawFile({"__metadata__": raw.metadata}, b"")
    raw.append(f"{WEIGHT}.indices", low.astype(np.int64), "I64")
    raw.append(f"{BIAS}.bitmap", bitmap, "U8")
    (tmp_path / "r.safetensors").write_bytes(raw.content())
    assert load_region(tmp_path / "r.safetensors") == REGION


def test_numbers_at_odd_places_are_read(tmp_path):
    raw = RawFile.read(GOLDEN / "heads.safetensors")
    for spaces in range(8):
        path = tmp_path / f"{spaces}.safetensors"
        path.write_bytes(with_header(json.dumps(raw.header).encode() + b" " * spaces, raw.data))
        assert load(path) == load(GOLDEN / "heads.safetensors")


def test_a_missing_file_and_a_folder(tmp_path):
    for read in (load, load_region, load_info, is_region_file):
        with pytest.raises(InputError, match=r"none\.safetensors cannot be read: No such file"):
            read(tmp_path / "none.safetensors")
        with pytest.raises(InputError, match="is a folder, expected an ordinary file"):
            read(tmp_path)


def test_an_existing_file_is_not_overwritten(tmp_path):
    path = tmp_path / "g.safetensors"
    save(graft_of(REGION), path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="exists already; choose another output"):
        save(-graft_of(REGION), path)
    with pytest.raises(InputError, match="exists already"):
        save_region(REGION, path)
    assert path.read_bytes() == before
    save(-graft_of(REGION), path, overwrite=True)
    assert load(path) == -graft_of(REGION)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("skillgraft.files.tensors.header_bytes", fail)
    with pytest.raises(RunError, match=r"g\.safetensors could not be written: the disk is full"):
        save(graft_of(REGION), tmp_path / "g.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_loaded_graft_outlives_its_file(tmp_path):
    path = tmp_path / "g.safetensors"
    save(graft_of(REGION), path)
    loaded = load(path)
    path.write_bytes(b"")  # a map of the file would now end the process
    assert loaded == graft_of(REGION)


def test_what_could_not_be_read_is_not_written(tmp_path):
    with pytest.raises(InputError, match="base_fingerprint must be 64 hexadecimal digits, found 'abc'"):
        save(graft_of(REGION, base_fingerprint="abc"), tmp_path / "g.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_a_bitmap_is_taken_where_it_is_smaller(tmp_path, entries):
    region = Region(Scope.of("all", {"w": (64,)}), {"w": range(entries)})
    save_region(region, tmp_path / "r.safetensors")
    expected = "w.indices" if entries <= 2 else "w.bitmap"  # 8 bytes of bits against 4 for each index
    assert list(TensorFile.open(tmp_path / "r.safetensors").entries) == [expected]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.safetensors")), ids=lambda path: path.stem)
def test_the_safetensors_package_reads_our_files(path):
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file

    ours = TensorFile.open(path)
    theirs = load_file(path)
    assert theirs.keys() == ours.entries.keys()
    for name, tensor in theirs.items():
        assert tuple(tensor.shape) == ours.entries[name].shape
        assert str(tensor.dtype).removeprefix("torch.") == str(ours.entries[name].dtype)
        assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == ours.read(name).tobytes()
    with safe_open(path, "pt") as file:
        assert file.metadata() == ours.metadata


@pytest.mark.long
def test_ten_million_entries(tmp_path):
    scope = Scope.of("all", {"a": (4000, 5000), "b": (20_000_000,)})
    generator = np.random.default_rng(0)

    def dense(seed: int) -> Graft:
        at = np.flatnonzero(np.random.default_rng(seed).random(20_000_000) < 0.25).astype(np.int32)
        before = np.zeros(len(at), np.float32)
        after = generator.normal(size=(2, len(at))).astype(np.float32)
        sites, old = {"a": at, "b": at}, {"a": before, "b": before}
        return Graft(Region(scope, sites), old, {"a": after[0], "b": after[1]}, info=Info(task=str(seed)))

    started = time.perf_counter()
    g, h = dense(1), dense(2)
    assert len(g) > 9_900_000
    summed = total([g, h])
    assert len(summed) == len(g.region | h.region)
    assert (g & h.region).region == g.region & h.region
    assert (g & h.region) + g.outside(h.region) == g
    for name, graft in (("g", g), ("sum", summed), ("half", 0.5 * g)):
        save(graft, tmp_path / f"{name}.safetensors")
        assert load(tmp_path / f"{name}.safetensors") == graft
    assert (0.5 * g).written("a").dtype == np.float32
    assert time.perf_counter() - started < 120


def test_bfloat16_round_trip_needs_no_torch(tmp_path):
    save(graft_of(REGION, BFLOAT16), tmp_path / "g.safetensors")
    assert load(tmp_path / "g.safetensors").before[WEIGHT].dtype == BFLOAT16
