"""Adapters that only PEFT can read, as TUNED: the graft is what PEFT's own merge gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skillgraft import apply, extract
from skillgraft.errors import InputError
from tests.model_folders import real_model, same_weights, tensors_of

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
import transformers  # noqa: E402

DENSE = ["query", "intermediate.dense"]
ADAPTERS: dict[str, Any] = {
    "DoRA": lambda: peft.LoraConfig(r=2, target_modules=DENSE, use_dora=True),
    "adapted embeddings": lambda: peft.LoraConfig(r=2, target_modules=["query", "word_embeddings"]),
    "LoRA with a bias": lambda: peft.LoraConfig(r=2, target_modules=DENSE, lora_bias=True),
    "IA3": lambda: peft.IA3Config(target_modules=["query"], feedforward_modules=[]),
    "SHiRA": lambda: peft.ShiraConfig(r=2, target_modules=DENSE),
    "Supertuning": lambda: peft.SupertuningConfig(sparsity=0.9, target_modules=DENSE),
    "LoHa": lambda: peft.LoHaConfig(r=2, target_modules=DENSE),
    "LoKr": lambda: peft.LoKrConfig(r=2, target_modules=DENSE),
    "OFT": lambda: peft.OFTConfig(oft_block_size=4, target_modules=["query"]),
    "VeRA": lambda: peft.VeraConfig(r=2, target_modules=["query"]),
    "trained tokens": lambda: peft.TrainableTokensConfig(token_indices=[5, 7], target_modules=["word_embeddings"]),
}


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
@pytest.mark.parametrize("name", ADAPTERS)
def test_the_graft_is_what_peft_merges(name: str, tmp_path: Path) -> None:
    base = real_model("BertForMaskedLM", tmp_path / "base")
    wanted = adapter(base, tmp_path / "adapter", ADAPTERS[name]())
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


def test_what_has_no_weights_to_change_is_refused(tmp_path: Path) -> None:
    base = real_model("LlamaForCausalLM", tmp_path / "base")
    model = transformers.LlamaForCausalLM.from_pretrained(base)
    prompts = peft.get_peft_model(model, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    prompts.save_pretrained(tmp_path / "prompts")
    with pytest.raises(InputError, match=r"is a PROMPT_TUNING adapter that peft cannot merge"):
        extract(base, tmp_path / "prompts")
    (tmp_path / "prompts" / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match=r"has no adapter_model\.safetensors"):
        extract(base, tmp_path / "prompts")
