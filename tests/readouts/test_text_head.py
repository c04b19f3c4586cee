"""The frozen text head against cosines computed by hand."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from skillgraft.errors import FormatError, InputError
from skillgraft.readouts import loss_of
from skillgraft.tasks import load_task, pictures, read_examples
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
    gaps,
    open_readouts,
    pairs,
    scored,
    task_of,
)

Folders = Callable[[str], Path]
POOLED: dict[str, Callable[[Tensor], Tensor]] = {
    "mean_tokens": lambda states: states.mean(0),
    "cls_token": lambda states: states[0],
    "max_tokens": lambda states: states.max(0).values,
}


def embedding(opened: Any, text: str, pooling: str = "mean_tokens") -> Tensor:
    with torch.no_grad():
        encoded = opened.source.tokenizer(text, return_tensors="pt")
        return normalize(POOLED[pooling](opened.model(**encoded).last_hidden_state[0]), dim=-1)


@pytest.mark.parametrize("pooling", POOLED)
def test_scores_are_scaled_cosines(tmp_path: Path, pooling: str) -> None:
    opened = open_readouts(making.sentence_encoder(tmp_path, pooling=pooling), [task_of(SENTIMENT)])
    assert opened.name == "text-head"
    labels = torch.stack([embedding(opened, text, pooling) for text in ("a bad film", "a good film")])
    expected = torch.stack([20 * labels @ embedding(opened, text, pooling) for text in films().columns["text"]])
    torch.testing.assert_close(scored(opened, films()), expected, atol=1e-4, rtol=1e-4)


def test_a_label_is_the_mean_direction_of_its_texts(folders: Folders) -> None:
    opened = open_readouts(folders("sentence_encoder"), [task_of(PAIRS)])
    texts = {"no": ("answer no", "no no"), "maybe": ("answer maybe", "or"), "yes": ("answer yes", "yes")}
    means = [sum(embedding(opened, text) for text in pair) / 2 for pair in texts.values()]
    expected = torch.stack([20 * normalize(mean, dim=-1) @ embedding(opened, "it is fine or ") for mean in means])
    torch.testing.assert_close(scored(opened, pairs())[2], expected, atol=1e-4, rtol=1e-4)
    assert opened.readouts[0].settings == {
        "readout": "text-head",
        "scale": 20.0,
        "pooling": "mean",
        "descriptions": {label: list(pair) for label, pair in texts.items()},
        "input": "{text_a} or {text_b}",
        "max_length": 16,
    }


def test_several_templates_are_averaged_as_unit_vectors(folders: Folders) -> None:
    """A template whose embeddings were longer would not count for more: each is made of length 1 first."""
    text = DIGITS.replace('"the {label}"', '["the {label}", "a red {label} house", "{label}"]')
    bare = "\n".join(line for line in text.splitlines() if not line.startswith(("zero", "one", "two")))
    opened = open_readouts(folders("clip"), [task_of(bare)])
    clip: Any = opened.model

    def embedded(words: str) -> Tensor:
        with torch.no_grad():
            found = clip.get_text_features(**opened.source.tokenizer(words, return_tensors="pt"))
        return normalize(getattr(found, "pooler_output", found)[0], dim=-1)

    for place, label in enumerate(("zero", "one", "two")):
        mean = sum(embedded(words) for words in (f"the {label}", f"a red {label} house", label)) / 3
        torch.testing.assert_close(opened.readouts[0].head[place], normalize(mean, dim=-1), atol=1e-5, rtol=1e-5)


def test_images_in_files_are_decoded_when_they_are_encoded(
    folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chosen one once, with the scores of the same pixels in memory."""
    images = digits(channels=3).columns["image"]
    for place, label in enumerate(("zero", "one", "two", "zero", "one")):
        (tmp_path / "x" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[place]).save(tmp_path / "x" / label / f"{place}.png")
    (tmp_path / "task.toml").write_text(DIGITS.replace("x.npz", "x"))
    chosen = read_examples(load_task(tmp_path / "task.toml"), "train").select([4, 0, 2])
    decoded: list[Any] = []
    monkeypatch.setattr(pictures, "pixels", lambda cell, plain=pictures.pixels: decoded.append(cell) or plain(cell))
    opened = open_readouts(folders("clip"), [task_of(DIGITS)])
    lazy = opened.readouts[0].encode(chosen)
    assert [cell.name for cell in decoded] == ["3.png", "1.png", "2.png"]
    eager = opened.readouts[0].encode(replace(chosen, columns={"image": tuple(images[[3, 1, 2]])}))
    for one, two in zip(lazy, eager, strict=True):
        np.testing.assert_array_equal(one.inputs["pixel_values"], two.inputs["pixel_values"])


def test_long_pairs_keep_the_template(folders: Folders) -> None:
    opened = open_readouts(folders("sentence_encoder"), [task_of(PAIRS)], max_length=8)
    rows = opened.readouts[0].encode(pairs())
    assert opened.source.tokenizer.decode(rows[1].inputs["input_ids"]) == "[CLS] red or a b c d [SEP]"
    assert max(row.length for row in rows) == 8


def test_the_encoders_own_limit_counts(folders: Folders) -> None:
    (readout,) = open_readouts(folders("sentence_encoder"), [task_of(SENTIMENT)]).readouts
    assert readout.settings["max_length"] == 20


@pytest.mark.parametrize(("text", "make"), [(SENTIMENT, films), (PAIRS, pairs), (GAPS, gaps)])
def test_padding_and_gradients(folders: Folders, text: str, make: Any) -> None:
    opened = open_readouts(folders("sentence_encoder"), [task_of(text)])
    assert_padding_is_invisible(opened, make())
    assert_gradients_flow(opened, make())


def test_choices_are_embedded_per_row(folders: Folders) -> None:
    opened = open_readouts(folders("sentence_encoder"), [task_of(GAPS)])
    scores = scored(opened, gaps())
    for row, found in zip(gaps().rows(), scores, strict=True):
        heads = torch.stack([embedding(opened, f"the {choice}") for choice in row["choices"]])
        expected = 20 * heads @ embedding(opened, row["question"])
        torch.testing.assert_close(found[: len(heads)], expected, atol=1e-4, rtol=1e-4)
        assert found[len(heads) :].isneginf().all()
    assert opened.readouts[0].settings["choice"] == "the {choice}"
    assert opened.readouts[0].encode(gaps().select([])) == []


def test_training_does_not_move_the_head(folders: Folders) -> None:
    opened = open_readouts(folders("sentence_encoder"), [task_of(SENTIMENT), task_of(GAPS)])
    labels, choices = opened.readouts
    before = labels.head.clone(), choices.encode(gaps())[0].inputs["head"].copy()
    optimizer = torch.optim.SGD(opened.model.parameters(), lr=0.5)
    batch = labels.collate(labels.encode(films()))
    loss = loss_of(labels.scores(opened.model, batch), batch["labels"])
    loss.backward()
    optimizer.step()
    assert torch.equal(labels.head, before[0])
    assert (choices.encode(gaps())[0].inputs["head"] == before[1]).all()
    assert not labels.head.requires_grad
    assert loss_of(labels.scores(opened.model, batch), batch["labels"]) != loss


def test_clip_reads_images(folders: Folders) -> None:
    opened = open_readouts(folders("clip"), [task_of(DIGITS)])
    model, tokenizer = opened.model, opened.source.tokenizer
    pixels = opened.readouts[0].collate(opened.readouts[0].encode(digits()))["pixel_values"]
    heads = []
    with torch.no_grad():
        for texts in (("the zero", "a cat"), ("the one", "a dog"), ("the two", "a house")):
            rows = [tokenizer(text, return_tensors="pt", return_token_type_ids=False) for text in texts]
            logits = [model(**row, pixel_values=pixels) for row in rows]
            heads.append(normalize(sum(out.text_embeds[0] for out in logits) / 2, dim=-1))
        images = logits[0].image_embeds
        expected = model.logit_scale.exp() * images @ torch.stack(heads).T
    torch.testing.assert_close(scored(opened, digits()), expected, atol=1e-4, rtol=1e-4)
    assert opened.readouts[0].settings["scale"] == pytest.approx(model.logit_scale.exp().item())
    assert_padding_is_invisible(opened, digits())


def test_clip_reads_texts(folders: Folders) -> None:
    opened = open_readouts(folders("clip"), [task_of(SENTIMENT)])
    assert opened.name == "text-head"
    assert_padding_is_invisible(opened, films())


def test_clips_vision_tower_learns(folders: Folders) -> None:
    opened = open_readouts(folders("clip"), [task_of(DIGITS)])
    readout = opened.readouts[0]
    batch = readout.collate(readout.encode(digits()))
    loss_of(readout.scores(opened.model, batch), batch["labels"]).backward()
    assert opened.model.vision_model.encoder.layers[0].mlp.fc1.weight.grad.abs().max() > 0
    assert opened.model.text_model.encoder.layers[0].mlp.fc1.weight.grad is None


def test_a_tuned_folder_is_read_with_the_bases_head(folders: Folders, tmp_path: Path) -> None:
    opened = open_readouts(folders("sentence_encoder"), [task_of(SENTIMENT)])
    tuned = making.bert(tmp_path / "tuned")  # a masked-LM folder: its pooler is missing, and nobody looks at it
    model = opened.whole.rows.over(tuned).model
    readout = opened.readouts[0]
    batch = readout.collate(readout.encode(films()))
    assert readout.scores(model, batch).shape == (6, 2)


def test_no_descriptions(folders: Folders) -> None:
    task = task_of(SENTIMENT.split("[describe]")[0])
    with pytest.raises(InputError, match=r"'films': the text-head readout needs a \[describe\] table"):
        open_readouts(folders("sentence_encoder"), [task], readout="text-head")


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        (SENTIMENT, {"descriptions": {"bad": "a bad film"}}, "has no text for the label good"),
        (GAPS, {"choice": None}, "has no 'choice', the text that stands for a choice"),
        (SENTIMENT, {"input": None}, "has no 'input', the text that stands for a row"),
    ],
)
def test_incomplete_descriptions(folders: Folders, text: str, change: dict[str, Any], message: str) -> None:
    task = task_of(text)
    assert task.describe
    with pytest.raises(InputError, match=message):
        open_readouts(folders("sentence_encoder"), [replace(task, describe=replace(task.describe, **change))])


def test_a_short_limit_does_not_cut_descriptions(folders: Folders) -> None:
    heads = [
        open_readouts(folders("sentence_encoder"), [task_of(SENTIMENT)], max_length=limit).readouts[0].head
        for limit in (4, None)
    ]
    assert torch.equal(*heads)


def test_encoder_decoder(folders: Folders) -> None:
    with pytest.raises(InputError, match="needs an encoder; this is an encoder-decoder model"):
        open_readouts(folders("t5"), [task_of(SENTIMENT)], readout="text-head")


def test_images_without_clip(folders: Folders) -> None:
    with pytest.raises(InputError, match="reads images with CLIP and SigLIP only; use linear"):
        open_readouts(folders("bert"), [task_of(DIGITS)], readout="text-head")


def test_unknown_pooling(tmp_path: Path) -> None:
    folder = making.sentence_encoder(tmp_path, pooling="lasttoken")
    with pytest.raises(InputError, match="pools by one of mean, cls, max; found pooling_mode_lasttoken"):
        open_readouts(folder, [task_of(SENTIMENT)])


def test_pooling_named_by_one_key(tmp_path: Path) -> None:
    folder = making.sentence_encoder(tmp_path)
    (folder / "1_Pooling/config.json").write_text(json.dumps({"embedding_dimension": 16, "pooling_mode": "cls"}))
    assert open_readouts(folder, [task_of(SENTIMENT)]).readouts[0].settings["pooling"] == "cls"


def test_a_dense_layer_after_pooling(tmp_path: Path) -> None:
    folder = making.sentence_encoder(tmp_path)
    modules = [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(InputError, match="modules that are not supported: 2_Dense"):
        open_readouts(folder, [task_of(SENTIMENT)])


def test_broken_side_file(tmp_path: Path) -> None:
    folder = making.sentence_encoder(tmp_path)
    (folder / "1_Pooling/config.json").write_text("{")
    with pytest.raises(FormatError, match=r"config.json cannot be read as JSON"):
        open_readouts(folder, [task_of(SENTIMENT)])
