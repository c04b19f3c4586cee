"""OpenAI's own Python client talks to the server: models, text, chats, embeddings, skills and sums, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from skillgraft.files.graft_file import load

from .serving import Running, applied, client, greedy

PROMPTS = ("the cat", "quick red mouse was", "what is it")
TIE = 1e-4


@pytest.fixture(scope="module")
def ask(writer: Running) -> Any:
    return client(writer)


def test_the_models_are_the_base_and_its_skills(ask: Any) -> None:
    assert [model.id for model in ask.models.list()] == ["base", "bash", "french"]
    assert ask.models.retrieve("bash+0.5*french").id == "bash+0.5*french"


@pytest.mark.parametrize("model", ["base", "bash", "french", "bash+0.5*french", "-1*bash"])
def test_greedy_text_is_that_of_generate_on_the_applied_folder(
    ask: Any, writer: Running, writer_base: Path, tmp_path: Path, model: str
) -> None:
    folder = applied(writer, writer_base, tmp_path, model)
    found = ask.completions.create(model=model, prompt=list(PROMPTS), max_tokens=24, temperature=0)
    for prompt, choice in zip(PROMPTS, found.choices, strict=True):
        text, margins = greedy(folder, prompt, 24)
        assert choice.text == text or min(margins) < TIE, (model, prompt)


def test_every_answer_names_its_grafts(ask: Any, writer: Running) -> None:
    digest = {name: load(writer.folder.path / f"{name}.safetensors").digest for name in ("bash", "french")}
    found = ask.completions.with_raw_response.create(model="bash+0.5*french", prompt="the", max_tokens=2)
    made = [
        {"name": "bash", "scale": 1.0, "digest": digest["bash"]},
        {"name": "french", "scale": 0.5, "digest": digest["french"]},
    ]
    assert found.parse().skills == made
    assert found.headers["X-Skillgraft-Skills"] == (
        f"bash;scale=1;digest={digest['bash']}, french;scale=0.5;digest={digest['french']}"
    )
    assert ask.completions.create(model="base", prompt="the", max_tokens=2).skills == []


def test_the_field_skills_is_the_same_as_the_sum(ask: Any) -> None:
    settings = {"prompt": "the dog", "max_tokens": 16, "temperature": 0}
    summed = ask.completions.create(model="bash+0.5*french", **settings)
    named = ask.completions.create(model="base", extra_body={"skills": {"bash": 1, "french": 0.5}}, **settings)
    assert (named.choices[0].text, named.skills) == (summed.choices[0].text, summed.skills)


@pytest.mark.parametrize("shape", ["text", "chat"])
def test_a_stream_is_the_whole_in_pieces(ask: Any, shape: str) -> None:
    settings = {"model": "french", "max_tokens": 30, "temperature": 0.8, "seed": 7}
    if shape == "text":
        call, settings["prompt"] = ask.completions.create, "the dog"
    else:
        call, settings["messages"] = ask.chat.completions.create, [{"role": "user", "content": "the dog"}]
    whole = call(**settings)
    chunks = list(call(**settings, stream=True, stream_options={"include_usage": True}))
    text = "".join(_text(chunk.choices[0]) for chunk in chunks if chunk.choices)
    assert text == _text(whole.choices[0])
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].skills == whole.skills
    assert len(chunks) > 5


def _text(choice: Any) -> str:
    if hasattr(choice, "text"):
        return str(choice.text)
    return str(
        (getattr(choice, "message", None) and choice.message.content)
        or (getattr(choice, "delta", None) and choice.delta.content)
        or ""
    )


def test_a_seed_draws_the_same_again_and_n_draws_several(ask: Any) -> None:
    settings = {"model": "bash", "prompt": "a b", "max_tokens": 12, "temperature": 1.5, "seed": 3}
    first, again = (ask.completions.create(n=3, **settings) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in again.choices]
    assert len(set(texts)) == 3
    assert first.usage.completion_tokens <= 36


def test_logprobs_are_those_of_the_model(ask: Any) -> None:
    found = ask.chat.completions.create(
        model="base", messages=[{"role": "user", "content": "the"}], max_tokens=4, temperature=0, logprobs=True, top_logprobs=3,
    )  # fmt: skip
    for token in found.choices[0].logprobs.content:
        tops = [each.logprob for each in token.top_logprobs]
        assert tops == sorted(tops, reverse=True)
        assert (token.logprob, len(tops)) == (pytest.approx(tops[0]), 3)
    text = ask.completions.create(model="base", prompt="the", max_tokens=4, temperature=0, logprobs=2)
    assert [len(each) for each in text.choices[0].logprobs.top_logprobs] == [2, 2, 2, 2]


def test_a_stop_string_ends_the_text_before_it(ask: Any) -> None:
    settings = {"model": "base", "prompt": "quick red mouse was", "max_tokens": 24, "temperature": 0}
    whole = ask.completions.create(**settings).choices[0].text
    stop = whole[5:8]  # within and across tokens, wherever they end
    found = ask.completions.create(**settings, stop=[stop, "never there"]).choices[0]
    assert (found.text, found.finish_reason) == (whole[: whole.index(stop)], "stop")


def test_embeddings_come_as_floats_and_as_base64(labeller: Running) -> None:
    ask = client(labeller)
    texts = ["the cat was fine", "a dull film", "dog"]
    plain = ask.embeddings.create(model="films", input=texts, encoding_format="float")
    coded = ask.embeddings.create(model="films", input=texts)  # the client asks for base64 and decodes it
    found = np.array([row.embedding for row in plain.data])
    np.testing.assert_allclose(found, np.array([row.embedding for row in coded.data]), rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    base = np.array([row.embedding for row in ask.embeddings.create(model="base", input=texts).data])
    assert np.abs(base - found).max() > 1e-3
    assert plain.model_extra["skills"][0]["name"] == "films"


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ({"model": "bsh"}, openai.NotFoundError, "did you mean 'bash'"),
        ({"model": "bash+frensh"}, openai.NotFoundError, "did you mean 'french'"),
        ({"model": "bash*2"}, openai.BadRequestError, "NUMBER\\*NAME"),
        ({"model": "bash", "max_tokens": 0}, openai.BadRequestError, "whole number from 1"),
        ({"model": "bash", "temperature": 3}, openai.BadRequestError, "from 0 to 2"),
        ({"model": "bash", "prompt": "the " * 300}, openai.BadRequestError, "are more than 256"),
        ({"model": "bash", "echo": True}, openai.BadRequestError, "'echo' is not supported"),
        ({"model": "bash", "extra_body": {"temprature": 1}}, openai.BadRequestError, "did you mean 'temperature'"),
        ({"model": "bash", "extra_body": {"skills": {"bash": 1}}}, openai.BadRequestError, "base's name"),
        ({"model": "base", "extra_body": {"skills": {"bash": "x"}}}, openai.BadRequestError, "must be a number"),
    ],
)  # fmt: skip
def test_errors_say_what_was_expected(ask: Any, body: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        ask.completions.create(**{"prompt": "the", "max_tokens": 2, **body})


def test_what_a_model_cannot_do_is_refused(ask: Any, labeller: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="embeddings are an encoder's"):
        ask.embeddings.create(model="base", input="x")
    with pytest.raises(openai.BadRequestError, match="writes nothing"):
        client(labeller).completions.create(model="films", prompt="x")
