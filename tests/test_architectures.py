"""Grafts across the architectures of transformers: the output loads with the right Auto class and computes tuned's numbers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skillgraft.folders.apply import apply, remove
from skillgraft.folders.extract import extract

from .model_folders import named, outputs, real_model, same_weights

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

CLASSES = {"num_labels": 3}
# base's class and settings, tuned's class and settings, the class that loads tuned
PAIRS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], str]] = {
    "bert prefix added": ("BertModel", {}, "BertForSequenceClassification", CLASSES, "SequenceClassification"),
    "bert prefix taken": ("BertForSequenceClassification", CLASSES, "BertModel", {}, ""),
    "bert masked to classes": (
        "BertForMaskedLM",
        {},
        "BertForSequenceClassification",
        CLASSES,
        "SequenceClassification",
    ),
    "bert classes to masked": ("BertForSequenceClassification", CLASSES, "BertForMaskedLM", {}, "MaskedLM"),
    "bert other classes": (
        "BertForSequenceClassification",
        {"num_labels": 5},
        "BertForSequenceClassification",
        CLASSES,
        "SequenceClassification",
    ),
    "bert masked": ("BertForMaskedLM", {}, "BertForMaskedLM", {}, "MaskedLM"),
    "gpt2 to classes": ("GPT2LMHeadModel", {}, "GPT2ForSequenceClassification", CLASSES, "SequenceClassification"),
    "gpt2 padding set": (
        "GPT2LMHeadModel",
        {"pad_token_id": None},
        "GPT2ForSequenceClassification",
        {**CLASSES, "pad_token_id": 0},
        "SequenceClassification",
    ),
    "gpt2 body": ("GPT2Model", {}, "GPT2LMHeadModel", {}, "CausalLM"),
    "llama tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}, "LlamaForCausalLM", {}, "CausalLM"),
    "llama untied": ("LlamaForCausalLM", {"tie_word_embeddings": False}, "LlamaForCausalLM", {}, "CausalLM"),
    "llama comes untied": (
        "LlamaForCausalLM",
        {"tie_word_embeddings": True},
        "LlamaForCausalLM",
        {"tie_word_embeddings": False},
        "CausalLM",
    ),
    "llama to classes": ("LlamaForCausalLM", {}, "LlamaForSequenceClassification", CLASSES, "SequenceClassification"),
    "t5": ("T5ForConditionalGeneration", {}, "T5ForConditionalGeneration", {}, "Seq2SeqLM"),
    "t5 to classes": (
        "T5ForConditionalGeneration",
        {},
        "T5ForSequenceClassification",
        CLASSES,
        "SequenceClassification",
    ),
    "vit to classes": ("ViTModel", {}, "ViTForImageClassification", CLASSES, "ImageClassification"),
    "vit other classes": (
        "ViTForImageClassification",
        {"num_labels": 2},
        "ViTForImageClassification",
        CLASSES,
        "ImageClassification",
    ),
    "distilbert": (
        "DistilBertForMaskedLM",
        {},
        "DistilBertForSequenceClassification",
        CLASSES,
        "SequenceClassification",
    ),
    "albert": ("AlbertForMaskedLM", {}, "AlbertForSequenceClassification", CLASSES, "SequenceClassification"),
}


@pytest.mark.parametrize(("base_class", "base_settings", "tuned_class", "settings", "auto"), PAIRS.values(), ids=PAIRS)
def test_grafted_model_is_the_tuned_one(base_class, base_settings, tuned_class, settings, auto, tmp_path):
    base = real_model(base_class, tmp_path / "base", **base_settings)
    tuned = real_model(tuned_class, tmp_path / "tuned", base=base, seed=1, **settings)
    (base / "README.md").write_text("the base's own card")
    graft = named(extract(base, tuned))
    apply(base, *graft, out=tmp_path / "on")
    assert same_weights(tmp_path / "on", tuned)
    auto_class = f"AutoModelFor{auto}" if auto else "AutoModel"
    assert torch.equal(outputs(auto_class, tmp_path / "on"), outputs(auto_class, tuned))
    remove(tmp_path / "on", *graft, out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)
    for file in ("config.json", "README.md"):
        assert (tmp_path / "off" / file).read_bytes() == (base / file).read_bytes()
    assert sorted(f.name for f in (tmp_path / "off").iterdir()) == sorted(f.name for f in base.iterdir())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shard", ["1GB", "2KB"], ids=["single", "sharded"])
def test_formats_and_shards(dtype, shard, tmp_path):
    settings = {"dtype": getattr(torch, dtype), "max_shard_size": shard}
    base = real_model("BertForMaskedLM", tmp_path / "base", **settings)
    tuned = real_model("BertForSequenceClassification", tmp_path / "tuned", base=base, seed=1, **settings)
    assert (base / "model.safetensors.index.json").is_file() == (shard == "2KB")
    graft = named(extract(base, tuned))
    apply(base, *graft, out=tmp_path / "on")
    remove(tmp_path / "on", *graft, out=tmp_path / "off")
    assert same_weights(tmp_path / "on", tuned)
    assert same_weights(tmp_path / "off", base)
    auto = "AutoModelForSequenceClassification"
    assert torch.equal(outputs(auto, tmp_path / "on"), outputs(auto, tuned))


def test_graft_of_one_architecture_goes_on_the_same_body_under_another(tmp_path):
    """Made for the masked-LM folder, applied to the bare body: names, heads and config become tuned's."""
    base = real_model("BertForMaskedLM", tmp_path / "base")
    tuned = real_model("BertForSequenceClassification", tmp_path / "tuned", base=base, seed=1, num_labels=3)
    bare = tmp_path / "bare"
    import transformers

    transformers.BertModel.from_pretrained(base, add_pooling_layer=False).save_pretrained(bare)
    apply(bare, *named(extract(base, tuned)), out=tmp_path / "on")
    assert same_weights(tmp_path / "on", tuned)
    assert json.loads((tmp_path / "on" / "config.json").read_text())["architectures"] == [
        "BertForSequenceClassification"
    ]
    auto = "AutoModelForSequenceClassification"
    assert torch.equal(outputs(auto, tmp_path / "on"), outputs(auto, tuned))
