"""Wherever a graft is asked for, its file will do: the same result as with the value."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from skillgraft import Graft, Region, apply, check, combine, compare, extract, grafted, remove, total
from skillgraft.errors import HeadConflict, InputError, WrongBase

from .family import write_family
from .model_folders import content, moved, real_model, same_weights, tensors_of, write_folder


@pytest.fixture
def family(tmp_path: Path) -> Path:
    write_family(tmp_path)
    for name in ("TUNED", "OTHER"):
        extract(tmp_path / "BASE", tmp_path / name).save(tmp_path / f"{name}.safetensors")
    return tmp_path


def test_grafts_and_regions_read_and_write_their_own_files(family: Path) -> None:
    graft = Graft.load(family / "TUNED.safetensors")
    assert graft == extract(family / "BASE", family / "TUNED")
    graft.region.save(family / "region.safetensors")
    assert Region.load(family / "region.safetensors") == graft.region == Region.load(family / "TUNED.safetensors")
    for value in (graft, graft.region):
        with pytest.raises(InputError, match="exists already"):
            value.save(family / "region.safetensors")
        value.save(family / "region.safetensors", overwrite=True)
        assert type(value).load(family / "region.safetensors") == value
        assert json.loads(json.dumps(value.describe())) == value.describe()


def test_folders(family: Path) -> None:
    file, value = family / "TUNED.safetensors", Graft.load(family / "TUNED.safetensors")
    apply(family / "BASE", str(file), out=family / "by path")
    apply(family / "BASE", value, out=family / "by value")
    assert same_weights(family / "by path", family / "by value")
    assert same_weights(family / "by path", family / "TUNED")
    listed = {name: json.loads((family / name / "skillgraft.json").read_text()) for name in ("by path", "by value")}
    assert "TUNED.safetensors" in json.dumps(listed["by path"])
    assert '"TUNED"' in json.dumps(listed["by value"])  # a value is called after its tuned model
    remove(family / "by path", value, out=family / "BACK")
    assert content(family / "BACK") == content(family / "BASE")
    assert "is on" in check(family / "by value", file).problem


def test_several_at_once(family: Path) -> None:
    files = [family / "TUNED.safetensors", family / "OTHER.safetensors"]
    values = [Graft.load(file) for file in files]
    report = check(family / "BASE", *files)
    assert (report.fits, report.same_fingerprint, report.entries) == (True, True, sum(map(len, values)))
    apply(family / "BASE", *files, out=family / "BOTH", scale=0.5, head=files[0])
    apply(family / "BASE", *values, out=family / "ALSO", scale=0.5, head=values[0])
    assert same_weights(family / "BOTH", family / "ALSO")
    assert combine(files, head=files[0]) == combine(values, head=values[0])
    assert compare(dict(zip("ab", files, strict=True))) == compare(dict(zip("ab", values, strict=True)))


def test_check_sees_what_cannot_go_on_together(family: Path) -> None:
    """Each fits alone; together they bring two classifiers, or are of two bases."""
    tensors = tensors_of(family / "TUNED")
    tensors = {name: array + (name == "classifier.bias") for name, array in tensors.items()}
    labels = json.loads((family / "TUNED" / "config.json").read_text())
    other = extract(family / "BASE", write_folder(family / "CLASSES", tensors, config=labels))
    for graft in (family / "TUNED.safetensors", other):
        assert check(family / "BASE", graft).fits
    found = check(family / "BASE", family / "TUNED.safetensors", other)
    assert not found.fits
    assert "classifier.bias" in found.problem
    with pytest.raises(HeadConflict):
        apply(family / "BASE", family / "TUNED.safetensors", other, out=family / "never")
    elsewhere = write_folder(family / "ELSEWHERE", moved(tensors_of(family / "BASE")))
    assert not check(elsewhere, family / "TUNED.safetensors").fits
    with pytest.raises(WrongBase, match=r"TUNED\.safetensors"):
        apply(elsewhere, family / "TUNED.safetensors", out=family / "never")


@pytest.mark.parametrize("verb", [apply, remove])
def test_no_graft_at_all(verb, family: Path) -> None:
    with pytest.raises(InputError, match=f"{verb.__name__} needs at least one graft, found none"):
        verb(family / "BASE", out=family / "never")
    with pytest.raises(InputError, match="check needs at least one graft"):
        check(family / "BASE")


def test_a_live_model(tmp_path: Path) -> None:
    import transformers

    base = real_model("BertForSequenceClassification", tmp_path / "BASE")
    tuned = real_model("BertForSequenceClassification", tmp_path / "TUNED", base=base, seed=1)
    extract(base, tuned).save(tmp_path / "g.safetensors")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(base).eval()
    tokens = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        before = model(tokens).logits
        with grafted(model, tmp_path / "g.safetensors"):
            by_path = model(tokens).logits
        with grafted(model, total([Graft.load(tmp_path / "g.safetensors")])):
            by_value = model(tokens).logits
        assert torch.equal(by_path, by_value)
        assert not torch.equal(by_path, before)
        assert torch.equal(model(tokens).logits, before)
