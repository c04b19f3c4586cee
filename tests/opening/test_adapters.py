"""Adapters that only PEFT can read, as TUNED: the graft is what PEFT's own merge gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skillgraft import apply, extract
from skillgraft.errors import InputError
from skillgraft.files import tensors as tensor_file
from tests.model_folders import real_model, same_weights, tensors_of

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
import transformers  # noqa: E402

DENSE, QUERY = ["query", "intermediate.dense"], ["query"]
# Each of PEFT's kinds that changes weights; LoRA itself is in its settings that our own reader leaves to PEFT.
ADAPTERS: dict[str, Callable[[], Any]] = {
    "DoRA": lambda: peft.LoraConfig(r=2, target_modules=DENSE, use_dora=True),
    "adapted embeddings": lambda: peft.LoraConfig(r=2, target_modules=["query", "word_embeddings"]),
    "LoRA with a bias": lambda: peft.LoraConfig(r=2, target_modules=DENSE, lora_bias=True),
    "IA3": lambda: peft.IA3Config(target_modules=QUERY, feedforward_modules=[]),
    "SHIRA": lambda: peft.ShiraConfig(r=2, target_modules=DENSE),
    "SUPERTUNING": lambda: peft.SupertuningConfig(sparsity=0.9, target_modules=DENSE),
    "LOHA": lambda: peft.LoHaConfig(r=2, target_modules=DENSE),
    "TRAINABLE_TOKENS": lambda: peft.TrainableTokensConfig(token_indices=[5, 7], target_modules=["word_embeddings"]),
}
OTHERS: dict[str, Callable[[], Any]] = {
    "ADALORA": lambda: peft.AdaLoraConfig(total_step=10, tinit=1, tfinal=1, target_modules=QUERY),
    "ADAMSS": lambda: peft.AdamssConfig(r=2, target_modules=QUERY),
    "BEFT": lambda: peft.BeftConfig(target_modules=QUERY),
    "BOFT": lambda: peft.BOFTConfig(boft_block_size=2, target_modules=QUERY),
    "C3A": lambda: peft.C3AConfig(block_size=2, target_modules=QUERY),
    "DEFT": lambda: peft.DeftConfig(r=2, target_modules=QUERY),
    "DELORA": lambda: peft.DeloraConfig(r=2, target_modules=QUERY),
    "FOURIERFT": lambda: peft.FourierFTConfig(n_frequency=8, target_modules=QUERY),
    "FROD": lambda: peft.FrodConfig(target_modules=QUERY),
    "GLORA": lambda: peft.GloraConfig(r=2, target_modules=QUERY),
    "GRALORA": lambda: peft.GraloraConfig(r=2, target_modules=QUERY),
    "HIRA": lambda: peft.HiraConfig(r=2, target_modules=QUERY),
    "HRA": lambda: peft.HRAConfig(r=2, target_modules=QUERY),
    "LN_TUNING": lambda: peft.LNTuningConfig(target_modules=["LayerNorm"]),
    "LOKR": lambda: peft.LoKrConfig(r=2, target_modules=DENSE),
    "MISS": lambda: peft.MissConfig(r=2, target_modules=QUERY),
    "OFT": lambda: peft.OFTConfig(oft_block_size=4, target_modules=QUERY),
    "OSF": lambda: peft.OSFConfig(target_modules=QUERY),
    "PEANUT": lambda: peft.PeanutConfig(r=2, target_modules=QUERY),
    "PSOFT": lambda: peft.PsoftConfig(r=2, target_modules=QUERY),
    "PVERA": lambda: peft.PveraConfig(r=2, target_modules=QUERY),
    "RANDLORA": lambda: peft.RandLoraConfig(r=2, target_modules=QUERY),
    "ROAD": lambda: peft.RoadConfig(group_size=4, target_modules=QUERY),
    "TINYLORA": lambda: peft.TinyLoraConfig(r=2, target_modules=QUERY),
    "UNILORA": lambda: peft.UniLoraConfig(r=2, target_modules=QUERY),
    "VBLORA": lambda: peft.VBLoRAConfig(num_vectors=4, vector_length=2, topk=2, r=2, target_modules=QUERY),
    "VERA": lambda: peft.VeraConfig(r=2, target_modules=QUERY),
    "WAVEFT": lambda: peft.WaveFTConfig(n_frequency=8, target_modules=QUERY),
}
VIRTUAL = {"num_virtual_tokens": 2, "task_type": "CAUSAL_LM"}
# What adds to a model without changing its weights: prompts, and changes that depend on the text.
UNMERGEABLE: dict[str, Callable[[], Any]] = {
    "ADAPTION_PROMPT": lambda: peft.AdaptionPromptConfig(adapter_len=2, adapter_layers=1, task_type="CAUSAL_LM"),
    "CARTRIDGE": lambda: peft.CartridgeConfig(**VIRTUAL),
    "CPT": lambda: peft.CPTConfig(
        cpt_token_ids=[1, 2], cpt_mask=[1, 1], cpt_tokens_type_mask=[1, 1], task_type="CAUSAL_LM"
    ),
    "LILY": lambda: peft.LilyConfig(r=2, target_modules=["q_proj"]),
    "MULTITASK_PROMPT_TUNING": lambda: peft.MultitaskPromptTuningConfig(num_tasks=2, **VIRTUAL),
    "POLY": lambda: peft.PolyConfig(r=2, n_tasks=2, target_modules=["q_proj"]),
    "PREFIX_TUNING": lambda: peft.PrefixTuningConfig(**VIRTUAL),
    "PROMPT_TUNING": lambda: peft.PromptTuningConfig(**VIRTUAL),
    "P_TUNING": lambda: peft.PromptEncoderConfig(**VIRTUAL),
    "SHADOW": lambda: peft.ShadowConfig(),
}


def test_every_kind_of_peft_is_in_a_table() -> None:
    """A kind that a later PEFT brings is to be tried. XLORA is a mixture of LoRAs, refused below by its settings."""
    from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING

    kinds = {kind.value for kind in PEFT_TYPE_TO_TUNER_MAPPING}
    assert kinds <= {*ADAPTERS, *OTHERS, *UNMERGEABLE, "LORA", "XLORA"}


def adapter(base: Path, folder: Path, config: Any, kind: str = "BertForMaskedLM", **load: Any) -> Any:
    """Train-like: every adapter weight moved a little, then saved; returns PEFT's own merge."""
    torch.manual_seed(3)
    wrapped = peft.get_peft_model(getattr(transformers, kind).from_pretrained(base, **load), config)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    wrapped.save_pretrained(folder)
    return wrapped.merge_and_unload()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", [*ADAPTERS, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_the_graft_is_what_peft_merges(name: str, tmp_path: Path) -> None:
    base = real_model("BertForMaskedLM", tmp_path / "base")
    wanted = adapter(base, tmp_path / "adapter", {**ADAPTERS, **OTHERS}[name]())
    g = extract(base, tmp_path / "adapter")
    assert len(g) > 0
    assert g.info["tuned"] == "adapter"
    apply(base, g, out=tmp_path / "on")
    wanted.save_pretrained(tmp_path / "merged")
    assert same_weights(tmp_path / "on", tmp_path / "merged")
    assert not same_weights(tmp_path / "on", base)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_head_comes_along_and_what_was_made_up_does_not(tmp_path: Path) -> None:
    base = real_model("BertForMaskedLM", tmp_path / "base")
    config = peft.LoraConfig(r=2, target_modules=["query"], use_dora=True, task_type="SEQ_CLS")
    merged = adapter(base, tmp_path / "adapter", config, "BertForSequenceClassification", num_labels=3)
    g = extract(base, tmp_path / "adapter")
    assert set(g.heads) == {"classifier.weight", "classifier.bias"}  # no pooler, which neither of them has
    assert g.heads["classifier.weight"].tolist() == merged.classifier.weight.tolist()
    assert g.info["num_labels"] == 3


def test_the_merged_folder_is_gone_when_nobody_reads_it(tmp_path: Path) -> None:
    from skillgraft.folders.checkpoint import Checkpoint
    from skillgraft.opening.adapters import merged

    base = real_model("BertForMaskedLM", tmp_path / "base")
    adapter(base, tmp_path / "adapter", ADAPTERS["IA3"]())
    found = merged(tmp_path / "adapter", Checkpoint.open(base))
    room = found.path.parent
    assert room.is_dir()
    assert len(tensors_of(found.path)) > 0
    del found
    assert not room.exists()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "kind",
    [name if name == "PROMPT_TUNING" else pytest.param(name, marks=pytest.mark.long) for name in UNMERGEABLE],
)
def test_what_has_no_weights_to_change_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    base = real_model("LlamaForCausalLM", tmp_path / "base")
    model = peft.get_peft_model(transformers.LlamaForCausalLM.from_pretrained(base), UNMERGEABLE[kind]())
    model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(InputError, match=rf"is a {kind} adapter that peft cannot merge into .*: \w+"):
        extract(base, tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no adapter_model\.safetensors"):
        extract(base, tmp_path / "adapter")


def test_numbers_that_peft_cannot_work_with_are_an_error_in_words(tmp_path: Path) -> None:
    """A whole number that no float holds, where PEFT divides."""
    base = real_model("BertForMaskedLM", tmp_path / "base")
    adapter(base, tmp_path / "adapter", ADAPTERS["DoRA"]())
    settings = tmp_path / "adapter" / "adapter_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "lora_alpha": 10**400}))
    with pytest.raises(InputError, match=r"is a LORA adapter that peft cannot merge into .*: \w+"):
        extract(base, tmp_path / "adapter")


def test_a_mixture_of_adapters_is_refused_by_name(tmp_path: Path) -> None:
    base = real_model("LlamaForCausalLM", tmp_path / "base")
    settings = {"peft_type": "XLORA", "task_type": "CAUSAL_LM", "hidden_size": 8, "adapters": {"0": "a", "1": "b"}}
    tensor_file.write(tmp_path / "adapter_model.safetensors", {"x": np.ones(2, np.float32)}, {})
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=r"is a XLORA adapter that peft cannot merge into"):
        extract(base, tmp_path)
