"""A new user with a language model: prompts and answers of their own, and a server that a client asks."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

import openai
import pytest

from tests.journeys.terminal import Terminal
from tests.readouts import making
from tests.running import start
from tests.serve.serving import language_model

pytestmark = pytest.mark.long


def errands() -> str:
    """Prompts and answers, a JSON object a line."""
    answers = {"cat": "slow", "dog": "quick", "mouse": "fine", "house": "red"}
    rows = [{"prompt": f"{first} {noun} {verb}", "completion": answers[noun]}
            for first, noun, verb in product(("the", "a"), answers, ("is", "was"))]  # fmt: skip
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_prompts_and_answers(terminal: Terminal) -> None:
    """Journey 4: JSONL to a graft whose answers stand beside the base's."""
    making.llama(terminal.folder / "BASE")
    terminal.write("errands.jsonl", errands())
    assert "task 'errands'" in terminal("skillgraft task init errands.jsonl -o errands.toml")
    tuning = "--optimizer adamw --lr 1e-2 --steps 40 --batch-size 4"
    terminal(f"skillgraft finetune BASE --task errands.toml {tuning} -o TUNED")
    search = "--method budgeted --steps 4 --density 0.05 --scale 2"
    said = terminal(f"skillgraft localize BASE TUNED --task errands.toml {search} -o skill.safetensors")
    assert "readout: completion (LlamaForCausalLM is a causal language model" in said
    said = terminal("skillgraft evaluate BASE --task errands.toml --tuned TUNED --graft skill=skill.safetensors")
    for word in ("NLL", "exact match", "prompt:", "completion:", "base:", "TUNED:", "skill:"):
        assert word in said, word
    terminal("skillgraft apply BASE skill.safetensors -o GRAFTED")
    terminal("skillgraft remove GRAFTED skill.safetensors -o BACK")
    assert terminal.digest("BACK") == terminal.digest("BASE")


@contextmanager
def serving(terminal: Terminal) -> Iterator[str]:
    """`skillgraft serve BASE --skills skills`, until it is asked to stop: then it ends by itself."""
    process = start(terminal.folder, "serve", "BASE", "--skills", "skills", "--port", "0", "--name", "base", "--json")
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_server_that_clients_ask(terminal: Terminal) -> None:
    """Journey 7: serve a folder of skills; curl and OpenAI's client get answers, and a wrong name gets the nearest."""
    base = language_model(terminal.folder / "BASE")
    assert base.is_dir()
    terminal.write("errands.jsonl", errands())
    terminal("skillgraft task init errands.jsonl -o errands.toml")
    terminal(
        "skillgraft finetune BASE --task errands.toml --optimizer adamw --lr 1e-2 --steps 10 --batch-size 4 -o TUNED"
    )
    (terminal.folder / "skills").mkdir()
    terminal("skillgraft extract BASE TUNED --density 0.05 -o skills/errands.safetensors")
    with serving(terminal) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        assert [model.id for model in client.models.list()] == ["base", "errands"]
        found = client.completions.create(model="errands", prompt="the cat is", max_tokens=4, temperature=0)
        assert isinstance(found.choices[0].text, str)
        with pytest.raises(openai.NotFoundError, match="errands"):
            client.completions.create(model="erands", prompt="the cat is", max_tokens=4)
        if shutil.which("curl"):
            asked = ["curl", "-s", f"{url}/v1/completions", "-d", '{"model": "0.5*errands", "prompt": "the cat is"}']
            answer = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout)
            assert answer["skills"][0]["scale"] == 0.5
