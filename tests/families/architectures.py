"""Tiny models of many architectures: one row each, written as the folders that transformers saves.

    base = write(FAMILIES["llama"], folder / "base", "bfloat16")
    tuned_copy = tuned(base, folder / "tuned")

A folder takes milliseconds to write and to run. The same row always gives the same bytes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from skillgraft.opening.source import silence
from tests.readouts.making import SMALL, byte_pieces, made, save, sentence_pieces, word_pieces

DTYPES = ("float32", "bfloat16", "float16")
# What the quick suite runs, in bfloat16: one of each kind, and those that published checkpoints have most.
QUICK = ("bert", "mpnet", "deberta-v2", "llama", "gpt2", "t5", "vit", "mixtral")
_AUTO = {
    "ForMaskedLM": "AutoModelForMaskedLM",
    "ForCausalLM": "AutoModelForCausalLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "Model": "AutoModel",
}
# How many positions, images and windows are enough for the toy tasks.
_LONG = {"max_position_embeddings": 96}
_PICTURE = {"image_size": 8, "patch_size": 4}
_EIGHT = {"height": 8, "width": 8}


def _byte_pieces_of_a_decoder() -> Any:
    return byte_pieces(wrapped=False)


TOKENIZERS: Mapping[str, Callable[[], Any]] = {
    "words": word_pieces,
    "bytes": byte_pieces,
    "open bytes": _byte_pieces_of_a_decoder,
    "sentences": sentence_pieces,
}
PROCESSORS: Mapping[str, Callable[[], Any]] = {
    "resized": lambda: transformers.ViTImageProcessorPil(size=_EIGHT),
    "cropped": lambda: transformers.CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size=_EIGHT),
}


@dataclass(frozen=True)
class Family:
    """One architecture: the class that is saved, its settings, and what it is asked.

    `tokenizer` and `processor` are rows of TOKENIZERS and PROCESSORS; empty where the family reads no texts or no images.
    """

    name: str
    kind: str
    model: str
    settings: Mapping[str, Any]
    readout: str
    tokenizer: str = ""
    processor: str = ""

    @property
    def task(self) -> str:
        """The toy task: images for whatever can read them."""
        return "digits" if self.processor else "films"

    @property
    def auto(self) -> str:
        """The Auto class of transformers that loads the folder as it was saved."""
        return next(auto for ending, auto in _AUTO.items() if self.model.endswith(ending))

    @property
    def config(self) -> Any:
        """The configuration, with the tokenizer's vocabulary and special tokens."""
        settings = dict(self.settings)
        if self.tokenizer:
            settings |= _with_words(settings, _words(TOKENIZERS[self.tokenizer]()))
        return getattr(transformers, self.model).config_class(**settings)


def _words(tokenizer: Any) -> dict[str, Any]:
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.cls_token_id
    last = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": first, "eos_token_id": last}
    return {"vocab_size": len(tokenizer), **ids}


def _with_words(settings: Mapping[str, Any], words: Mapping[str, Any]) -> Mapping[str, Any]:
    """The vocabulary as the configuration wants it: of two towers the text's own."""
    if "text_config" not in settings:
        return {**words, **settings}
    return {"text_config": {**words, **settings["text_config"]}}


def _encoder(name: str, model: str, tokenizer: str = "words", **settings: Any) -> Family:
    return Family(name, "encoder", model, {**SMALL, **_LONG, **settings}, "masked", tokenizer)


def _decoder(name: str, model: str, kind: str = "decoder", **settings: Any) -> Family:
    sizes = {**SMALL, **_LONG, "num_key_value_heads": 1, **settings}
    return Family(name, kind, model, sizes, "causal", "open bytes")


def _experts(name: str, model: str, **settings: Any) -> Family:
    """A mixture of four experts, two for each token."""
    return _decoder(name, model, "moe", num_experts_per_tok=2, moe_intermediate_size=24, **settings)


def _seq2seq(name: str, model: str, tokenizer: str = "sentences", **settings: Any) -> Family:
    return Family(name, "encoder-decoder", model, settings, "choice", tokenizer)


def _vision(name: str, model: str, **settings: Any) -> Family:
    return Family(name, "vision", model, settings, "linear", processor="resized")


def _two_towers(name: str, model: str, processor: str, **settings: Any) -> Family:
    text = {**SMALL, "max_position_embeddings": 20, **settings.pop("text", {})}
    towers = {"text_config": text, "vision_config": {**SMALL, **_PICTURE}}
    return Family(name, "clip", model, {**towers, **settings}, "text-head", "words", processor)


_GPT = {"n_positions": 96, "n_embd": 16, "n_layer": 2, "n_head": 2}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "decoder_start_token_id": 0}
_BART = {
    **{f"{side}_{key}": 2 for side in ("encoder", "decoder") for key in ("layers", "attention_heads")},
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 32),
    "d_model": 16,
    **_LONG,
}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
_DEBERTA_V3 = {"share_att_key": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "type_vocab_size": 0}
_XLNET = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
_STAGES = {"image_size": 8, "depths": [1, 1], "hidden_sizes": [8, 16]}

_ENCODERS = (
    _encoder("bert", "BertForMaskedLM"),
    _encoder("roberta", "RobertaForMaskedLM", "bytes", type_vocab_size=1),
    _encoder("xlm-roberta", "XLMRobertaForMaskedLM", "bytes", type_vocab_size=1),
    _encoder("camembert", "CamembertForMaskedLM", "bytes", type_vocab_size=1),
    _encoder("distilbert", "DistilBertForMaskedLM", dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    _encoder("albert", "AlbertForMaskedLM", embedding_size=8),
    _encoder("electra", "ElectraForMaskedLM", embedding_size=8),
    _encoder("mpnet", "MPNetForMaskedLM", "bytes"),
    _encoder("deberta", "DebertaForMaskedLM", "bytes", **_DEBERTA),
    _encoder("deberta-v2", "DebertaV2ForMaskedLM", **_DEBERTA, **_DEBERTA_V3, position_biased_input=False),
    _encoder("modernbert", "ModernBertForMaskedLM", "bytes", local_attention=8, global_attn_every_n_layers=2),
    _encoder("esm", "EsmForMaskedLM", mask_token_id=4, position_embedding_type="rotary", token_dropout=True),
    _encoder("longformer", "LongformerForMaskedLM", "bytes", attention_window=8, type_vocab_size=1),
    _encoder("roformer", "RoFormerForMaskedLM", embedding_size=16),
    Family("xlnet", "encoder", "XLNetLMHeadModel", _XLNET, "linear", "sentences"),
)
_DECODERS = (
    _decoder("llama", "LlamaForCausalLM"),
    _decoder("mistral", "MistralForCausalLM", sliding_window=8),
    _decoder("qwen2", "Qwen2ForCausalLM", tie_word_embeddings=True, vocab_size=416),  # room to spare, as published
    _decoder("qwen3", "Qwen3ForCausalLM", head_dim=8, tie_word_embeddings=True),
    _decoder("gemma", "GemmaForCausalLM", head_dim=8),
    _decoder("gemma2", "Gemma2ForCausalLM", head_dim=8, sliding_window=8),
    _decoder("gemma3", "Gemma3ForCausalLM", head_dim=8, sliding_window=8),
    _decoder("phi", "PhiForCausalLM"),
    _decoder("phi3", "Phi3ForCausalLM"),
    _decoder("stablelm", "StableLmForCausalLM"),
    _decoder("olmo2", "Olmo2ForCausalLM"),
    _decoder("smollm3", "SmolLM3ForCausalLM"),
    _decoder("granite", "GraniteForCausalLM"),
    _decoder("cohere", "CohereForCausalLM"),
    _decoder("starcoder2", "Starcoder2ForCausalLM"),
    _decoder("gpt-neox", "GPTNeoXForCausalLM"),
    _decoder("opt", "OPTForCausalLM", ffn_dim=32, word_embed_proj_dim=16),
    _decoder("bloom", "BloomForCausalLM", n_layer=2, n_head=2),
    _decoder("falcon", "FalconForCausalLM"),
    _decoder("gpt2", "GPT2LMHeadModel", **_GPT),
    _decoder("gpt-neo", "GPTNeoForCausalLM", attention_types=[[["global", "local"], 1]], num_heads=2, num_layers=2),
    _decoder("gpt-j", "GPTJForCausalLM", rotary_dim=4, **_GPT),
)
_STATE_SPACES = (
    _decoder("mamba", "MambaForCausalLM", "state-space", state_size=4),
    _decoder("mamba2", "Mamba2ForCausalLM", "state-space", state_size=4, num_heads=4, head_dim=8, n_groups=1),
)
_MIXTURES = (
    _experts("mixtral", "MixtralForCausalLM", num_local_experts=4),
    _experts("qwen2-moe", "Qwen2MoeForCausalLM", num_experts=4, shared_expert_intermediate_size=24),
    _experts("qwen3-moe", "Qwen3MoeForCausalLM", num_experts=4, head_dim=8),
    _experts("olmoe", "OlmoeForCausalLM", num_experts=4),
)
_SEQ2SEQ = (
    _seq2seq("t5", "T5ForConditionalGeneration", **_T5),
    _seq2seq("mt5", "MT5ForConditionalGeneration", **_T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    _seq2seq("bart", "BartForConditionalGeneration", "bytes", **_BART, decoder_start_token_id=2),
    _seq2seq("mbart", "MBartForConditionalGeneration", "bytes", **_BART, decoder_start_token_id=2),
    _seq2seq("pegasus", "PegasusForConditionalGeneration", **_BART, decoder_start_token_id=0),
)
_VISION = (
    _vision("vit", "ViTModel", **SMALL, **_PICTURE),
    _vision("deit", "DeiTModel", **SMALL, **_PICTURE),
    _vision("beit", "BeitModel", **SMALL, **_PICTURE, use_relative_position_bias=True),
    _vision("dinov2", "Dinov2Model", **SMALL, **_PICTURE),
    _vision(
        "swin", "SwinModel", image_size=8, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2
    ),
    _vision("convnext", "ConvNextModel", num_stages=2, patch_size=2, **_STAGES),
    _vision("resnet", "ResNetModel", embedding_size=8, layer_type="basic", **_STAGES),
)
_CLIP = (
    _two_towers("clip", "CLIPModel", "cropped", projection_dim=12),
    _two_towers("siglip", "SiglipModel", "resized", text={"projection_size": 16}),
)
_ALL = (*_ENCODERS, *_DECODERS, *_STATE_SPACES, *_MIXTURES, *_SEQ2SEQ, *_VISION, *_CLIP)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}


def write(family: Family, folder: Path, dtype: str) -> Path:
    """A complete model folder in that number format: config, weights, tokenizer, image processor."""
    rows = ((TOKENIZERS, family.tokenizer), (PROCESSORS, family.processor))
    parts = [table[name]() for table, name in rows if name]
    with silence():
        return save(folder, made(family.model, family.config).to(getattr(torch, dtype)), *parts)


def tuned(folder: Path, out: Path) -> Path:
    """A copy of the folder in which a third of every parameter's entries moved; written by save_pretrained in its format."""
    config = json.loads((folder / "config.json").read_text())
    dtype = getattr(torch, config["dtype"])
    shutil.copytree(folder, out)
    with silence():
        model = getattr(transformers, config["architectures"][0]).from_pretrained(folder, dtype=dtype)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.view(-1)[::3] += 0.25
        model.to(dtype).save_pretrained(out)  # some modules are loaded in float32, whatever the folder has
    return out


def load(family: Family, folder: Path, dtype: str) -> Any:
    """The folder as a user loads it: through the Auto class, in its own number format."""
    with silence():
        return getattr(transformers, family.auto).from_pretrained(folder, dtype=getattr(torch, dtype)).eval()


def cases(names: Iterable[str] = FAMILIES) -> list[Any]:
    """Family × number format as parameters of a test; all but the quick ones marked `long`."""
    pairs = [(FAMILIES[name], dtype) for name in names for dtype in DTYPES]
    return [pytest.param(*pair, id=f"{pair[0].name}-{pair[1]}", marks=_marks(*pair)) for pair in pairs]


def _marks(family: Family, dtype: str) -> tuple[Any, ...]:
    return () if family.name in QUICK and dtype == "bfloat16" else (pytest.mark.long,)
