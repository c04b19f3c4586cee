"""Every refusal of extract: what was expected, what was found, what to do."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from skillgraft.errors import FormatError, InputError
from skillgraft.files import system
from skillgraft.folders.extract import extract
from skillgraft.values.region import Region, Scope
from tests.model_folders import BODY, EMBEDDING, QUERY, body, moved, numbers, write_pair


@pytest.fixture
def pair(tmp_path):
    return partial(write_pair, tmp_path)


@pytest.mark.parametrize("options", [{}, {"entries": 3}], ids=["all", "three"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_tuned_that_is_not_finite(wrong, options, pair):
    tuned = moved(body(), QUERY)
    tuned[QUERY][2, 2] = wrong
    with pytest.raises(InputError, match=rf"{QUERY}: .*NaN or infinite"):
        extract(*pair(body(), tuned), **options)


def test_another_architecture(pair):
    other = {"wte.weight": numbers((11, 4), seed=1), "h.0.attn.c_attn.weight": numbers((4, 12), seed=2)}
    with pytest.raises(
        InputError, match=r"share no transformer layer: .* here, h\.0\.attn.* there; are they the same archi"
    ):
        extract(*pair(body(), other))


def test_another_number_of_layers(pair):
    deeper = {**body(), "encoder.layer.2.output.dense.weight": numbers((4, 6), seed=3)}
    with pytest.raises(
        InputError, match=r"the layers differ: only .*/base has nothing, only .*/tuned has encoder\.layer\.2"
    ):
        extract(*pair(body(), deeper))


def test_another_vocabulary_size(pair):
    tuned = {**body(), EMBEDDING: numbers((13, 4), seed=1)}
    with pytest.raises(
        InputError,
        match=rf"the embeddings' length changed: {EMBEDDING} is \[11, 4\] in .* and \[13, 4\] .* one vocabulary",
    ):
        extract(*pair(body(), tuned))


def test_another_width(pair):
    tuned = {name: numbers(tuple(2 * n for n in shape), seed=1) for name, shape in BODY.items()}
    with pytest.raises(InputError, match=r"5 tensors have another shape: .* these are different models"):
        extract(*pair(body(), tuned))


TOKENIZER = {
    "model": {"vocab": {"a": 0, "b": 1}, "merges": ["a b"]},
    "added_tokens": [{"id": 0, "content": "a"}],
    "padding": None,
}


def test_another_tokenizer(pair):
    base, tuned = pair(body(), moved(body(), QUERY))
    (base / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    same = {**TOKENIZER, "padding": {"length": 3}, "model": {**TOKENIZER["model"], "merges": [["a", "b"]]}}
    (tuned / "tokenizer.json").write_text(json.dumps(same))
    (tuned / "vocab.txt").write_text("only tuned has it, in another form\n")
    extract(base, tuned)
    for other in (
        {**TOKENIZER, "model": {**TOKENIZER["model"], "vocab": {"a": 0, "c": 1}}},
        {**TOKENIZER, "model": {**TOKENIZER["model"], "merges": []}},
        {**TOKENIZER, "added_tokens": [{"id": 1, "content": "a"}]},
    ):
        (tuned / "tokenizer.json").write_text(json.dumps(other))
        with pytest.raises(InputError, match=r"tokenizers differ: .*base/tokenizer.json and .*tuned/tokenizer.json"):
            extract(base, tuned)


@pytest.mark.parametrize("file", ["vocab.txt", "vocab.json", "spiece.model"])
def test_another_vocabulary_file(file, pair):
    base, tuned = pair(body(), moved(body(), QUERY))
    (base / file).write_text('{"a": 0}')
    extract(base, tuned)  # an adapter or a tuned folder without tokenizer is fine
    (tuned / file).write_text('{"b": 0}')
    with pytest.raises(InputError, match=f"tokenizers differ: .*base/{file}"):
        extract(base, tuned)


@pytest.mark.parametrize("text", ['{"model": 3}', '{"added_tokens": [{}]}', "[]"])
def test_tokenizer_that_is_none(text, pair):
    base, tuned = pair(body(), moved(body(), QUERY))
    for folder in (base, tuned):
        (folder / "tokenizer.json").write_text(text)
    with pytest.raises(FormatError, match=r"tokenizer\.json"):
        extract(base, tuned)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"entries": 0}, "found 0"),
        ({"density": 0.0}, "found 0"),
        ({"entries": 1.5}, "a whole number of 1 or more, found 1.5"),
        ({"density": 1.5}, "a share of the scope, above 0 and at most 1; found 1.5"),
        ({"density": 0.5, "entries": 3}, "a density or a number of entries, not both; found 0.5 and 3"),
        ({"entries": 10**6}, "1,000,000 entries are more than the 44 of the scope 'layers'"),
        ({"entries": 1, "scope": "layer"}, r"scope 'layer' selects none of the 5 tensors; .*did you mean 'layers'\?"),
        ({"scope": "nothing.*"}, "selects none of the 5 tensors"),
    ],
)
def test_impossible_options(options, expected, pair):
    with pytest.raises(InputError, match=expected):
        extract(*pair(body(), moved(body(), QUERY)), **options)


def test_budget_and_region_together(pair):
    region = Region(Scope.of("mine", {QUERY: (4, 4)}), {})
    folders = pair(body(), moved(body(), QUERY))
    for budget in ({"entries": 1}, {"density": 0.5}):
        with pytest.raises(InputError, match="give a density, a number of entries or a region, one of them"):
            extract(*folders, **budget, region=region)


@pytest.mark.parametrize("shape", [(5, 5), (16,)])
def test_region_of_another_model(shape, pair):
    folders = pair(body(), moved(body(), QUERY))
    for name in (QUERY, "other.weight"):
        region = Region(Scope.of("mine", {name: shape}), {name: [0]})
        with pytest.raises(
            InputError, match=f"the region is not of this model: {name} are missing here or have another shape"
        ):
            extract(*folders, region=region)


def test_file_that_changes_while_it_is_read(pair, monkeypatch):
    monkeypatch.setattr(system, "lease", lambda _: False)  # with one, writing in this very process would wait
    base, tuned = pair(body(), moved(body(), QUERY))

    def meddle(_done: int, _size: int) -> None:
        path = tuned / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-4] + b"\1\2\3\4")

    with pytest.raises(InputError, match=r"tuned/model.safetensors changed while it was being read"):
        extract(base, tuned, progress=meddle)
