"""The linear readout: texts, pairs, images; one classifier for several tasks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from skillgraft.errors import InputError
from skillgraft.tasks import asked_as
from tests.readouts import making
from tests.readouts.making import (
    DIGITS,
    GAPS,
    PAIRS,
    SENTIMENT,
    assert_gradients_flow,
    assert_padding_is_invisible,
    digits,
    films,
    open_readouts,
    pairs,
    scored,
    task_of,
)

Folders = Callable[[str], Path]
TRIPLES = SENTIMENT.replace('text = "text"', 'text = ["a", "b", "c"]').split("[prompt.masked]")[0]


@pytest.mark.parametrize("model", ["bert", "roberta", "gpt2", "llama"])
def test_padding_gradients_and_shape(folders: Folders, model: str) -> None:
    opened = open_readouts(folders(model), [task_of(SENTIMENT)], readout="linear")
    assert scored(opened, films()).shape == (6, 2)
    assert_padding_is_invisible(opened, films())
    assert_gradients_flow(opened, films())


def test_scores_are_the_classifiers_logits(folders: Folders) -> None:
    opened = open_readouts(folders("bert"), [task_of(PAIRS)], readout="linear")
    encoded = opened.source.tokenizer("the cat was slow", "the dog", return_tensors="pt")
    with torch.no_grad():
        expected = opened.model(**encoded).logits
    torch.testing.assert_close(scored(opened, pairs())[:1], expected, atol=1e-5, rtol=1e-5)


def test_pairs_are_pairs_and_the_longer_is_cut(folders: Folders) -> None:
    opened = open_readouts(folders("bert"), [task_of(PAIRS)], readout="linear", max_length=10)
    rows = opened.readouts[0].encode(pairs())
    tokenizer = opened.source.tokenizer
    assert tokenizer.decode(rows[0].inputs["input_ids"]) == "[CLS] the cat was slow [SEP] the dog [SEP]"
    assert rows[0].inputs["token_type_ids"] == [0] * 6 + [1] * 3
    assert tokenizer.decode(rows[1].inputs["input_ids"]) == "[CLS] red [SEP] a b c d e f [SEP]"
    assert rows[1].length == 10


def test_three_fields_become_one_text(folders: Folders) -> None:
    columns = {"a": ("the cat",), "b": ("is",), "c": ("red",)}
    examples = making.Examples("films", columns, np.array([0]), ("bad", "good"))
    for text, expected in ((TRIPLES, "the cat is red"), (TRIPLES + DESCRIBED, "red or the cat is")):
        opened = open_readouts(folders("bert"), [task_of(text)], readout="linear")
        (row,) = opened.readouts[0].encode(examples)
        assert opened.source.tokenizer.decode(row.inputs["input_ids"], skip_special_tokens=True) == expected


DESCRIBED = '[describe]\ninput = "{c} or {a} {b}"\nbad = "bad"\ngood = "good"\n'


def test_several_tasks_share_one_classifier(folders: Folders) -> None:
    opened = open_readouts(folders("bert"), [task_of(SENTIMENT), task_of(PAIRS)], readout="linear")
    assert opened.model.config.id2label == {
        0: "films: bad",
        1: "films: good",
        2: "pairs: no",
        3: "pairs: maybe",
        4: "pairs: yes",
    }
    assert opened.model.classifier.weight.shape == (5, 16)
    first, second = opened.readouts
    batch = second.collate(second.encode(pairs()))
    whole = opened.model(**{name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}).logits
    assert torch.equal(second.scores(opened.model, batch), whole[:, 2:])
    assert (first.settings["first_label"], second.settings["first_label"]) == (0, 2)


def test_rows_of_another_task_are_read_off_the_head_of_the_one_whose_question_they_are_asked(folders: Folders) -> None:
    films = task_of(SENTIMENT)
    plays = asked_as(task_of(SENTIMENT.replace('"films"', '"plays"')), films)
    alone = open_readouts(folders("bert"), [plays], readout="linear")
    assert alone.model.config.id2label == {0: "bad", 1: "good"}
    opened = open_readouts(folders("bert"), [films, task_of(PAIRS), plays], readout="linear")
    assert opened.model.classifier.weight.shape == (5, 16)
    assert [readout.settings["first_label"] for readout in opened.readouts] == [0, 2, 0]


def test_one_task_names_its_classes_plainly(folders: Folders) -> None:
    config = open_readouts(folders("bert"), [task_of(SENTIMENT)], readout="linear").model.config
    assert config.id2label == {0: "bad", 1: "good"}
    assert config.label2id == {"bad": 0, "good": 1}


def test_the_fresh_head_is_named_and_comes_from_the_seed(folders: Folders) -> None:
    def head(seed: int) -> torch.Tensor:
        torch.rand(seed + 3)  # what was drawn before plays no part
        opened = open_readouts(folders("bert"), [task_of(SENTIMENT)], readout="linear", seed=seed)
        assert opened.fresh == (
            "bert.pooler.dense.bias",
            "bert.pooler.dense.weight",
            "classifier.bias",
            "classifier.weight",
        )
        return opened.model.classifier.weight.detach()

    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert torch.equal(head(0), head(0))
    assert not torch.equal(head(0), head(1))
    torch.set_rng_state(before)
    open_readouts(folders("bert"), [task_of(SENTIMENT)], readout="linear")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_saved_classifier_is_kept(folders: Folders, tmp_path: Path) -> None:
    opened = open_readouts(folders("bert"), [task_of(SENTIMENT)], readout="linear", seed=3)
    making.save(tmp_path, opened.model, opened.source.tokenizer)
    again = open_readouts(tmp_path, [task_of(SENTIMENT)])
    assert (again.name, again.fresh) == ("linear", ())
    assert torch.equal(again.model.classifier.weight, opened.model.classifier.weight)
    assert torch.equal(opened.whole.rows.over(tmp_path).model.classifier.weight, opened.model.classifier.weight)
    with pytest.raises(
        InputError, match=r"lacks bert.pooler.dense.bias, .*classifier.weight, which the linear readout reads"
    ):
        opened.whole.rows.over(folders("bert"))


def test_a_classifier_of_another_size_is_made_anew(folders: Folders, tmp_path: Path) -> None:
    opened = open_readouts(folders("bert"), [task_of(SENTIMENT)], readout="linear")
    making.save(tmp_path, opened.model, opened.source.tokenizer)
    assert open_readouts(tmp_path, [task_of(PAIRS)]).fresh == ("classifier.bias", "classifier.weight")


def test_a_classifier_for_other_classes_is_refused(folders: Folders, tmp_path: Path) -> None:
    opened = open_readouts(folders("bert"), [task_of(SENTIMENT)], readout="linear")
    opened.model.config.id2label = {0: "cat", 1: "dog"}
    making.save(tmp_path, opened.model, opened.source.tokenizer)
    with pytest.raises(InputError, match="has a classifier for cat, dog, but the task's labels are bad, good"):
        open_readouts(tmp_path, [task_of(SENTIMENT)])


@pytest.mark.parametrize("channels", [None, 1, 3])
@pytest.mark.parametrize("model", ["vit", "clip"])
def test_images_go_through_the_models_own_processor(folders: Folders, model: str, channels: int | None) -> None:
    opened = open_readouts(folders(model), [task_of(DIGITS)], readout="linear")
    examples = digits(channels=channels)
    readout = opened.readouts[0]
    images = [np.repeat(one.reshape(12, 12, -1), 1 if channels == 3 else 3, -1) for one in examples.columns["image"]]
    expected = opened.source.image_processor(images, return_tensors="pt")["pixel_values"]
    batch = readout.collate(readout.encode(examples))
    torch.testing.assert_close(batch["pixel_values"], expected, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(
            scored(opened, examples), opened.model(pixel_values=expected).logits, atol=1e-4, rtol=1e-4
        )
    assert_padding_is_invisible(opened, examples)
    assert_gradients_flow(opened, examples)


def test_images_are_kept_as_bytes_and_may_differ_in_size(folders: Folders) -> None:
    (readout,) = open_readouts(folders("vit"), [task_of(DIGITS)]).readouts
    images = (np.zeros((9, 20), np.uint8), np.full((30, 10, 3), 255, np.uint8))
    rows = readout.encode(making.Examples("digits", {"image": images}, np.array([0, 1]), ("zero", "one", "two")))
    assert [row.inputs["pixel_values"].dtype for row in rows] == [np.uint8, np.uint8]
    assert readout.collate(rows)["pixel_values"].shape == (2, 3, 8, 8)


def test_a_processor_that_does_not_normalise(tmp_path: Path) -> None:
    folder = making.vit(tmp_path)
    transformers.ViTImageProcessorPil(size={"height": 8, "width": 8}, do_normalize=False).save_pretrained(folder)
    opened = open_readouts(folder, [task_of(DIGITS)])
    readout = opened.readouts[0]
    batch = readout.collate(readout.encode(digits()))
    assert 0.5 < batch["pixel_values"].max() <= 1
    assert batch["pixel_values"].min() >= 0


def test_four_channels(folders: Folders) -> None:
    (readout,) = open_readouts(folders("vit"), [task_of(DIGITS)]).readouts
    with pytest.raises(InputError, match="image 0: expected grey or 3 channels; found 4"):
        readout.encode(digits(channels=4))


def test_multiple_choice_has_no_classifier(folders: Folders) -> None:
    with pytest.raises(InputError, match="gaps: multiple choice has no fixed labels for a linear head"):
        open_readouts(folders("bert"), [task_of(GAPS)], readout="linear")


def test_texts_and_images_together(folders: Folders) -> None:
    with pytest.raises(InputError, match=r"not both: films \(text\), digits \(image\)"):
        open_readouts(folders("clip"), [task_of(SENTIMENT), task_of(DIGITS)], readout="linear")
