"""What a folder's numbers are: the format that most of them have, and a digest that any changed bit changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft.folders import checkpoint
from skillgraft.folders.checkpoint import Checkpoint, MemoryTensors, content_digest
from skillgraft.opening.source import Source
from skillgraft.values.numbers import BFLOAT16
from tests.model_folders import QUERY, body, numbers, write_folder
from tests.readouts import making

FORMATS = [np.dtype(np.float32), BFLOAT16, np.dtype(np.float16), np.dtype(np.float64)]


# The format


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("shards", [1, 3])
def test_the_format_of_a_folder(dtype, shards, tmp_path):
    assert Checkpoint.open(write_folder(tmp_path / "m", body(dtype=dtype), shards=shards)).format == dtype


def test_the_format_that_most_entries_have_counts_whatever_the_number_of_tensors(tmp_path):
    few = {f"encoder.layer.0.{name}.bias": numbers((2,), seed=1) for name in "abcdefgh"}
    folder = write_folder(tmp_path / "m", {**few, QUERY: numbers((20, 20), seed=2).astype(BFLOAT16)})
    assert Checkpoint.open(folder).format == BFLOAT16


def test_whole_numbers_are_no_format_of_weights(tmp_path):
    ids = {"embeddings.position_ids": np.arange(10_000)}
    assert Checkpoint.open(write_folder(tmp_path / "m", {**ids, **body(dtype=np.float16)})).format == np.float16
    assert Checkpoint.open(write_folder(tmp_path / "ids", ids)).format == np.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_source_has_its_folders_format_whatever_the_configuration_says(dtype, tmp_path):
    import transformers

    model = transformers.AutoModelForMaskedLM.from_pretrained(making.bert(tmp_path / "wide"), dtype=dtype)
    folder = making.save(tmp_path / "m", model, making.word_pieces())
    config = folder / "config.json"
    config.write_text(config.read_text().replace(f'"{dtype}"', '"float64"'))
    assert Source.of(folder).format == dtype


def test_a_gguf_file_is_loaded_as_float32_without_being_read(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"no GGUF at all")
    assert Source.of(tmp_path / "model.gguf").format == "float32"
    assert Source.of(tmp_path).format == "float32"


# The digest


@pytest.fixture
def large() -> dict[str, np.ndarray]:
    """Tensors larger than what a fingerprint samples."""
    return {QUERY: numbers((100, 100), seed=0), "embeddings.word_embeddings.weight": numbers((300, 50), seed=1)}


def test_the_digest_is_that_of_the_content_alone(large, tmp_path):
    """Whatever the files, their order and their headers."""
    whole = Checkpoint.open(write_folder(tmp_path / "one", large))
    shards = Checkpoint.open(write_folder(tmp_path / "three", dict(reversed(large.items())), shards=2))
    assert whole.digest == shards.digest == content_digest(MemoryTensors(large))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_any_changed_bit_changes_it(dtype, data):
    tensors = {"a": numbers((7, 5), seed=0).astype(dtype), "b": numbers((40, 40), seed=1).astype(dtype)}
    name = data.draw(st.sampled_from(sorted(tensors)))
    bit = data.draw(st.integers(0, 8 * tensors[name].nbytes - 1))
    other = {**tensors, name: tensors[name].copy()}
    other[name].reshape(-1).view(np.uint8)[bit // 8] ^= 1 << bit % 8
    assert content_digest(MemoryTensors(other)) != content_digest(MemoryTensors(tensors))


def test_ten_changed_entries_are_seen_that_the_fingerprint_misses(large, tmp_path):
    """The fingerprint samples: it names a base, and does not decide that earlier work may be taken up again."""
    base = Checkpoint.open(write_folder(tmp_path / "base", large))
    draw, missed = np.random.default_rng(0), 0
    for number in range(20):
        changed = {**large, QUERY: large[QUERY].copy()}
        changed[QUERY].reshape(-1)[draw.choice(10_000, 10, replace=False)] += 1
        other = Checkpoint.open(write_folder(tmp_path / str(number), changed))
        assert other.digest != base.digest
        missed += other.fingerprint == base.fingerprint
    assert missed > 0, "if the fingerprint saw all of them, this would show nothing"


def test_names_formats_and_shapes_count(large):
    digests = {
        content_digest(MemoryTensors(tensors))
        for tensors in (
            large,
            {**large, QUERY: large[QUERY].reshape(50, 200)},
            {**large, QUERY: large[QUERY].view(np.int32)},
            {f"{name}x": array for name, array in large.items()},
            {QUERY: large[QUERY]},
            {**large, "empty": np.empty((0, 4), np.float32)},
        )
    }
    assert len(digests) == 6


@pytest.mark.parametrize("size", [4, 40, 1 << 20])
def test_the_chunks_make_no_difference(large, size, monkeypatch):
    expected = content_digest(MemoryTensors(large))
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", size)
    assert content_digest(MemoryTensors(large)) == expected
