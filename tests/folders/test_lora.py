"""PEFT LoRA folders as TUNED: the graft is what peft's own merge gives, and what is not plain LoRA is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from skillgraft.errors import InputError
from skillgraft.files import tensors as tensor_file
from skillgraft.folders import checkpoint, lora
from skillgraft.folders.apply import apply, remove
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.extract import extract
from skillgraft.folders.lora import LoraCheckpoint, LowRank
from skillgraft.values.numbers import BFLOAT16, same_bits
from tests.model_folders import (
    DENSE,
    QUERY,
    body,
    named,
    numbers,
    outputs,
    real_model,
    same_weights,
    tensors_of,
    write_folder,
)

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
import transformers  # noqa: E402

CASES = {
    "bert": ("BertForMaskedLM", {"target_modules": ["query", "value"], "lora_alpha": 6}),
    "bert square and not": ("BertForMaskedLM", {"target_modules": ["query", "intermediate.dense"], "r": 2}),
    "patterns": (
        "BertForMaskedLM",
        {
            "target_modules": ["query", "key"],
            "alpha_pattern": {"layer.1.attention.self.query": 32, "key": 1},
            "rank_pattern": {"query": 5},
        },
    ),
    "rank-stabilised": ("BertForMaskedLM", {"target_modules": ["query"], "use_rslora": True, "lora_alpha": 3}),
    "gpt2 stores (in, out)": ("GPT2LMHeadModel", {"target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "llama": ("LlamaForCausalLM", {"target_modules": ["q_proj", "down_proj"], "lora_alpha": 5}),
    "llama head": ("LlamaForCausalLM", {"target_modules": ["q_proj", "lm_head"]}),
    "biases": ("BertForMaskedLM", {"target_modules": ["query"], "bias": "lora_only"}),
    "t5": ("T5ForConditionalGeneration", {"target_modules": ["q", "wo"]}),
}


def adapter(base, folder, class_name: str, *, merged=None, **settings):
    """Train-like: every adapter weight random, then saved; `merged` gets peft's own merge."""
    torch.manual_seed(3)
    model = getattr(transformers, class_name).from_pretrained(base, **settings.pop("load", {}))
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**{"r": 3, **settings}))
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    wrapped.save_pretrained(folder)
    if merged:
        wrapped.merge_and_unload().save_pretrained(merged)
    return folder


def close(a, b, *, rtol=2e-6, atol=2e-7) -> bool:
    ours, theirs = tensors_of(a), tensors_of(b)
    return ours.keys() == theirs.keys() and all(
        np.allclose(ours[n].astype(float), theirs[n].astype(float), rtol=rtol, atol=atol) for n in ours
    )


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set:UserWarning", "ignore:Setting `save_emb:UserWarning")
@pytest.mark.parametrize(("class_name", "settings"), CASES.values(), ids=CASES)
def test_graft_is_what_peft_merges(class_name, settings, tmp_path):
    base = real_model(class_name, tmp_path / "base")
    tuned = adapter(base, tmp_path / "adapter", class_name, merged=tmp_path / "merged", **settings)
    graft = named(extract(base, tuned))
    assert len(graft[0].graft) > 0
    apply(base, *graft, out=tmp_path / "on")
    assert close(tmp_path / "on", tmp_path / "merged")
    assert not close(tmp_path / "on", base)
    remove(tmp_path / "on", *graft, out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)


def test_half_precision_base(tmp_path):
    base = real_model("LlamaForCausalLM", tmp_path / "base", dtype=torch.bfloat16)
    tuned = adapter(
        base, tmp_path / "adapter", "LlamaForCausalLM", merged=tmp_path / "merged", target_modules=["q_proj"]
    )
    apply(base, *named(extract(base, tuned)), out=tmp_path / "on")
    assert {array.dtype for array in tensors_of(tmp_path / "on").values()} == {BFLOAT16}
    assert close(tmp_path / "on", tmp_path / "merged", rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("base_class", ["BertForMaskedLM", "BertModel", "BertForSequenceClassification"])
def test_classifier_comes_with_the_adapter(base_class, tmp_path):
    """The usual way: a classifier over a base that was saved without one, or with other classes."""
    base = real_model(base_class, tmp_path / "base")
    task = {"task_type": "SEQ_CLS", "modules_to_save": ["classifier", "pooler"], "load": {"num_labels": 3}}
    if base_class == "BertForSequenceClassification":
        task["load"]["ignore_mismatched_sizes"] = True
    settings = {"target_modules": ["query"], **task}
    tuned = adapter(base, tmp_path / "adapter", "BertForSequenceClassification", merged=tmp_path / "merged", **settings)
    graft = named(extract(base, tuned))
    assert graft[0].graft.info["num_labels"] == 3
    apply(base, *graft, out=tmp_path / "on")
    auto = "AutoModelForSequenceClassification"
    assert torch.allclose(outputs(auto, tmp_path / "on"), outputs(auto, tmp_path / "merged"), atol=1e-5)
    remove(tmp_path / "on", *graft, out=tmp_path / "off")
    assert same_weights(tmp_path / "off", base)
    assert (tmp_path / "off" / "config.json").read_bytes() == (base / "config.json").read_bytes()


# Without peft: hand-made adapters of plain folders


def handmade(path, tensors, **settings):
    path.mkdir()
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "lora_alpha": 4, **settings}))
    named_tensors = {f"base_model.model.{name}": array for name, array in tensors.items()}
    tensor_file.write(path / "adapter_model.safetensors", named_tensors, {})
    return path


def factors(name: str, rows: int, columns: int, *, rank: int = 2, seed: int = 1):
    module = name.removesuffix(".weight")
    return {
        f"{module}.lora_A.weight": numbers((rank, columns), seed=seed),
        f"{module}.lora_B.weight": numbers((rows, rank), seed=seed + 1),
    }


@pytest.fixture
def base(tmp_path):
    return Checkpoint.open(write_folder(tmp_path / "base", body()))


def test_by_hand(base, tmp_path):
    """W + (alpha / rank) · B A, with alpha 4 and rank 2."""
    tensors = factors(DENSE, 4, 6)
    tuned = LoraCheckpoint.open(handmade(tmp_path / "a", tensors), base)
    module = DENSE.removesuffix(".weight")
    change = 2 * tensors[f"{module}.lora_B.weight"].astype(float) @ tensors[f"{module}.lora_A.weight"].astype(float)
    assert np.allclose(tuned.read(DENSE), body()[DENSE] + change, rtol=1e-6)
    assert same_bits(tuned.read(QUERY), body()[QUERY])


@pytest.mark.parametrize("transposed", [False, True])
def test_entries_have_the_same_bits_however_they_are_read(transposed, monkeypatch, tmp_path):
    monkeypatch.setattr(lora, "_TILE", 64)
    big = {**body(), DENSE: numbers((53, 37), seed=2)}
    base = Checkpoint.open(write_folder(tmp_path / "base", big))
    made = factors(DENSE, *((37, 53) if transposed else (53, 37)))
    tuned = LoraCheckpoint.open(handmade(tmp_path / "a", made, fan_in_fan_out=transposed), base)
    whole = tuned.flat(DENSE)
    for low, high in [(0, 1), (0, 37), (36, 38), (100, 1500), (1960, 1961), (5, 5)]:
        assert same_bits(tuned.flat(DENSE, low, high), whole[low:high])
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 200)
    graft = extract(base.path, tuned.path)
    assert same_bits(graft.change[DENSE], whole[graft.region.sites[DENSE]])


@pytest.mark.parametrize("flag", [False, True])
def test_shape_decides_the_orientation_where_it_can(flag, base, tmp_path):
    tuned = LoraCheckpoint.open(handmade(tmp_path / "a", factors(DENSE, 6, 4), fan_in_fan_out=flag), base)
    assert tuned.low_rank[DENSE].transposed
    square = LoraCheckpoint.open(handmade(tmp_path / "b", factors(QUERY, 4, 4), fan_in_fan_out=flag), base)
    assert square.low_rank[QUERY].transposed == flag


def test_tied_head_that_the_adapter_changes_is_tied_no_more(tmp_path):
    tensors = {**body(), "lm_head.weight": body()["embeddings.word_embeddings.weight"]}
    base = Checkpoint.open(write_folder(tmp_path / "tied", tensors))
    assert "lm_head.weight" in base.twins
    tuned = handmade(tmp_path / "a", factors("lm_head.weight", 11, 4))
    assert set(extract(base.path, tuned).region) == {"lm_head.weight"}


def refused(folder, base) -> str:
    with pytest.raises(InputError) as caught:
        LoraCheckpoint.open(folder, base)
    return str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "IA3"}, "is a IA3 adapter; skillgraft reads LORA. Merge it with peft first (merge_and_unload)"),
        ({"peft_type": None}, "is a None adapter"),
        ({"use_dora": True}, "is a DoRA adapter; merge it with peft first (merge_and_unload)"),
        ({"layer_replication": [[0, 2]]}, "is a layer-replicating adapter"),
        ({"trainable_token_indices": [1]}, "is a token-training adapter"),
        ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4', which changes the base's own weights"),
        ({"init_lora_weights": "OLoRA"}, "'olora', which changes the base's own weights"),
    ],
)
def test_what_is_not_plain_lora(settings, message, base, tmp_path):
    assert message in refused(handmade(tmp_path / "a", factors(DENSE, 4, 6), **settings), base)


@pytest.mark.parametrize("part", ["lora_A", "lora_B"])
def test_missing_partner(part, base, tmp_path):
    tensors = factors(DENSE, 4, 6)
    del tensors[f"{DENSE.removesuffix('.weight')}.{part}.weight"]
    assert f"has no partner base_model.model.{DENSE.removesuffix('.weight')}.{part}.weight" in refused(
        handmade(tmp_path / "a", tensors), base
    )


def test_module_that_fits_nothing(base, tmp_path):
    name = "encoder.layer.9.output.dense.weight"
    assert f"{name} fits nothing in {base.path}, which has embeddings." in refused(
        handmade(tmp_path / "a", factors(name, 4, 6)), base
    )
    whole = handmade(tmp_path / "b", {**factors(DENSE, 4, 6), name: numbers((4, 6), seed=1)})
    assert f"{name} fits nothing in" in refused(whole, base)


def test_matrix_of_another_shape(base, tmp_path):
    assert "would change a [4, 7] matrix, the base's is [4, 6]" in refused(
        handmade(tmp_path / "a", factors(DENSE, 4, 7)), base
    )
    tensors = factors(DENSE, 4, 6)
    tensors[f"{DENSE.removesuffix('.weight')}.lora_B.weight"] = numbers((4, 3), seed=1)
    assert "expected A [rank, in] and B [out, rank], found [2, 6] and [4, 3]" in refused(
        handmade(tmp_path / "b", tensors), base
    )


@pytest.mark.parametrize("ending", ["lora_embedding_A", "lora_B.bias", "lora_magnitude_vector"])
def test_parts_that_are_not_merged(ending, base, tmp_path):
    tensors = {**factors(DENSE, 4, 6), f"{DENSE.removesuffix('.weight')}.{ending}": numbers((2, 4), seed=1)}
    assert "is an adapted embedding or a LoRA bias; merge it with peft first" in refused(
        handmade(tmp_path / "a", tensors), base
    )


def test_pickled_adapter(base, tmp_path):
    folder = handmade(tmp_path / "a", {})
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "has no adapter_model.safetensors; save the adapter with safe_serialization=True" in refused(folder, base)


def test_adapter_that_changes_while_it_is_read(base, tmp_path):
    folder = handmade(tmp_path / "a", factors(DENSE, 4, 6))

    def meddle(_done: int, _size: int) -> None:
        shutil.copy(folder / "adapter_model.safetensors", folder / "copy")
        (folder / "copy").rename(folder / "adapter_model.safetensors")

    with pytest.raises(InputError, match=r"adapter_model.safetensors changed while it was being read"):
        extract(base.path, folder, progress=meddle)


@pytest.mark.parametrize(
    "settings", [{"lora_alpha": "4"}, {"alpha_pattern": [1]}, {"alpha_pattern": {"(": 1}}], ids=str
)
def test_settings_that_give_no_scale(settings, base, tmp_path):
    assert f"no scale for {DENSE.removesuffix('.weight')} in adapter_config.json" in refused(
        handmade(tmp_path / "a", factors(DENSE, 4, 6), **settings), base
    )


def test_low_rank_shape():
    a, b = np.zeros((2, 6), np.float32), np.zeros((4, 2), np.float32)
    assert (LowRank(a, b, 1.0, False).shape, LowRank(a, b, 1.0, True).shape) == ((4, 6), (6, 4))
