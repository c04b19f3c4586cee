"""Encoder-decoders behind the server: texts of skills and sums as `generate` writes them on the applied folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
import torch

from skillgraft.errors import InputError
from skillgraft.opening.source import Source, silence
from skillgraft.serve.encoded import first_token
from skillgraft.serve.service import kind_of
from tests.readouts.making import bart, t5

from .serving import Running, applied, client, parted, running, skill, write_skills

PROMPTS = ("the cat", "quick red mouse was fine and the film was dull", "what is it")
MODELS = ("base", "bash", "french", "bash+0.5*french")
TOKENS, TIE = 20, 1e-4


@pytest.fixture(scope="module", params=[t5, bart], ids=["t5", "bart"])
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make: Callable[[Path], Path] = request.param
    with silence():
        return make(tmp_path_factory.mktemp("paired") / "base")


@pytest.fixture(scope="module")
def paired(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    grafts = {name: skill(base, seed) for seed, name in enumerate(("bash", "french"))}
    with running(base, write_skills(tmp_path_factory.mktemp("skills"), grafts)) as run:
        yield run


def test_greedy_texts_are_those_of_generate(paired: Running, base: Path, tmp_path: Path) -> None:
    """All models at the same time: those that come while others are written wait, and none has another's text."""
    ask, tokenizer = client(paired), paired.service.answering

    def written(model: str) -> list[str]:
        found = ask.completions.create(model=model, prompt=list(PROMPTS), max_tokens=TOKENS, temperature=0)
        return [choice.text for choice in found.choices]

    with ThreadPoolExecutor(len(MODELS)) as pool:
        texts = dict(zip(MODELS, pool.map(written, MODELS), strict=True))
    for model in MODELS:
        folder = applied(paired, base, tmp_path / model.replace("*", "x"), model)
        for prompt, text in zip(PROMPTS, texts[model], strict=True):
            assert all(margin < TIE for margin in parted(folder, tokenizer(prompt)["input_ids"], text, TOKENS))
    assert len({tuple(found) for found in texts.values()}) > 1


def test_texts_stream_and_rows_leave_at_different_times(paired: Running) -> None:
    ask = client(paired)
    settings = {"model": "bash", "prompt": "the cat", "temperature": 1.5, "seed": 5}
    whole = ask.completions.create(**settings, max_tokens=12, n=3)
    stream = ask.completions.create(**settings, max_tokens=12, n=3, stream=True)
    texts = ["", "", ""]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert len(set(texts)) == 3


def test_a_prompt_and_its_answer_stand_apart(paired: Running) -> None:
    """Only the prompt alone can be too long; a decoder has room of its own."""
    ask = client(paired)
    room = paired.service.room
    if room > 1000:  # T5 counts by distances
        return
    assert (
        ask.completions.create(model="base", prompt=[5] * room, max_tokens=8, temperature=0).usage.prompt_tokens == room
    )
    with pytest.raises(openai.BadRequestError, match="more than"):
        ask.completions.create(model="base", prompt=[5] * (room + 1), max_tokens=8)


def test_chats_and_embeddings_are_refused_in_words(paired: Running) -> None:
    ask = client(paired)
    with pytest.raises(openai.BadRequestError, match="has no chat template; use /v1/completions"):
        ask.chat.completions.create(model="base", messages=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match="embeddings are an encoder's"):
        ask.embeddings.create(model="base", input="x")


def test_an_encoder_decoder_that_does_not_write_is_refused(base: Path) -> None:
    source = Source.of(base)
    source.settings["architectures"] = ["BartForSequenceClassification"]
    with pytest.raises(
        InputError, match="whose architecture is BartForSequenceClassification; the server runs those that write"
    ):
        kind_of(source, [], "auto")


def test_what_a_text_begins_with_must_be_known() -> None:
    model = torch.nn.Linear(1, 1)
    model.config = model.generation_config = object()  # type: ignore[assignment]
    with pytest.raises(InputError, match="no decoder_start_token_id"):
        first_token(model)
