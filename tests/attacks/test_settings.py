"""Chats, tokenizers and kept results of odd types end in an error of the project's own tree."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from skillgraft.errors import FormatError, SkillgraftError
from skillgraft.folders.apply import apply, remove
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from skillgraft.papers.run import KINDS, PARTS
from tests.fuzz.room import home, talking
from tests.model_folders import body, moved, write_pair


@pytest.mark.parametrize("text", ["{", "[1]", '{"eos_token_id": ' + "9" * 5000 + "}", "[" * 5000, "null"])
def test_a_base_whose_generation_config_is_none(text, tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body()))
    talking = Named(extract(base, tuned).with_info(chat={"generation": {"eos_token_id": 2}}), "g")
    (base / "generation_config.json").write_text(text)
    with pytest.raises(FormatError, match=r"the base's generation_config\.json .* no graft can set tokens in it"):
        apply(base, talking, out=tmp_path / "on")
    assert not (tmp_path / "on").exists()


def test_an_edited_ledger_whose_chat_is_no_bytes(tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body()))
    (base / "chat_template.jinja").write_text("x")
    talking = Named(extract(base, tuned).with_info(chat={"template": "y"}), "g")
    apply(base, talking, out=tmp_path / "on")
    file = tmp_path / "on" / "skillgraft.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_chat": {"chat_template.jinja": "\u20ac"}}))
    with pytest.raises(FormatError, match="not a ledger that skillgraft wrote"):
        remove(tmp_path / "on", talking, out=tmp_path / "off")


@pytest.mark.parametrize(
    "facts", ["{", "[" * 5000, "\xd0", "9" * 5000, '{"rows": 1}', '{"seed": "1"}', '{"seed": -1}', "3", None]
)
def test_damaged_facts_of_a_step(facts, tmp_path):
    """What an executor's store keeps: the file is named, with how it is made anew."""
    if facts is not None:
        (tmp_path / "facts.json").write_bytes(facts.encode("latin-1"))
    with pytest.raises(FormatError, match=r"facts\.json: .*; remove .*, and the next run makes it anew"):
        KINDS["Data"].load(tmp_path / "facts.json")


@pytest.mark.parametrize(
    "change",
    [
        {"added_tokens": 5}, {"added_tokens": {"a": 1}}, {"added_tokens": [5]}, {"added_tokens": [{"id": 10}]},
        {"added_tokens": [{"id": [1], "content": "a"}]}, {"added_tokens": [{"id": 1, "content": ["a"]}]},
        {"model": {"vocab": {"a": [1]}}}, {"model": {"vocab": [5]}}, {"model": {"vocab": [[["a"], 1]]}},
    ],
)  # fmt: skip
def test_a_tokenizer_of_odd_types(change, tmp_path):
    """As the base that tokens come to, as the copy that they are taken off, as TUNED."""
    graft = talking()
    base = Path(shutil.copytree(home() / "base", tmp_path / "base"))
    tuned = Path(shutil.copytree(home() / "talking", tmp_path / "tuned"))
    apply(base, graft, out=tmp_path / "on")
    for file in (base / "tokenizer.json", tuned / "tokenizer.json", tmp_path / "on" / "tokenizer.base.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    for number, call in enumerate(
        (
            lambda out: apply(base, graft, out=out),
            lambda out: remove(tmp_path / "on", graft, out=out),
            lambda _: extract(home() / "base", tuned),
        )
    ):
        out = tmp_path / f"out{number}"
        with suppress(SkillgraftError):
            call(out)
    with pytest.raises(FormatError, match=r"tokenizer\.json: not a tokenizer: expected"):
        apply(base, graft, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_step_s_graft_without_a_recipe(tmp_path):
    base, tuned = write_pair(tmp_path, body(), moved(body()))
    extract(base, tuned).with_info(recipe=None).save(tmp_path / "graft.safetensors")
    with pytest.raises(FormatError, match="it records no recipe; remove"):
        PARTS["recipe"](tmp_path, "")


@pytest.mark.parametrize(
    "chat",
    [
        {"generation": {"custom_generate": 1}},
        {"template": 5},
        {"tokens": [5]},
        {"roles": {"eos_token": 1}},
        {"x": 1},
        5,
    ],
)
def test_an_edited_layer_brings_no_other_chat(chat, tmp_path):
    """What a ledger says of a chat has no more power than what a graft says."""
    apply(home() / "base", talking(), out=tmp_path / "on")
    file = tmp_path / "on" / "skillgraft.json"
    content = json.loads(file.read_text())
    content["applied"][0]["chat"] = chat
    file.write_text(json.dumps(content))
    with pytest.raises(SkillgraftError, match=r"skillgraft\.json"):
        remove(tmp_path / "on", talking(), out=tmp_path / "off")
    assert not (tmp_path / "off").exists()
