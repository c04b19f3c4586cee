"""What extract takes, what it leaves, and what it says about it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint, MemoryTensors
from skillgraft.folders.extract import extract
from skillgraft.folders.movement import count_of, most_moved
from skillgraft.values.numbers import BFLOAT16, same_bits
from skillgraft.values.region import Region, Scope
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
    write_pair,
)

LAYERS = [QUERY, BIAS, DENSE]


@pytest.fixture
def pair(tmp_path):
    return partial(write_pair, tmp_path)


@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
def test_every_entry_whose_bits_differ_is_taken(dtype, pair):
    base = body(dtype=dtype)
    base[QUERY][0, 0] = 0.0
    tuned = moved(base, QUERY, DENSE, share=0.3)
    tuned[QUERY][0, 0] = -0.0
    folders = pair(base, tuned)
    graft = extract(*folders)
    for name in LAYERS:
        expected = np.flatnonzero(base[name].view(f"u{dtype.itemsize}") != tuned[name].view(f"u{dtype.itemsize}"))
        assert graft.region.sites.get(name, np.empty(0)).tolist() == expected.tolist()
    assert 0 in graft.region.sites[QUERY]
    assert same_bits(graft.before[QUERY], base[QUERY].reshape(-1)[graft.region.sites[QUERY]])
    assert same_bits(graft.change[QUERY], tuned[QUERY].reshape(-1)[graft.region.sites[QUERY]])
    assert graft.base_fingerprint == Checkpoint.open(folders[0]).fingerprint


def test_scope_is_the_layers_unless_more_changed(pair, tmp_path):
    base, tuned = pair(body(), moved(body(), QUERY))
    assert extract(base, tuned).region.scope.label == "layers"
    wider = write_folder(tmp_path / "wider", moved(body(), QUERY, EMBEDDING))
    assert extract(base, wider).region.scope.label == "all"
    assert set(extract(base, wider).region) == {QUERY, EMBEDDING}


def test_what_changed_outside_the_scope_is_counted(pair):
    base, tuned = body(), moved(body(), share=0.4)
    folders = pair(base, tuned)
    for graft in (extract(*folders, scope="layers"), extract(*folders, entries=3)):
        expected = {n: int((base[n] != tuned[n]).sum()) for n in BODY if n not in LAYERS}
        assert graft.info["outside_scope"] == expected
        assert set(graft.region.scope.shapes) == set(LAYERS)
    assert "outside_scope" not in extract(*folders).info


def test_budget_takes_the_topmost_of_the_scope(pair):
    base, tuned = body(), moved(body())
    folders = pair(base, tuned)
    for scope, names in (("layers", LAYERS), ("biases", [BIAS]), ("all", list(BODY)), ("*query*", [QUERY, BIAS])):
        graft = extract(*folders, density=0.5, scope=scope)
        within = Scope.of(scope, {name: BODY[name] for name in names})
        assert graft.region == most_moved(
            MemoryTensors(base), MemoryTensors(tuned), within, count_of(within, density=0.5)
        )
        assert len(graft) == round(0.5 * within.size)


def test_region_is_taken_as_it_is(pair):
    folders = pair(body(), moved(body()))
    region = Region(Scope.of("mine", {QUERY: (4, 4), BIAS: (4,)}), {QUERY: [1, 5], BIAS: [0]})
    graft = extract(*folders, region=region)
    assert graft.region == region
    assert graft.info["method"] == "region"
    empty = extract(*folders, region=Region(region.scope, {}))
    assert (len(empty), empty.info["method"]) == (0, "region")


def test_provenance(pair):
    labels = {"1": "good", "0": "bad", "10": "odd"}
    config = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": labels,
        "pad_token_id": 7,
        "model_type": "bert",
    }
    tuned = {f"bert.{name}": array for name, array in moved(body(), QUERY).items()}
    tuned |= {"classifier.weight": numbers((3, 4), seed=9), "bert.pooler.dense.bias": numbers((4,), seed=8)}
    info = extract(*pair({**body(), "lm_head.bias": numbers((4,), seed=3)}, tuned, config=config)).info
    assert (info["base"], info["tuned"], info["prefix"]) == ("base", "tuned", "bert.")
    assert info["body_heads"] == ["pooler.dense.bias"]
    assert info["removed"] == ["lm_head.bias"]
    assert info["labels"] == ["bad", "good", "odd"]
    assert info["num_labels"] == 3
    assert info["config"] == {"pad_token_id": 7}
    assert info["recipe"] == {"density": None, "entries": None, "scope": "layers", "convert": False}


@pytest.mark.parametrize("labels", [{"a": "x"}, ["x"], None])
def test_odd_labels_do_not_disturb(labels, pair):
    assert "labels" not in extract(*pair(body(), moved(body(), QUERY), config={"id2label": labels})).info


# Heads and buffers


def heads_of(pair, base: dict, tuned: dict) -> tuple[set[str], list[str]]:
    graft = extract(*pair({**body(), **base}, {**moved(body(), QUERY), **tuned}))
    assert set(graft.region) == {QUERY}
    for name, head in graft.heads.items():
        assert same_bits(head, tuned[name])
    return set(graft.heads), graft.info.get("removed", [])


def test_heads_travel_whole(pair):
    two, three = numbers((2, 4), seed=1), numbers((3, 4), seed=2)
    base = {"classifier.weight": two, "score.weight": two, "pooler.dense.weight": two, "qa_outputs.bias": two[0]}
    tuned = {"classifier.weight": three, "score.weight": two, "pooler.dense.weight": two + 1, "regressor.bias": two[1]}
    brought, removed = heads_of(pair, base, tuned)
    assert brought == {"classifier.weight", "pooler.dense.weight", "regressor.bias"}
    assert removed == ["qa_outputs.bias"]


def test_buffers_that_differ_travel_whole_and_missing_ones_are_removed(pair):
    ids, kept = "embeddings.position_ids", np.array([True, False])
    base = {ids: np.arange(6), "embeddings.kept": kept, "embeddings.gone": np.arange(3, dtype=np.int32)}
    brought, removed = heads_of(pair, base, {ids: np.arange(8), "embeddings.kept": kept})
    assert (brought, removed) == ({ids}, ["embeddings.gone"])


def test_graft_outlives_tuned(pair):
    base, tuned = pair(body(), {**moved(body(), QUERY), "classifier.weight": numbers((3, 4), seed=2)})
    graft = extract(base, tuned)
    (tuned / "model.safetensors").write_bytes(b"")  # a view of the file would now end the process
    assert same_bits(graft.heads["classifier.weight"], numbers((3, 4), seed=2))


# Tied weights stored twice


def test_tied_copy_is_stored_once(pair):
    base, tuned = body(), moved(body(), EMBEDDING)
    for tensors in (base, tuned):
        tensors["lm_head.weight"] = tensors[EMBEDDING]
    graft = extract(*pair(base, tuned))
    assert set(graft.region) == {EMBEDDING}
    assert "lm_head.weight" not in graft.region.scope.shapes
    assert not graft.heads


def test_copy_that_comes_untied_is_compared_on_its_own(pair):
    base, tuned = body(), moved(body(), EMBEDDING)
    base["lm_head.weight"] = base[EMBEDDING]
    tuned["lm_head.weight"] = moved(base, "lm_head.weight", seed=5)["lm_head.weight"]
    assert set(extract(*pair(base, tuned)).region) == {EMBEDDING, "lm_head.weight"}


def test_tied_copy_that_tuned_does_not_store_is_removed(pair):
    graft = extract(*pair({**body(), "lm_head.weight": body()[EMBEDDING]}, moved(body(), EMBEDDING)))
    assert graft.info["removed"] == ["lm_head.weight"]


def test_tied_copy_that_only_tuned_stores_is_not_carried(pair):
    tuned = moved(body(), EMBEDDING)
    graft = extract(*pair(body(), {**tuned, "lm_head.weight": tuned[EMBEDDING]}))
    assert not graft.heads


# Number formats


def test_formats_that_differ_need_convert(pair):
    base = body(dtype=BFLOAT16)
    tuned = moved({name: array.astype(np.float32) for name, array in base.items()}, QUERY)
    folders = pair(base, tuned)
    with pytest.raises(
        InputError, match=r"5 tensors are bfloat16 in .*/base and float32 in .*/tuned .*--convert to round"
    ):
        extract(*folders)
    graft = extract(*folders, convert=True)
    assert set(graft.region) == {QUERY}
    expected = tuned[QUERY].astype(BFLOAT16).reshape(-1)[graft.region.sites[QUERY]]
    assert same_bits(graft.change[QUERY], expected)
    assert len(extract(*folders, convert=True, entries=4)) == 4


def test_convert_rounds_float64_once(pair):
    """1 + 2^-8 is a tie in bfloat16; a little more must round up, which a stop at float32 would forget."""
    base = {**body(dtype=BFLOAT16)}
    tuned = {name: array.astype(np.float64) for name, array in base.items()}
    tuned[QUERY][0, 0] = 1 + 2.0**-8 + 2.0**-40
    graft = extract(*pair(base, tuned), convert=True)
    assert graft.change[QUERY].tolist() == [1 + 2.0**-7]


def test_convert_rounds_heads_too_and_leaves_those_alone_that_are_the_bases(pair):
    base = {**body(dtype=BFLOAT16), "pooler.dense.bias": np.ones(4, BFLOAT16), "steps": np.array([3], np.int64)}
    tuned = {name: array.astype(np.float32) for name, array in base.items()} | {"steps": np.array([4], np.int64)}
    tuned["classifier.weight"] = np.full((2, 4), 1 / 3, np.float32)
    graft = extract(*pair(base, tuned), convert=True)
    assert {name: str(head.dtype) for name, head in graft.heads.items()} == {
        "classifier.weight": "bfloat16",
        "steps": "int64",
    }
    assert same_bits(graft.heads["classifier.weight"], tuned["classifier.weight"].astype(BFLOAT16))


def test_convert_that_overflows(pair):
    tuned = {name: array.astype(np.float32) for name, array in body(dtype=np.float16).items()}
    tuned[QUERY][1, 1] = 1e6
    with pytest.raises(InputError, match=rf"{QUERY}: 1 of 1 numbers .* are NaN or infinite"):
        extract(*pair(body(dtype=np.float16), tuned), convert=True)


def test_inputs_stay_as_they_are(pair):
    base, tuned = pair(body(), moved(body(), QUERY))
    before = content(base), content(tuned)
    extract(base, tuned, entries=5)
    assert (content(base), content(tuned)) == before
