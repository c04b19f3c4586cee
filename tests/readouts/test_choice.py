"""Choice ranking against a naive loop over candidates and tokens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from skillgraft.errors import InputError
from skillgraft.readouts import loss_of
from skillgraft.tasks import Examples
from tests.readouts.making import (
    GAPS,
    SENTIMENT,
    assert_gradients_flow,
    assert_padding_is_invisible,
    films,
    gaps,
    open_readouts,
    scored,
    task_of,
)

Folders = Callable[[str], Path]


def seq2seq_score(model: Any, tokenizer: Any, prompt: str, answer: str) -> tuple[float, int]:
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    wanted = tokenizer(answer)["input_ids"]
    total, decoder = 0.0, [0]
    for token in wanted:
        logits = model(input_ids=ids, decoder_input_ids=torch.tensor([decoder])).logits[0, -1]
        total += float(logits.log_softmax(-1)[token])
        decoder.append(token)
    return total, len(wanted)


def causal_score(model: Any, tokenizer: Any, prompt: str, answer: str) -> tuple[float, int]:
    before, whole = tokenizer(prompt)["input_ids"], tokenizer(f"{prompt} {answer}")["input_ids"]
    total = 0.0
    for place in range(len(before), len(whole)):
        logits = model(input_ids=torch.tensor([whole[:place]])).logits[0, -1]
        total += float(logits.log_softmax(-1)[whole[place]])
    return total, len(whole) - len(before)


@pytest.mark.parametrize(("model", "naive"), [("t5", seq2seq_score), ("gpt2", causal_score), ("llama", causal_score)])
def test_scores_are_sums_of_token_log_probabilities(folders: Folders, model: str, naive: Any) -> None:
    opened = open_readouts(folders(model), [task_of(SENTIMENT), task_of(GAPS)], readout="choice")
    tasks = [task_of(SENTIMENT), task_of(GAPS)]
    means = open_readouts(folders(model), tasks, readout="choice", length_normalised=True)
    some = films(("the film was fine", "it was slow , slow and bad !", ""))
    asked = [(f"{row['text']} is it good or bad ?", ("terrible bad", "great")) for row in some.rows()]
    shown = [(f"{row['question']} {' or '.join(row['choices'])} ?", row["choices"]) for row in gaps().rows()]
    for place, (examples, prompts) in enumerate(((some, asked), (gaps(), shown))):
        sums, averages = scored(opened, examples, place), scored(means, examples, place)
        for row, (prompt, answers) in enumerate(prompts):
            with torch.no_grad():
                found = [naive(opened.model, opened.source.tokenizer, prompt, answer) for answer in answers]
            totals, lengths = torch.tensor([total for total, _ in found]), torch.tensor([length for _, length in found])
            torch.testing.assert_close(sums[row, : len(found)], totals, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(averages[row, : len(found)], totals / lengths, atol=1e-4, rtol=1e-4)
            assert sums[row, len(found) :].isneginf().all()


@pytest.mark.parametrize("model", ["t5", "gpt2", "llama"])
def test_padding_and_gradients(folders: Folders, model: str) -> None:
    opened = open_readouts(folders(model), [task_of(SENTIMENT), task_of(GAPS)], readout="choice")
    for place, examples in enumerate((films(), gaps())):
        assert_padding_is_invisible(opened, examples, place)
        assert_gradients_flow(opened, examples, place)


def test_the_loss_is_log_softmax_over_the_choices(folders: Folders) -> None:
    opened = open_readouts(folders("t5"), [task_of(GAPS)])
    scores = scored(opened, gaps())
    present = (scores[0, :3], scores[1, :2], scores[2, :4])
    by_hand = [-one.log_softmax(-1)[label] for one, label in zip(present, (2, 0, 3), strict=True)]
    torch.testing.assert_close(loss_of(scores, torch.tensor([2, 0, 3])), torch.stack(by_hand).mean())


def test_the_encoder_runs_once_per_row(folders: Folders) -> None:
    opened = open_readouts(folders("t5"), [task_of(GAPS)])
    sizes: list[int] = []
    opened.model.get_encoder().register_forward_hook(lambda _m, _i, out: sizes.append(len(out.last_hidden_state)))
    scored(opened, gaps())
    assert sizes == [3]


def test_a_task_without_choice_prompt_uses_its_causal_one(folders: Folders) -> None:
    start = SENTIMENT.index("[prompt.choice]")
    task = task_of(SENTIMENT[:start] + SENTIMENT[SENTIMENT.index("[describe]") :])
    (readout,) = open_readouts(folders("t5"), [task]).readouts
    assert readout.settings["template"] == "{text} it is"
    (row,) = readout.encode(films(["fine"]))
    tokens = [readout.text.tokenizer.convert_ids_to_tokens(ids) for ids in row.inputs["candidates"]]
    assert tokens == [["▁terrible", "</s>"], ["▁great", "</s>"]]


def test_words_with_the_same_tokens(folders: Folders) -> None:
    unknown = 'words = { bad = "zebra", good = "lion" }'
    task = task_of(SENTIMENT.replace('words = { bad = "terrible bad", good = "great" }', unknown))
    with pytest.raises(InputError, match="'zebra', 'lion' cannot be told apart"):
        open_readouts(folders("t5"), [task], readout="choice")


def test_no_room_for_the_answer(folders: Folders) -> None:
    readout = open_readouts(folders("gpt2"), [task_of(GAPS)], readout="choice", max_length=90).readouts[0]
    examples = Examples("gaps", {"question": ("the " * 80,), "choices": (("cat", "dog " * 20),)}, np.array([0]))
    with pytest.raises(
        InputError, match=r"'gaps', row 0: prompt and answer take \d+ tokens, but the model reads at most 96"
    ):
        readout.encode(examples)


class WithoutSpace:
    """Drops white space, as some tokenizers do."""

    def __init__(self, ranker: Any) -> None:
        self.ranker = ranker

    def answer_ids(self, answers: list[str]) -> dict[str, list[int]]:
        return {answer: ids if answer.strip() else [] for answer, ids in self.ranker.answer_ids(answers).items()}

    def encoded(self, *arguments: Any) -> Any:
        return self.ranker.encoded(*arguments)


def test_an_empty_choice(folders: Folders) -> None:
    readout = open_readouts(folders("llama"), [task_of(GAPS)], readout="choice").readouts[0]
    columns = {"question": ("the", "a"), "choices": (("cat", "dog"), ("cat", "\n"))}
    readout = replace(readout, ranker=WithoutSpace(readout.ranker))
    with pytest.raises(InputError, match="'gaps', row 1: a choice has no tokens; expected text"):
        readout.encode(Examples("gaps", columns, np.array([0, 0])))
