"""A GGUF file unpacked: its numbers, tokenizer and chat template; and where a folder is needed, the command that makes one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from skillgraft import extract, unpack
from skillgraft.errors import InputError
from skillgraft.folders.checkpoint import Checkpoint
from tests.completing import CHAT
from tests.readouts import making
from tests.running import runner

gguf = pytest.importorskip("gguf")


def tiny_gguf(folder: Path) -> tuple[Path, Any]:
    """A tiny Llama as a GGUF file in float32, and the model itself. Rows of query and key are in GGUF's own order."""
    model = transformers.AutoModelForCausalLM.from_pretrained(making.llama(folder / "llama"))
    config, tokenizer = model.config, making.byte_pieces(wrapped=False)
    file = folder / "tiny.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _write_tokenizer(writer, tokenizer)
    for name, numbers in model.state_dict().items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        count = next((n for part, n in heads.items() if part in name), None)
        array = numbers.float().numpy()
        writer.add_tensor(_gguf_name(name), array if count is None else _permuted(array, count))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file, model


def _write_tokenizer(writer: Any, tokenizer: Any) -> None:
    vocabulary = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    merges = tokenizer.backend_tokenizer.to_str()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(vocabulary)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in ("<s>", "</s>") else gguf.TokenType.NORMAL for token in vocabulary]
    )
    pairs = json.loads(merges)["model"]["merges"]
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in pairs])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT)


def _gguf_name(name: str) -> str:
    parts = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers.": "blk.",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
        "post_attention_layernorm": "ffn_norm", "input_layernorm": "attn_norm",
    }  # fmt: skip
    for ours, theirs in parts.items():
        name = name.replace(ours, theirs)
    return name


def _permuted(weights: Any, heads: int) -> Any:
    rows, width = weights.shape
    return np.ascontiguousarray(
        weights.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)
    )


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    return tiny_gguf(tmp_path_factory.mktemp("gguf"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_numbers_are_those_of_the_file(packed: tuple[Path, Any], tmp_path: Path, dtype: str) -> None:
    file, model = packed
    made = unpack(file, out=tmp_path / "out", dtype=dtype)
    assert (made.dtype, made.has_chat_template) == (dtype, True)
    again = transformers.AutoModelForCausalLM.from_pretrained(made.path, dtype="auto")
    wanted = {name: numbers.to(getattr(torch, dtype)) for name, numbers in model.state_dict().items()}
    assert all(torch.equal(numbers, wanted[name]) for name, numbers in again.state_dict().items())
    tokenizer = transformers.AutoTokenizer.from_pretrained(made.path)
    assert tokenizer.chat_template == CHAT
    assert (
        tokenizer("the cat was slow")["input_ids"] == making.byte_pieces(wrapped=False)("the cat was slow")["input_ids"]
    )
    assert len(extract(made.path, made.path)) == 0


def test_where_a_folder_is_needed_the_command_is_said(packed: tuple[Path, Any]) -> None:
    file, _ = packed
    for given in (file, file.parent):
        with pytest.raises(InputError, match=r"unpack it: skillgraft unpack \S+tiny.gguf -o tiny$"):
            Checkpoint.open(given)


def test_what_is_no_gguf_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner(tmp_path, monkeypatch, capsys)
    (tmp_path / "cut.gguf").write_bytes(b"no GGUF at all")
    ended = run("unpack", "cut.gguf", "-o", "out")
    assert (ended.code, "does not begin as a GGUF file does" in ended.err) == (2, True)
    assert run("unpack", "none.gguf", "-o", "out").code == 2
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match=r"expected a \.gguf file"):
        unpack(making.llama(tmp_path / "llama"), out=tmp_path / "out")


def test_the_verb_says_what_was_written(
    packed: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = runner(tmp_path, monkeypatch, capsys)("unpack", packed[0], "-o", "out", "--json")
    assert ended.code == 0
    assert '"chat_template": true' in ended.out.lower()
