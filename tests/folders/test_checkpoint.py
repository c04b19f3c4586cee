"""Model folders: what they hold, and under which names."""

from __future__ import annotations

import numpy as np
import pytest

from skillgraft.errors import InputError
from skillgraft.files import tensors as tensor_file
from skillgraft.folders import checkpoint
from skillgraft.folders.checkpoint import Checkpoint, MemoryTensors, chunks, renamed, same_tensor, take
from skillgraft.folders.weight_files import other_weights
from skillgraft.values.numbers import BFLOAT16, same_bits
from tests.model_folders import EMBEDDING, QUERY, body, moved, numbers, write_folder

INDEX = "model.safetensors.index.json"


def test_names_have_no_prefix_and_heads_keep_theirs(tmp_path):
    bare = Checkpoint.open(write_folder(tmp_path / "bare", body()))
    under = Checkpoint.open(write_folder(tmp_path / "under", body(prefix="bert.", classifier__weight=(2, 4))))
    assert (bare.prefix, under.prefix) == ("", "bert.")
    assert under.shapes.keys() - bare.shapes.keys() == {"classifier.weight"}
    assert under.places[QUERY].raw == f"bert.{QUERY}"
    assert under.under_prefix(QUERY)
    assert not under.under_prefix("classifier.weight")
    assert bare.fingerprint == under.fingerprint


def test_names_that_collide_without_prefix_are_refused(tmp_path):
    tensors = {"score.weight": numbers((2, 4), seed=1), "bert.score.weight": numbers((2, 4), seed=2)}
    folder = write_folder(tmp_path / "m", {**body(prefix="bert."), **tensors})
    with pytest.raises(
        InputError, match=r"bert\.score\.weight and score\.weight are both 'score\.weight' without the prefix"
    ):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    ("raw", "old", "new", "expected"),
    [
        (QUERY, "", "bert.", f"bert.{QUERY}"),
        (f"bert.{QUERY}", "bert.", "", QUERY),
        (f"bert.{QUERY}", "bert.", "model.", f"model.{QUERY}"),
        ("classifier.weight", "bert.", "", "classifier.weight"),
        ("classifier.weight", "", "bert.", "classifier.weight"),
        ("lm_head.weight", "", "model.", "lm_head.weight"),
        ("pooler.dense.bias", "", "bert.", "bert.pooler.dense.bias"),
        ("bert.pooler.dense.bias", "bert.", "", "pooler.dense.bias"),
    ],
)
def test_the_body_moves_between_prefixes_and_heads_stay(raw, old, new, expected):
    assert renamed(raw, old, new) == expected


@pytest.mark.parametrize("dtype", [np.float32, BFLOAT16, np.float16, np.float64], ids=str)
@pytest.mark.parametrize("shards", [1, 3])
def test_reading(dtype, shards, tmp_path):
    tensors = {**body(dtype=dtype), "logit_scale": np.array(2.5, dtype), "empty.weight": np.empty((0, 4), dtype)}
    folder = Checkpoint.open(write_folder(tmp_path / "m", tensors, shards=shards))
    assert folder.sharded == (shards > 1)
    for name, expected in tensors.items():
        assert same_bits(folder.read(name), expected)
        if expected.size > 2:
            assert same_bits(folder.flat(name, 1, 3), expected.reshape(-1)[1:3])
        assert not folder.read(name).flags.writeable


def test_take_reads_sites_across_chunks(monkeypatch):
    tensors = MemoryTensors({"w": np.arange(20, dtype=np.float32).reshape(4, 5)})
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 12)
    assert list(chunks(20, 4))[:2] == [(0, 3), (3, 6)]
    for at in ([], [0], [2, 3], [0, 7, 8, 19], list(range(20))):
        assert take(tensors, "w", np.array(at, np.int32)).tolist() == at


def test_same_tensor_compares_bits_chunk_by_chunk(monkeypatch):
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 8)
    a = MemoryTensors({"w": np.array([1, 2, 3, 0], np.float32)})
    assert same_tensor(a, MemoryTensors({"w": np.array([1, 2, 3, 0], np.float32)}), "w")
    for other in ([1, 2, 3, -0.0], [1, 2, 4, 0]):
        assert not same_tensor(a, MemoryTensors({"w": np.array(other, np.float32)}), "w")
    assert not same_tensor(a, MemoryTensors({"w": np.array([1, 2, 3, 0], np.float64)}), "w")
    assert not same_tensor(a, MemoryTensors({"w": np.array([[1, 2, 3, 0]], np.float32)}), "w")


def test_fingerprint_depends_on_the_body_alone(tmp_path):
    plain = Checkpoint.open(write_folder(tmp_path / "a", body(), shards=2)).fingerprint
    ids = {"embeddings.position_ids": np.arange(4)}
    heads = {**body(pooler__dense__weight=(4, 4), lm_head__weight=(3, 4)), **ids}
    assert Checkpoint.open(write_folder(tmp_path / "b", heads)).fingerprint == plain
    tied = {**body(), "lm_head.weight": body()[EMBEDDING]}
    assert Checkpoint.open(write_folder(tmp_path / "c", tied)).fingerprint == plain
    for place, name in enumerate(body()):
        other = write_folder(tmp_path / f"d{place}", moved(body(), name))
        assert Checkpoint.open(other).fingerprint != plain
    half = write_folder(tmp_path / "e", {name: array.astype(np.float16) for name, array in body().items()})
    assert Checkpoint.open(half).fingerprint != plain


def test_fingerprint_looks_at_64_blocks_from_first_to_last_byte():
    size = 100_000
    plain = checkpoint.fingerprint(MemoryTensors({"w": np.zeros(size, np.float32)}))
    for block in (0, 1, 31, 62, 63):
        for place in (0, 15):
            array = np.zeros(size, np.float32)
            array[block * (size - 16) // 63 + place] = 1
            assert checkpoint.fingerprint(MemoryTensors({"w": array})) != plain


def test_tied_copies_count_once(tmp_path):
    tensors = body()
    tensors["lm_head.weight"] = tensors["decoder.embed_tokens.weight"] = tensors[EMBEDDING]
    tensors["encoder.layer.1.copy.weight"] = tensors[QUERY]  # inside the layers nothing is tied
    folder = Checkpoint.open(write_folder(tmp_path / "m", tensors))
    # Body before heads, then the shorter name.
    counted = "decoder.embed_tokens.weight"
    assert folder.twins == {EMBEDDING: counted, "lm_head.weight": counted}


def test_name_is_the_hub_name_or_the_folder(tmp_path):
    assert Checkpoint.open(write_folder(tmp_path / "m", body())).name == "m"
    assert (
        Checkpoint.open(write_folder(tmp_path / "n", body(), config={"_name_or_path": "org/model"})).name == "org/model"
    )
    local = write_folder(tmp_path / "o", body(), config={"_name_or_path": str(tmp_path)})
    assert Checkpoint.open(local).name == "o"


def test_single_file_wins_over_an_index_as_in_transformers(tmp_path):
    folder = write_folder(tmp_path / "m", body(), shards=2)
    tensor_file.write(folder / "model.safetensors", body(7), {})
    opened = Checkpoint.open(folder)
    assert not opened.sharded
    assert same_bits(opened.read(QUERY), body(7)[QUERY])
    stale = [item.name for item in other_weights(folder, opened.files)]
    assert stale == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
