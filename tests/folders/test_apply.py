"""Putting grafts on folders and taking them off: the laws, several grafts, the ledger, and folder hygiene."""

from __future__ import annotations

import json

import numpy as np
import pytest

from skillgraft.errors import InputError
from skillgraft.files import graft_file, tensors
from skillgraft.folders.apply import apply, check, remove
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from skillgraft.folders.ledger import Ledger
from skillgraft.values.graft import total
from skillgraft.values.numbers import same_bits
from skillgraft.values.region import Region
from tests.model_folders import (
    BIAS,
    BODY,
    DENSE,
    EMBEDDING,
    FORMATS,
    QUERY,
    body,
    content,
    file_names,
    moved,
    named,
    numbers,
    same_weights,
    tensors_of,
    write_folder,
    write_pair,
)


def on_and_off(base, grafts, tmp_path, **options):
    """Apply, remove everything again, prove that the base is back; returns the grafted folder."""
    apply(base, *grafts, out=tmp_path / "on", **options)
    remove(tmp_path / "on", *grafts, out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)
    shards = {file for file in file_names(base) if "safetensors" in file}
    for file in file_names(base) - shards:
        assert (tmp_path / "off" / file).read_bytes() == (base / file).read_bytes()
    assert file_names(tmp_path / "off") == file_names(base)
    return tmp_path / "on"


@pytest.mark.parametrize("dtype", [*FORMATS.values(), np.dtype(np.float64)], ids=str)
@pytest.mark.parametrize(("ours", "theirs"), [(1, 1), (1, 3), (3, 1), (3, 3)])
@pytest.mark.parametrize("prefix", ["", "bert."])
def test_the_laws(dtype, ours, theirs, prefix, tmp_path):
    """apply(base, extract(base, tuned)) is tuned and remove gives base, in any format, sharding, prefix, with heads."""
    old = body(dtype=dtype, classifier__weight=(2, 4), lm_head__bias=(11,))
    new = {
        prefix + name if name in BODY else name: array for name, array in moved(old).items() if name != "lm_head.bias"
    }
    new |= {
        "classifier.weight": numbers((3, 4), seed=4, dtype=dtype),
        f"{prefix}pooler.dense.bias": numbers((4,), seed=5),
    }
    base, tuned = (
        write_folder(tmp_path / "base", old, shards=ours),
        write_folder(tmp_path / "tuned", new, shards=theirs),
    )
    (base / "README.md").write_text("the base's card")
    on = on_and_off(base, named(extract(base, tuned)), tmp_path)
    assert same_weights(on, tuned)
    assert Checkpoint.open(on).sharded == (ours > 1)


@pytest.mark.parametrize("near", [0, 3, 1024])
def test_patching_in_windows(near, tmp_path, monkeypatch):
    monkeypatch.setattr(tensors, "_NEAR", near)
    monkeypatch.setattr(tensors, "_WINDOW", 64)
    base = {**body(), "encoder.layer.2.w": numbers((50, 20), seed=1)}
    ours = write_folder(tmp_path / "base", base)
    theirs = write_folder(tmp_path / "tuned", moved(base, "encoder.layer.2.w", share=0.02))
    assert same_weights(on_and_off(ours, named(extract(ours, theirs)), tmp_path), theirs)


def test_budgeted_graft_changes_its_entries_alone(tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body()))
    graft = extract(base, tuned, entries=7)
    on = on_and_off(base, named(graft), tmp_path)
    for name, array in tensors_of(on).items():
        expected = body()[name].copy()
        at = graft.region.sites.get(name, [])
        expected.reshape(-1)[at] = moved(body())[name].reshape(-1)[at]
        assert same_bits(array, expected)


@pytest.mark.parametrize("scale", [0.5, -1.0, 0.0, 2.0])
@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
def test_scale(scale, dtype, tmp_path):
    old = body(dtype=dtype)
    base, tuned = write_pair(tmp_path, old, moved(old))
    graft = extract(base, tuned)
    on = tensors_of(on_and_off(base, named(graft), tmp_path, scale=scale))
    for name, at in graft.region.sites.items():
        assert same_bits(on[name].reshape(-1)[at], (scale * graft).written(name))


def test_saved_graft_does_the_same(tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body()))
    graft_file.save(extract(base, tuned), tmp_path / "g.safetensors")
    assert same_weights(on_and_off(base, named(graft_file.load(tmp_path / "g.safetensors")), tmp_path), tuned)


# Tied weights stored twice


def tied(tensors):
    return {**tensors, "lm_head.weight": tensors[EMBEDDING]}


@pytest.mark.parametrize("shards", [1, 3])
def test_both_copies_of_a_tied_weight_are_patched(shards, tmp_path):
    base = write_folder(tmp_path / "base", tied(body()), shards=shards)
    tuned = write_folder(tmp_path / "tuned", tied(moved(body())))
    assert same_weights(on_and_off(base, named(extract(base, tuned)), tmp_path), tuned)


@pytest.mark.parametrize("changed", [[EMBEDDING], ["lm_head.weight"], [EMBEDDING, "lm_head.weight"]], ids=str)
def test_copies_that_come_untied_part_ways(changed, tmp_path):
    base, tuned = write_pair(tmp_path, tied(body()), moved(tied(body()), *changed))
    assert same_weights(on_and_off(base, named(extract(base, tuned)), tmp_path), tuned)


def test_copies_that_become_tied(tmp_path):
    base = write_folder(tmp_path / "base", moved(tied(body()), "lm_head.weight"))
    tuned = write_folder(tmp_path / "tuned", tied(moved(body())))
    assert same_weights(on_and_off(base, named(extract(base, tuned)), tmp_path), tuned)


def test_second_copy_that_tuned_does_not_store(tmp_path):
    base, tuned = write_pair(tmp_path, tied(body()), moved(body()))
    assert same_weights(on_and_off(base, named(extract(base, tuned)), tmp_path), tuned)


# Several grafts


@pytest.fixture(params=["", "bert."], ids=["prefix added", "prefix kept"])
def two(request, tmp_path):
    """base, two disjoint grafts of it (one with a head and tuned's architecture), and one that overlaps both."""
    prefix = request.param
    masked = {"architectures": ["BertForMaskedLM"]}
    classes = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "bad", "1": "good"}}
    old = {**body(prefix=prefix, lm_head__bias=(11,)), f"{prefix}pooler.dense.bias": numbers((4,), seed=7)}
    base = write_folder(tmp_path / "base", old, config=masked)
    (base / "README.md").write_text("the base's card")
    first = moved(old, prefix + QUERY, prefix + DENSE, f"{prefix}pooler.dense.bias", seed=2)
    del first["lm_head.bias"]
    first = {f"bert.{name.removeprefix(prefix)}": array for name, array in first.items()}
    first["classifier.bias"] = numbers((2,), seed=6)
    second = moved(old, prefix + BIAS, prefix + EMBEDDING, seed=3)
    third = moved(old, prefix + QUERY, prefix + BIAS, seed=4, share=0.9)
    folders = [
        write_folder(tmp_path / f"t{n}", tensors, config=config)
        for n, (tensors, config) in enumerate([(first, classes), (second, masked), (third, masked)])
    ]
    return base, *(Named(extract(base, folder), f"g{n}.safetensors") for n, folder in enumerate(folders))


def architecture(folder) -> str:
    return json.loads((folder / "config.json").read_text())["architectures"][0]


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("off", [(0, 1), (1, 0)])
def test_disjoint_grafts_come_off_one_by_one_in_any_order(together, order, off, two, tmp_path):
    base, *grafts = two
    alone = []
    for n in (0, 1):
        apply(base, grafts[n], out=tmp_path / f"alone{n}")
        alone.append(tmp_path / f"alone{n}")
    if together:
        apply(base, *[grafts[n] for n in order], out=tmp_path / "both")
    else:
        apply(alone[order[0]], grafts[order[1]], out=tmp_path / "both")
    assert architecture(tmp_path / "both") == "BertForSequenceClassification"
    remove(tmp_path / "both", grafts[off[0]], out=tmp_path / "one")
    rest = alone[off[1]]
    assert same_weights(tmp_path / "one", rest)
    assert (tmp_path / "one" / "config.json").read_bytes() == (rest / "config.json").read_bytes()
    assert (tmp_path / "one" / "README.md").read_bytes() == (rest / "README.md").read_bytes()
    remove(tmp_path / "one", grafts[off[1]], out=tmp_path / "none")
    assert same_weights(tmp_path / "none", base)
    assert content(tmp_path / "none").keys() == content(base).keys()
    for file in ("config.json", "README.md"):
        assert (tmp_path / "none" / file).read_bytes() == (base / file).read_bytes()


def test_disjoint_grafts_come_off_together(two, tmp_path):
    base, first, second, _ = two
    apply(base, first, out=tmp_path / "a")
    apply(tmp_path / "a", second, out=tmp_path / "b")
    remove(tmp_path / "b", second, first, out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)


def test_overlapping_grafts_are_added_up_in_any_order(two, tmp_path):
    base, first, second, third = two
    apply(base, first, second, third, out=tmp_path / "abc", scale=0.5)
    apply(base, third, first, second, out=tmp_path / "cab", scale=0.5)
    assert same_weights(tmp_path / "abc", tmp_path / "cab")
    whole = total([0.5 * g.graft.without_heads() for g in (first, second, third)])
    on = Checkpoint.open(tmp_path / "abc")
    for name, at in whole.region.sites.items():
        assert same_bits(on.flat(name)[at], whole.written(name))
    assert len(Ledger.of(on).applied) == 1
    remove(tmp_path / "abc", second, third, first, out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)


def test_a_graft_twice_is_added_twice(two, tmp_path):
    base, _, second, _ = two
    apply(base, second, second, out=tmp_path / "twice")
    on, twice = Checkpoint.open(tmp_path / "twice"), second.graft + second.graft
    assert all(same_bits(on.flat(name)[at], twice.written(name)) for name, at in twice.region.sites.items())
    remove(tmp_path / "twice", second, out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)


def test_parts_of_one_graft_share_a_head_and_part_ways(two, tmp_path):
    base, whole, *_ = two
    half = Region(whole.graft.region.scope, {DENSE: whole.graft.region.sites[DENSE]})
    inside, outside = Named(whole.graft & half, "in"), Named(whole.graft.outside(half), "out")
    apply(base, inside, outside, out=tmp_path / "both")
    apply(base, whole, out=tmp_path / "whole")
    assert same_weights(tmp_path / "both", tmp_path / "whole")
    apply(base, outside, out=tmp_path / "part")
    remove(tmp_path / "both", inside, out=tmp_path / "one")
    assert same_weights(tmp_path / "one", tmp_path / "part")
    remove(tmp_path / "one", outside, out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)


def test_chosen_head_brings_its_architecture_and_labels(two, tmp_path):
    base, first, *_ = two
    old = tensors_of(base)
    three = moved(old, next(name for name in old if name.endswith(BIAS)))
    three["classifier.bias"] = numbers((3,), seed=8)
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "a", "1": "b", "2": "c"}}
    other = Named(extract(base, write_folder(tmp_path / "t3", three, config=config)), "three")
    for chosen, labels in ((first, ["bad", "good"]), (other, ["a", "b", "c"])):
        out = tmp_path / chosen.file
        apply(base, first, other, out=out, head=chosen.graft)
        assert list(json.loads((out / "config.json").read_text())["id2label"].values()) == labels
        assert len(tensors_of(out)["classifier.bias"]) == len(labels)
        remove(out, first if chosen is other else other, out=tmp_path / f"{chosen.file}-alone")
        apply(base, chosen, out=tmp_path / f"{chosen.file}-expected")
        assert same_weights(tmp_path / f"{chosen.file}-alone", tmp_path / f"{chosen.file}-expected")
        remove(out, first, other, out=tmp_path / f"{chosen.file}-off")
        assert same_weights(tmp_path / f"{chosen.file}-off", base)
    with pytest.raises(InputError, match="must be that of one of the grafts: g0"):
        apply(base, first, out=tmp_path / "no", head=other.graft)


def test_ledger_and_card_say_what_is_on(two, tmp_path):
    base, first, second, _ = two
    apply(base, first, out=tmp_path / "a", scale=0.5)
    apply(tmp_path / "a", second, out=tmp_path / "b")
    ledger = json.loads((tmp_path / "b" / "skillgraft.json").read_text())
    assert (ledger["base"], ledger["base_fingerprint"]) == ("base", Checkpoint.open(base).fingerprint)
    assert [layer["members"] for layer in ledger["applied"]] == [
        [{"digest": g.graft.digest, "file": g.file, "scale": scale, "entries": len(g.graft)}]
        for g, scale in ((first, 0.5), (second, 1.0))
    ]
    assert ledger["versions"]["skillgraft"]
    card = (tmp_path / "b" / "README.md").read_text()
    assert card.startswith('---\nbase_model: "base"\ntags: [skillgraft]\n---\n')
    assert f"| g0.safetensors | {len(first.graft)} | 0.5 | `{first.graft.digest}` |" in card
    assert f"| g1.safetensors | {len(second.graft)} | 1 |" in card
    assert (tmp_path / "b" / "README.base.md").read_text() == "the base's card"


def test_ledger_of_a_fine_tuned_base_comes_back(tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body(), QUERY))
    Ledger(base="older", made={"by": "finetune"}).write(base, versions={"skillgraft": "0"})
    on = on_and_off(base, named(extract(base, tuned)), tmp_path)
    assert Ledger.of(Checkpoint.open(on)).made == {"by": "finetune"}


def test_check_says_what_apply_would(two, tmp_path):
    base, first, second, third = two
    report = check(base, first.graft)
    assert (report.fits, report.same_fingerprint, report.entries, report.problem) == (True, True, len(first.graft), "")
    apply(base, first, out=tmp_path / "on")
    assert "is on" in check(tmp_path / "on", first.graft).problem
    report = check(tmp_path / "on", third.graft)
    assert not report.fits
    assert set(report.differing) == {QUERY}
    assert "overlaps" in report.problem
    assert check(tmp_path / "on", second.graft).fits
