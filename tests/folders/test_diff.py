"""What a fine-tune changed: compared with plain loops over whole arrays, in every format, in shards, and from an adapter."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from skillgraft import Region, Scope, diff, extract, save
from skillgraft.errors import InputError
from skillgraft.folders import checkpoint, movement
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.diff import Change
from skillgraft.values.names import in_layers
from tests.model_folders import (
    BIAS,
    BODY,
    DENSE,
    EMBEDDING,
    FORMATS,
    QUERY,
    body,
    content,
    moved,
    numbers,
    write_folder,
)

from .test_lora import factors, handmade

FUSED = "h.0.attn.c_attn.weight"


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64).reshape(-1)


def brute(base: dict[str, np.ndarray], tuned: dict[str, np.ndarray], names: list[str]) -> Change:
    """The change of some tensors together, from whole arrays."""
    before = np.concatenate([wide(base[name]) for name in names])
    after = np.concatenate([wide(tuned[name]) for name in names])
    differ = sum(
        int((base[n].view(f"u{base[n].itemsize}") != tuned[n].view(f"u{base[n].itemsize}")).sum()) for n in names
    )
    return Change(len(before), differ, float(((after - before) ** 2).sum()), float((before**2).sum()))


def same(found: Change, expected: Change) -> bool:
    return (found.entries, found.changed) == (expected.entries, expected.changed) and np.allclose(
        [found.delta_squares, found.base_squares], [expected.delta_squares, expected.base_squares], rtol=1e-6
    )


@pytest.fixture(params=[2, 128 * 1024], ids=["small blocks", "one block"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(movement, "_BLOCK", request.param)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_number_is_that_of_whole_arrays(dtype: np.dtype, shards: int, tmp_path: Path) -> None:
    base = body(dtype=dtype)
    tuned = moved(base, QUERY, DENSE, EMBEDDING)
    base[BIAS][0], tuned[BIAS][0] = 0.0, -0.0  # other bits, and a delta of nothing
    folders = [write_folder(tmp_path / name, each, shards=shards) for name, each in (("b", base), ("t", tuned))]
    before = [content(folder) for folder in folders]
    found = diff(*folders)
    assert same(found.whole, brute(base, tuned, [QUERY, BIAS, DENSE]))
    assert list(found.by_layer()) == ["encoder.layer.0", "encoder.layer.1"]
    assert same(found.by_layer()["encoder.layer.0"], brute(base, tuned, [QUERY, BIAS]))
    for kind, name in (("bias", BIAS), ("query", QUERY), ("MLP out", DENSE)):
        assert same(found.by_kind()[kind], brute(base, tuned, [name]))
    assert found.outside.keys() == {EMBEDDING}
    assert same(found.outside[EMBEDDING], brute(base, tuned, [EMBEDDING]))
    assert [content(folder) for folder in folders] == before
    assert len(list(tmp_path.iterdir())) == 2


def test_a_fused_matrix_counts_by_its_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(movement, "_BLOCK", 5)
    base = {FUSED: numbers((4, 12), seed=1), "h.0.attn.c_proj.weight": numbers((4, 4), seed=2)}
    tuned = {name: array.copy() for name, array in base.items()}
    tuned[FUSED][:, 4:8] += 1  # the keys
    tuned[FUSED][0, 11] += 2  # a value
    found = diff(write_folder(tmp_path / "b", base), write_folder(tmp_path / "t", tuned)).by_kind()
    assert {kind: change.changed for kind, change in found.items()} == {
        "query": 0,
        "key": 16,
        "value": 1,
        "attention output": 0,
    }
    assert found["key"].entries == 16
    assert found["key"].norm == pytest.approx(4)
    assert found["value"].base_squares == pytest.approx(float((wide(base[FUSED][:, 8:]) ** 2).sum()))


@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
def test_the_table_says_what_extract_takes(dtype: np.dtype, tmp_path: Path) -> None:
    """Entries exactly, the share of the change to 1.6 %, the file's size to a tenth or 500 bytes."""
    names = [f"encoder.layer.{layer}.output.dense.weight" for layer in range(3)]
    base = {name: numbers((300, 200), seed=seed, dtype=dtype) for seed, name in enumerate(names)}
    random = np.random.default_rng(0)
    change = {name: random.standard_t(2, base[name].shape) * 0.01 for name in names}  # a few move far
    tuned = {name: (base[name].astype(np.float64) + change[name]).astype(dtype) for name in names}
    folders = write_folder(tmp_path / "b", base), write_folder(tmp_path / "t", tuned)
    found = diff(*folders)
    squares = np.sort(np.concatenate([(wide(tuned[n]) - wide(base[n])) ** 2 for n in names]))[::-1]
    for top in found.top:
        graft = extract(*folders, density=top.density)
        save(graft, file := tmp_path / f"{top.density}.safetensors")
        assert top.entries == len(graft)
        assert top.share == pytest.approx(float(squares[: top.entries].sum() / squares.sum()), rel=0.016)
        assert top.share == pytest.approx(graft.norm**2 / found.whole.delta_squares, rel=0.016)
        assert top.bytes == pytest.approx(file.stat().st_size, rel=0.1, abs=500)


def test_heads_and_settings(tmp_path: Path) -> None:
    base = body(pooler__dense__weight=(4, 4), cls__bias=(3,))
    tuned = {**moved(base, QUERY), "classifier.weight": numbers((2, 4), seed=3)}
    tuned["pooler.dense.weight"] = tuned["pooler.dense.weight"] + 1
    del tuned["cls.bias"]
    b = write_folder(tmp_path / "b", base, config={"pad_token_id": 0, "gone": 1})
    found = diff(b, write_folder(tmp_path / "t", tuned, config={"pad_token_id": 5}))
    assert (found.heads, found.added, found.removed) == (
        ("pooler.dense.weight",),
        ("classifier.weight",),
        ("cls.bias",),
    )
    assert found.config == {"gone": {"base": 1}, "pad_token_id": {"base": 0, "tuned": 5}}
    assert json.loads(json.dumps(found.facts)) == found.facts
    assert found.facts["norm"] == found.whole.norm


def test_nothing_changed(tmp_path: Path) -> None:
    base = {**body(), BIAS: np.zeros(4, np.float32)}
    folder = write_folder(tmp_path / "b", base)
    found = diff(folder, folder)
    assert (found.whole.changed, found.whole.norm, found.outside, found.config) == (0, 0.0, {}, {})
    assert [top.share for top in found.top] == [0.0, 0.0, 0.0]
    assert found.by_kind()["bias"].relative is None


def test_an_adapter_is_a_tuned_model(tmp_path: Path) -> None:
    base = write_folder(tmp_path / "b", body())
    tensors = factors(QUERY.removesuffix(".weight"), 4, 4)
    adapter = handmade(tmp_path / "a", tensors)
    graft, found = extract(base, adapter), diff(base, adapter)
    assert found.whole.changed == len(graft) > 0
    assert found.whole.norm == pytest.approx(graft.norm)


def test_another_format_needs_convert(tmp_path: Path) -> None:
    base = body(dtype=FORMATS["bfloat16"])
    tuned = {name: array.astype(np.float32) for name, array in base.items()}
    tuned[QUERY][0, 0] += 1
    folders = write_folder(tmp_path / "b", base), write_folder(tmp_path / "t", tuned)
    with pytest.raises(InputError, match="--convert"):
        diff(*folders)
    assert diff(*folders, convert=True).whole.changed == 1


def test_numbers_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    tuned = body()
    tuned[DENSE][0, 0] = np.nan
    with pytest.raises(InputError, match=f"{DENSE}: base or tuned holds NaN"):
        diff(write_folder(tmp_path / "b", body()), write_folder(tmp_path / "t", tuned))


def test_the_scope_is_the_denominator(tmp_path: Path) -> None:
    base = body()
    folders = write_folder(tmp_path / "b", base), write_folder(tmp_path / "t", moved(base))
    everything = diff(*folders, scope="all")
    assert everything.whole.entries == sum(array.size for array in base.values())
    assert everything.outside == {}
    assert next(iter(everything.by_layer())) == ""
    assert diff(*folders, scope="biases").whole.entries == 4


def test_memory_is_a_few_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An adapter and a rounded model are computed as they are read, so the chunk is what must bound them too."""
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 256 * 1024)
    monkeypatch.setattr(movement, "_BLOCK", 16 * 1024)
    name = "encoder.layer.0.output.dense.weight"
    base = {name: np.zeros((4096, 1024), np.float32)}
    folders = [write_folder(tmp_path / "b", base), write_folder(tmp_path / "t", {name: base[name] + np.float32(1)})]
    folders.append(write_folder(tmp_path / "w", {name: base[name].astype(np.float64)}))
    whole = base[name].nbytes
    del base
    for tuned, convert in ((folders[1], False), (folders[2], True)):
        tracemalloc.start()
        diff(folders[0], tuned, convert=convert)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < whole / 4


def test_counts_agree_with_the_region_of_all_that_changed(tmp_path: Path) -> None:
    base = body()
    folders = write_folder(tmp_path / "b", base), write_folder(tmp_path / "t", moved(base, QUERY, DENSE))
    layers = Scope.of("layers", {name: shape for name, shape in BODY.items() if in_layers(name)})
    region = Region(layers, extract(*folders).region.sites)
    found = diff(*folders)
    assert {cell: change.changed for cell, change in found.cells.items()} == region.by_layer_and_kind()
    assert found.base == Checkpoint.open(folders[0]).name
