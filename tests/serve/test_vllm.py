"""vLLM as the engine: what it is asked and what is made of its answers; and the real one, where it is installed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skillgraft.errors import InputError, RunError
from skillgraft.serve.calls import ClientGone
from skillgraft.serve.limits import Limits
from skillgraft.serve.refusals import Refused
from skillgraft.serve.requests import chat, completion
from skillgraft.serve.skills import Pick
from skillgraft.serve.vllm import RANKS, Vllm, VllmService, _body, _in_time, _parsed, rank_for

from .serving import Running, client, greedy, language_model, skill, write_skills

REAL = os.environ.get("SKILLGRAFT_VLLM")  # the Python of an environment that has vLLM


@pytest.mark.parametrize(
    ("ranks", "rank"), [([], 16), ([3], 8), ([8], 16), ([100, 5], 256), ([300], 512), ([512], 512), ([600], 512)]
)
def test_room_for_the_largest_skill_and_a_sum(ranks: list[int], rank: int) -> None:
    assert rank_for(ranks) == rank
    assert rank in RANKS


def test_what_vllm_is_asked() -> None:
    text = {"model": "a+b", "prompt": "x", "max_tokens": 5, "temperature": 0, "stop": "!", "seed": 3, "logprobs": 2}
    assert _body(completion(text, Limits()), "text", "sum-1", Limits()) == {
        "model": "sum-1", "prompt": "x", "max_tokens": 5, "temperature": 0.0, "top_p": 1.0, "n": 1, "stop": ["!"],
        "stream": False, "seed": 3, "logprobs": 2,
    }  # fmt: skip
    talk = {
        "model": "a",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    found = _body(chat(talk, Limits(new_tokens=7)), "chat", "0:a", Limits(new_tokens=7))
    assert (found["messages"], found["max_tokens"]) == ([{"role": "user", "content": "hi"}], 7)
    assert found["stream_options"] == {"include_usage": True}


def test_vllms_refusals_have_our_shape() -> None:
    assert _parsed(200, b'{"id": 1}') == {"id": 1}
    for status, raw, ours in (
        (400, b'{"error": {"message": "too long"}}', 400),
        (500, b"oops", 502),
        (200, b"[]", 502),
    ):
        with pytest.raises(Refused, match="vLLM: ") as refused:
            _parsed(status, raw)
        assert refused.value.status == ours


@pytest.mark.parametrize(("leaves", "error"), [(True, ClientGone), (False, Refused)])
def test_vllm_is_not_waited_for_without_end(leaves: bool, error: type[Exception]) -> None:
    closed = []

    class Asking:
        async def receive(self) -> dict[str, str]:
            await asyncio.sleep(0 if leaves else 60)
            return {"type": "http.disconnect"}

    async def never() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            closed.append("connection")

    with pytest.raises(error):
        asyncio.run(_in_time(Asking(), never(), 0.05))  # type: ignore[arg-type]
    assert closed == ["connection"]


def test_a_vllm_that_ends_at_once_is_reported_with_its_last_line(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no such thing as CUDA\nexit 3\n")
    python.chmod(0o755)
    with pytest.raises(RunError, match="no such thing as CUDA"):
        Vllm.start("BASE", tmp_path, python=python, rank=8)


def test_what_vllm_cannot_serve_is_refused(encoder_base: Path, writer_base: Path, tmp_path: Path) -> None:
    for base, python, words in (
        (encoder_base, sys.executable, "language models"),
        (writer_base, "none", "there is no such program"),
    ):
        with pytest.raises(InputError, match=words):
            VllmService.open(str(base), [], tmp_path, python=Path(python), name=None, limits=Limits())


def test_the_base_never_answers_without_an_adapter_of_its_own(tmp_path: Path) -> None:
    """A row without an adapter beside rows with one would be given theirs (vLLM 0.32 on a CPU)."""
    vllm = Vllm("BASE", tmp_path, None, None, 8)  # type: ignore[arg-type]
    assert vllm.adapter(Pick("base", ())) == "nothing"


@pytest.mark.long
@pytest.mark.skipif(REAL is None, reason="SKILLGRAFT_VLLM does not name the Python of an environment with vLLM")
def test_the_real_vllm(tmp_path: Path) -> None:
    """Skills, a sum, the base, a stream and errors through OpenAI's client; greedy texts are those of the applied folders."""
    from .test_openai_client import applied

    base = language_model(tmp_path / "base", head_dim=64)  # vLLM's attention on a CPU takes no smaller ones than 32
    write_skills(
        tmp_path / "skills", {name: skill(base, seed, share=0.002) for seed, name in enumerate(("bash", "french"))}
    )
    words = [
        "serve", str(base), "--skills", str(tmp_path / "skills"), "--name", "base", "--port", "0", "--json", "--engine", "vllm",
        "--vllm-python", str(REAL), "--vllm-options",
        "--dtype float32 --enforce-eager --max-model-len 128 --max-num-batched-tokens 256 --max-num-seqs 4",
    ]  # fmt: skip
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "skillgraft", *words], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        ask = client(_at(url))
        assert [model.id for model in ask.models.list()] == ["base", "bash", "french"]
        for model in ("base", "bash", "french", "bash+0.5*french"):
            found = ask.completions.create(model=model, prompt="the cat", max_tokens=12, temperature=0)
            stream = ask.completions.create(model=model, prompt="the cat", max_tokens=12, temperature=0, stream=True)
            (tmp_path / "on" / model).mkdir(parents=True)
            text, margins = greedy(
                applied(_at(url, tmp_path / "skills"), base, tmp_path / "on" / model, model), "the cat", 12
            )
            assert found.choices[0].text == text or min(margins) < 1e-4
            assert "".join(chunk.choices[0].text for chunk in stream) == found.choices[0].text
            assert [made["name"] for made in found.skills] == [name for name in ("bash", "french") if name in model]
    finally:
        process.terminate()
        process.wait(60)


def _at(url: str, skills: Path | None = None) -> Any:
    return Running(url, None, type("Skills", (), {"path": skills})(), None, None)  # type: ignore[arg-type]
