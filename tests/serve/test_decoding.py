"""Rows that join and leave a batch are written what transformers' own `generate` writes for each of them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft.serve import decoding
from skillgraft.serve.decoding import Decoding

SIZE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 40}
LLAMA = {**SIZE, "num_key_value_heads": 1, "max_position_embeddings": 200}
FAMILIES: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 200, "vocab_size": 40},
    "LlamaForCausalLM": LLAMA,
    "Qwen3ForCausalLM": {**LLAMA, "head_dim": 8},
    "Gemma3ForCausalLM": {**LLAMA, "head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "MistralForCausalLM": {**LLAMA, "sliding_window": 4},
    "Phi3ForCausalLM": {**LLAMA, "pad_token_id": 0},
    "GPTNeoXForCausalLM": {**SIZE, "max_position_embeddings": 200},
    "OPTForCausalLM": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24, "vocab_size": 40,
                       "max_position_embeddings": 200, "word_embed_proj_dim": 16},
    "BloomForCausalLM": {"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40},
}  # fmt: skip
PROMPTS = ([5, 6, 7], [8], [9, 10, 11, 12, 13, 14, 15], [3, 3], [21, 22, 23, 24, 25])


def model_of(family: str) -> Any:
    import transformers

    torch.manual_seed(0)
    cls = getattr(transformers, family)
    model = cls(cls.config_class(**FAMILIES[family], bos_token_id=1, eos_token_id=2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def alone(model: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    """What `generate` writes; never the end, so that lengths are known."""
    ids = torch.tensor([list(prompt)])
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens,
        suppress_tokens=[2],
    )  # fmt: skip
    return list(found[0, len(prompt) :].tolist())


def likeliest(logits: torch.Tensor) -> list[int]:
    logits[:, 2] = -torch.inf
    return list(logits.argmax(-1).tolist())


class Written:
    """A batch, and what its rows have so far; rows come and go in any order."""

    def __init__(self, model: Any) -> None:
        self.decoding, self.rows, self.texts = Decoding(model), [], {}

    def join(self, *rows: int) -> None:
        logits = self.decoding.join([PROMPTS[row] for row in rows])
        self.rows += rows
        self.texts |= {row: [token] for row, token in zip(rows, likeliest(logits), strict=True)}

    def step(self) -> None:
        logits = self.decoding.step([self.texts[row][-1] for row in self.rows])
        for row, token in zip(self.rows, likeliest(logits), strict=True):
            self.texts[row].append(token)

    def leave(self, row: int) -> None:
        kept = [at for at, other in enumerate(self.rows) if other != row]
        self.decoding.keep(kept)
        self.rows.remove(row)


QUICK = ("LlamaForCausalLM", "GPT2LMHeadModel", "Gemma3ForCausalLM")


@pytest.fixture(autouse=True)
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_ROOM", 3)


@pytest.mark.parametrize(
    "family", [pytest.param(each, marks=() if each in QUICK else pytest.mark.long) for each in FAMILIES]
)
def test_rows_that_join_and_leave_are_written_as_if_alone(family: str) -> None:
    model = model_of(family)
    written = Written(model)
    written.join(0, 1)
    for _ in range(5):
        written.step()
    written.join(2)
    written.step()
    written.leave(0)
    written.join(3, 4)
    for _ in range(9):  # beyond the room that is made ready at once
        written.step()
    written.leave(2)
    written.step()
    for row, text in written.texts.items():
        assert text == alone(model, PROMPTS[row], len(text)), (family, row)
    assert len(written.decoding) == 3


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["join", "step", "leave"]), st.integers(0, 4)), max_size=14))
def test_any_coming_and_going(moves: list[tuple[str, int]]) -> None:
    written = Written(LLAMA_MODEL)
    for move, row in moves:
        if move == "join" and row not in written.texts:
            written.join(row)
        elif move == "leave" and row in written.rows:
            written.leave(row)
        elif move == "step" and written.rows:
            written.step()
    for row, text in written.texts.items():
        assert text == alone(LLAMA_MODEL, PROMPTS[row], len(text))


LLAMA_MODEL = model_of("LlamaForCausalLM")
