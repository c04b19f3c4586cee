"""Completions: which tokens are scored, that padding and batches change nothing, and what has no room."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skillgraft.errors import InputError
from skillgraft.opening.source import Source
from skillgraft.readouts import READOUTS, choose_readout
from skillgraft.readouts.completion import Completion
from skillgraft.readouts.readout import Options
from skillgraft.tasks import Examples, Prompt, Task, Template
from skillgraft.tasks.task import Completing, Origin
from tests.completing import chatting

Folders = Callable[[str], Path]
ROWS = (("the cat was", " slow"), ("a b c d e f g the dog is", " quick , quick"), ("it", " fine !"))


def task(style: Completing = Completing(), *, template: str = "", max_length: int = 64) -> Task:
    prompts: Any = {"causal": Prompt(Template.parse(template, texts=("prompt",)), 64)} if template else {}
    fields = ("prompt", "completion")
    return Task(
        "facts",
        "complete",
        fields,
        Origin(train=("x.jsonl",)),
        "",
        metric="nll",
        max_length=max_length,
        prompts=prompts,
        completing=style,
    )


def examples(*rows: tuple[Any, str]) -> Examples:
    prompts, completions = zip(*(rows or ROWS), strict=True)
    return Examples("facts", {"prompt": prompts, "completion": completions}, np.zeros(len(prompts), np.int64))


def opened(folder: Path, wanted: Task, options: Options = Options()) -> tuple[Any, Completion]:
    source = Source.of(folder)
    plan = READOUTS["completion"](source, [wanted], options)
    model = source.load(plan.loader)[0].eval()
    (readout,) = plan.bind(model)
    assert isinstance(readout, Completion)
    return model, readout


@pytest.mark.parametrize("home", ["llama", "gpt2"])
def test_a_loss_is_that_of_the_completions_tokens_one_row_at_a_time(folders: Folders, home: str) -> None:
    """Brute force: the whole text through the model, and the log-probability of every token after the prompt."""
    model, readout = opened(folders(home), task())
    rows = readout.encode(examples())
    batch = readout.collate(rows)
    with torch.no_grad():
        logs = torch.log_softmax(readout.scores(model, batch).double(), -1)
    found = -logs[torch.arange(len(logs)), batch["labels"]]
    expected = []
    tokenizer = readout.text.tokenizer
    for prompt, completion in ROWS:
        asked = tokenizer(prompt)["input_ids"]
        answer = [*tokenizer(completion)["input_ids"], tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*asked, *answer]])).logits[0].double()
        steps = torch.log_softmax(logits, -1)[len(asked) - 1 : -1]
        expected += [-float(step[token]) for step, token in zip(steps, answer, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)
    assert [row.units for row in rows] == [row.inputs["scored"] for row in rows]
    assert len(logs) == sum(row.units for row in rows)


def test_the_readout_is_chosen_and_says_how_it_asks(folders: Folders) -> None:
    name, why = choose_readout(folders("llama"), task())
    assert (name, "causal language model" in why) == ("completion", True)
    _, readout = opened(folders("llama"), task(template="Q: {prompt} A:"))
    assert json.loads(json.dumps(readout.settings)) == readout.settings
    assert readout.settings["template"] == "Q: {prompt} A:"
    assert readout.encode(examples())[0].inputs["input_ids"][:2] == readout.text.tokenizer("Q:")["input_ids"]
    assert readout.encode(examples().select([])) == []
    with pytest.raises(InputError, match="causal language model"):
        choose_readout(folders("bert"), task())
    with pytest.raises(InputError, match="encoder-decoder"):
        opened(folders("t5"), task())


def test_without_an_end_nothing_is_appended_and_a_written_end_is_not_doubled(folders: Folders) -> None:
    _, ending = opened(folders("llama"), task())
    _, endless = opened(folders("llama"), task(Completing(ends=False)))
    end = ending.text.tokenizer.eos_token_id
    rows = examples(("the cat", " slow"), ("the cat", " slow</s>"))
    assert [row.inputs["input_ids"][-2:].count(end) for row in ending.encode(rows)] == [1, 1]
    assert end not in endless.encode(rows)[0].inputs["input_ids"]


def test_a_chat_is_asked_through_its_template(tmp_path: Path) -> None:
    _, readout = opened(chatting(tmp_path / "chat"), task(Completing(chat=True)))
    turns = (("system", "good"), ("user", "the cat"))
    rows = readout.encode(examples((turns, "slow"), ("the cat", "slow")))
    tokenizer = readout.text.tokenizer
    spelled = "<s>system\ngood</s>\n<s>user\nthe cat</s>\n<s>assistant\n"
    assert rows[0].inputs["input_ids"] == tokenizer(f"{spelled}slow</s>", add_special_tokens=False)["input_ids"]
    assert (
        readout.asked(rows[1])
        == tokenizer("<s>user\nthe cat</s>\n<s>assistant\n", add_special_tokens=False)["input_ids"]
    )
    assert rows[0].inputs["prompt"] == "the cat"
    assert rows[0].inputs["input_ids"][-1] == tokenizer.eos_token_id  # the line end after it is the template's


@pytest.mark.parametrize(
    ("template", "message"), [(None, "no chat template"), ("{{ nothing.there() }}", "cannot be filled")]
)
def test_a_chat_template_that_is_missing_or_broken(tmp_path: Path, template: str | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        opened(chatting(tmp_path / "chat", template=template), task(Completing(chat=True)))


def test_a_plain_prompt_loses_its_beginning_and_is_counted(folders: Folders) -> None:
    _, readout = opened(folders("llama"), task(max_length=8))
    (row,) = readout.encode(examples(("a b c d e f g the dog is", " quick")))
    tokenizer = readout.text.tokenizer
    whole = [*tokenizer("a b c d e f g the dog is quick")["input_ids"], tokenizer.eos_token_id]
    assert row.inputs["input_ids"] == whole[-8:]
    assert row.inputs["cut"] == len(whole) - 8


def test_a_row_of_text_loses_its_end_and_is_counted(folders: Folders) -> None:
    _, readout = opened(folders("llama"), task(Completing("text", ends=False), max_length=4))
    (row,) = readout.encode(examples(("", "a b c d e f g")))
    assert (row.length, row.inputs["scored"], row.inputs["cut"]) == (4, 3, 3)  # the first token has nothing before it


def test_what_has_no_room_is_refused_with_its_row(folders: Folders, tmp_path: Path) -> None:
    _, readout = opened(folders("llama"), task(max_length=8))
    long = " slow" * 12
    with pytest.raises(
        InputError, match=r"row 1: its prompt has 3 tokens and its completion 13, .* raise max_length to 14"
    ):
        readout.encode(examples(("it", " fine"), ("the cat", long)))
    with pytest.raises(InputError, match="shorten or remove the row"):
        readout.encode(examples(("the cat", long * 20)))
    _, chat = opened(chatting(tmp_path / "chat"), task(Completing(chat=True), max_length=8))
    with pytest.raises(InputError, match="a completion is never cut"):
        chat.encode(examples(("the cat is it slow", "slow")))
    with pytest.raises(InputError, match="at least two tokens"):
        replace(readout, style=Completing("text", ends=False)).encode(examples(("", "a")))


def test_a_row_of_a_megabyte_is_refused_in_a_sentence(folders: Folders) -> None:
    _, readout = opened(folders("llama"), task())
    with pytest.raises(InputError, match="a completion is never cut") as refused:
        readout.encode(examples(("it", " fine" * 200_000)))
    assert len(str(refused.value)) < 500
    (row,) = readout.encode(examples((" fine" * 200_000, " slow")))
    assert (row.length, row.inputs["cut"]) == (64, 199_938)


def test_a_tokenizer_without_a_padding_token_changes_nothing(folders: Folders) -> None:
    model, readout = opened(folders("llama"), task())
    assert readout.text.tokenizer.pad_token_id is None
    rows = readout.encode(examples())
    with torch.no_grad():
        together = readout.scores(model, readout.collate(rows))
        alone = torch.cat([readout.scores(model, readout.collate([row])) for row in rows])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)
