"""Architectures without torch's fused attention, and one without a limit of positions: they are opened, read and trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from skillgraft.folders.extract import extract
from skillgraft.measure.evaluate import evaluate
from skillgraft.opening.source import Source
from skillgraft.readouts.rows import token_room
from skillgraft.tasks.data import Data
from skillgraft.training.finetune import finetune
from skillgraft.training.plan import TrainingPlan
from tests.readouts import making
from tests.readouts.making import SENTIMENT, SMALL, films, open_readouts, scored, task_of

_DEBERTA = {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 64}
_XLNET = {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
WITHOUT_SDPA: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("MPNetForMaskedLM", {**SMALL, "max_position_embeddings": 66}),
    "deberta": ("DebertaForMaskedLM", _DEBERTA),
    "deberta-v2": ("DebertaV2ForMaskedLM", _DEBERTA),
    "xlnet": ("XLNetLMHeadModel", _XLNET),
}


def save(folder: Path, name: str) -> Path:
    kind, sizes = WITHOUT_SDPA[name]
    config = transformers.AutoConfig.for_model(name, vocab_size=len(making.word_pieces()), pad_token_id=0, **sizes)
    return making.save(folder, making.made(kind, config), making.word_pieces())


@pytest.mark.parametrize("name", WITHOUT_SDPA)
def test_what_has_no_fused_attention_is_opened(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "m", name)
    with pytest.raises(ValueError, match="scaled_dot_product_attention"):
        transformers.AutoModel.from_pretrained(folder, attn_implementation="sdpa")
    opened = open_readouts(folder, [task_of(SENTIMENT)], readout="linear")
    assert scored(opened, films()).isfinite().all()
    making.assert_padding_is_invisible(opened, films())


@pytest.mark.parametrize("name", WITHOUT_SDPA)
def test_it_is_trained_and_evaluated(name: str, tmp_path: Path) -> None:
    base, task, data = save(tmp_path / "m", name), making.write_films(tmp_path), Data(readout="linear", test_rows=10)
    plan = TrainingPlan(optimizer="adamw", lr=3e-3, batch_size=8, steps=3, dropout=False)
    finetune(base, [task], out=tmp_path / "tuned", plan=plan, data=data)
    grafts = {"graft": extract(base, tmp_path / "tuned")}
    found = evaluate(base, [task], tuned={"tuned": tmp_path / "tuned"}, grafts=grafts, data=data)["films"]
    assert (found["tuned"].predicted == found["graft"].predicted).all()
    assert found["tuned"].scores.tobytes() != found["base"].scores.tobytes()


def test_an_architecture_that_says_minus_one_has_no_limit_of_its_own(tmp_path: Path) -> None:
    """XLNet's positions are relative: its configuration says −1."""
    source = Source.of(save(tmp_path / "m", "xlnet"))
    assert source.config.max_position_embeddings == -1
    assert token_room(source) == source.tokenizer.model_max_length > 1000
    long = films([" ".join(["fine"] * 200)])
    opened = open_readouts(tmp_path / "m", [task_of(SENTIMENT)], readout="linear", max_length=150)
    (row,) = opened.readouts[0].encode(long)
    assert row.length == 150
    assert scored(opened, long).isfinite().all()


def test_a_tokenizers_own_limit_still_binds(tmp_path: Path) -> None:
    folder = save(tmp_path / "m", "xlnet")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = 12
    tokenizer.save_pretrained(folder)
    assert token_room(Source.of(folder)) == 12
