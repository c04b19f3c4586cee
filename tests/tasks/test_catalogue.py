import json
import os
from pathlib import Path
from typing import Any

import pytest

from skillgraft.tasks import catalogue, load_task, training_split
from skillgraft.tasks import data as splits

from .making import tokenizer

P1 = {"sst2", "mr", "cr", "mpqa", "sentiment", "subj", "trec", "ag_news", "snli", "mnli", "qnli", "rte", "mrpc", "qqp"}
P2_LANGUAGE = {"qasc", "wikiqa", "quartz", "paws", "story_cloze", "winogrande", "wsc"}
OUT_OF_DISTRIBUTION = {
    *("imdb", "imdb_counterfactual", "yelp_sentences", "yelp_reviews", "amazon_polarity"),
    *("uci_amazon", "uci_imdb", "uci_yelp", "mnli_01", "snli_01"),
}
P2_VISION = {  # and how many classes
    "cars": 196,
    "dtd": 47,
    "eurosat": 10,
    "gtsrb": 43,
    "mnist": 10,
    "resisc45": 45,
    "sun397": 397,
    "svhn": 10,
}
GENERATIVE = {"nl2bash", "pronounce", "countries", "translate_fr"}
NOT_SHIPPED = {"story_cloze", "svhn", "eurosat", "cars", "dtd", "resisc45", "sun397"}
data_folder = os.environ.get("SKILLGRAFT_DATA")
needs_data = pytest.mark.skipif(not data_folder, reason="SKILLGRAFT_DATA does not name the folder with the datasets")


def test_the_papers_tasks_are_there() -> None:
    assert set(catalogue()) >= P1 | P2_LANGUAGE | set(P2_VISION) | OUT_OF_DISTRIBUTION | GENERATIVE


@pytest.mark.parametrize("name", catalogue())
def test_every_task_parses(name: str) -> None:
    task = load_task(name)
    assert task.name == name
    if task.kind == "complete":
        assert (task.metric, task.describe) == ("nll", None)
        return
    assert task.metric == ("f1" if name in {"mrpc", "qqp"} else "accuracy")
    assert task.describe is not None
    assert all(task.describe.label_texts(label) for label in task.labels)
    if name in P1:
        assert {"masked", "causal"} <= set(task.prompts)
    if name in P2_LANGUAGE | {"rte"}:
        assert "choice" in task.prompts


@pytest.mark.parametrize("name", sorted(P1 | OUT_OF_DISTRIBUTION))
def test_masked_words_are_bare_and_causal_words_keep_their_space(name: str) -> None:
    prompts = load_task(name).prompts
    assert all(word == word.strip() for word in prompts["masked"].words)
    assert all(word.startswith(" ") for word in prompts["causal"].words)


def test_words_by_meaning_where_the_papers_code_errs() -> None:
    subj, trec = load_task("subj"), load_task("trec")
    assert dict(zip(subj.labels, subj.prompts["causal"].words, strict=True)) == {
        "subjective": " subject",
        "objective": " object",
    }
    assert dict(zip(trec.labels, trec.prompts["masked"].words, strict=True))["DESC"] == "Description"


def test_out_of_distribution_nli_has_qnlis_words_in_qnlis_order() -> None:
    for name in ("mnli_01", "snli_01"):
        task = load_task(name)
        assert task.labels == ("entailment", "contradiction")
        assert task.prompts["masked"].words == load_task("qnli").prompts["masked"].words == ("Yes", "No")


@pytest.mark.parametrize(("name", "classes"), P2_VISION.items())
def test_p2s_vision_tasks_have_all_their_classes(name: str, classes: int) -> None:
    task = load_task(name)
    assert task.kind == "image"
    assert len(set(task.labels)) == len(task.labels) == classes
    assert task.describe is not None
    assert task.describe.templates


def test_long_class_lists_hold_their_places() -> None:
    """A name lost or moved anywhere shifts the integers behind it."""
    places = {
        "cars": {
            0: "AM General Hummer SUV 2000",
            44: "Bugatti Veyron 16.4 Convertible 2009",
            195: "smart fortwo Convertible 2012",
        },
        "dtd": {0: "banded", 30: "polka-dotted", 46: "zigzagged"},
        "resisc45": {0: "airplane", 24: "mobile home park", 44: "wetland"},
        "sun397": {0: "abbey", 100: "closet", 200: "iceberg", 300: "restaurant", 396: "youth hostel"},
    }
    for name, expected in places.items():
        labels = load_task(name).labels
        assert {place: labels[place] for place in expected} == expected


def test_alphabetical_class_lists() -> None:
    for name in ("dtd", "resisc45", "sun397"):
        labels = load_task(name).labels
        assert list(labels) == sorted(labels)


def test_the_small_dtd_is_the_beginning_of_the_whole() -> None:
    assert load_task("dtd10").labels == load_task("dtd").labels[:10]


@pytest.mark.parametrize("name", catalogue())
def test_no_prompt_leaves_a_field_out(name: str) -> None:
    task = load_task(name)
    for prompt in task.prompts.values():
        unused = set(task.fields) - set(prompt.template.fields) - {"completion"}
        assert not unused


@needs_data
@pytest.mark.parametrize("name", sorted(set(catalogue()) - NOT_SHIPPED))
def test_every_task_with_data_loads_and_splits(name: str) -> None:
    task = load_task(name)
    split = training_split(task, shots=4, seed=1)
    classes = max(1, len(task.labels))
    assert (len(split.train), len(split.validation)) == (4 * classes, 4 * classes)
    test = splits.test_split(task, rows=20)
    assert len(test) == 20
    for row in test.rows():
        for kind, prompt in task.prompts.items():
            filled = prompt.fit(row, tokenizer(), 400, mask="<mask>")
            assert filled.count("<mask>") == (kind == "masked")
            assert len(prompt.answers(row)) == (len(task.labels) or len(row.get("choices", ())))


def cards() -> dict[str, dict[str, Any]]:
    return {path.parent.name: json.loads(path.read_text()) for path in Path(str(data_folder)).glob("*/card.json")}


def is_generative(card: dict[str, Any]) -> bool:
    """Its rows are a prompt and the text that should follow: nothing to classify, so that no labels are named."""
    return set(card.get("columns", ())) == {"prompt", "completion"}


@needs_data
def test_every_dataset_to_classify_has_a_task() -> None:
    classified = {name for name, card in cards().items() if not is_generative(card)}
    assert classified
    assert classified <= set(catalogue())


@needs_data
def test_labels_are_those_of_the_cards() -> None:
    for name, card in cards().items():
        if is_generative(card):
            assert "labels" not in card
        elif labels := load_task(name).labels:
            assert list(labels) == card["labels"]


@needs_data
def test_the_ignored_class_is_counted() -> None:
    split = training_split(load_task("mnli_01"), shots=2)
    assert split.train.ignored == 4096


@needs_data
def test_quartz_fills_its_blanks() -> None:
    task = load_task("quartz")
    for row in splits.test_split(task, rows=200).rows():
        question = task.prompts["choice"].render(row).split("Question:\n\n")[1].split("\n\nParagraph")[0]
        assert " or ".join(row["choices"]) in question
        assert question.endswith("?")
        assert question.count("_____") == max(0, row["question"].count("_____") - 1)
