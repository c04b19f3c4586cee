"""The chat template and the stop tokens travel with a graft, are shown, and give way to the base's own files again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from skillgraft import Graft, apply, extract, remove
from skillgraft.errors import InputError, SkillgraftError
from skillgraft.folders.chat import GENERATION, MOST_CHARACTERS, TEMPLATE, TOKENIZER
from tests.family import write_family
from tests.running import Run, runner

TALK = "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}é"
STOPS = {"eos_token_id": [2, 7], "pad_token_id": 0, "temperature": 0.6, "custom_generate": "x.py"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_family(tmp_path)
    (tmp_path / "TUNED" / TEMPLATE).write_text(TALK, encoding="utf-8")
    (tmp_path / "TUNED" / GENERATION).write_text(json.dumps(STOPS))
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_travels_is_a_closed_list(place: Path) -> None:
    graft = extract(place / "BASE", place / "TUNED")
    assert graft.info["chat"] == {"template": TALK, "generation": {"eos_token_id": [2, 7], "pad_token_id": 0}}
    assert Graft.load(graft.save(place / "g.safetensors") or place / "g.safetensors").info["chat"] == graft.info["chat"]
    assert "chat" not in extract(place / "BASE", place / "OTHER").info


@pytest.mark.parametrize("had", [None, '{"eos_token_id": 1, "do_sample": true}'])
def test_a_grafted_base_knows_when_to_stop_and_remove_gives_the_bases_files_back(place: Path, had: str | None) -> None:
    if had is not None:
        (place / "BASE" / GENERATION).write_text(had)
        (place / "BASE" / TEMPLATE).write_bytes("old \r\n témplate".encode())
    before, graft = files(place / "BASE"), extract(place / "BASE", place / "OTHER")
    talking = (
        extract(place / "BASE", place / "TUNED")
        .without_heads()
        .with_info(chat={"template": TALK, "generation": {"eos_token_id": 7}})
    )
    apply(place / "BASE", talking, out=place / "on")
    assert (place / "on" / TEMPLATE).read_text(encoding="utf-8") == TALK
    wanted = {**json.loads(had or "{}"), "eos_token_id": 7}
    assert json.loads((place / "on" / GENERATION).read_text()) == wanted
    remove(place / "on", talking, out=place / "off")
    after = files(place / "off")
    for name in (TEMPLATE, GENERATION):
        assert after.get(name) == before.get(name)
    apply(place / "BASE", graft, out=place / "plain")
    assert "base_chat" not in (place / "plain" / "skillgraft.json").read_text()


def test_a_template_among_the_tokenizers_settings_travels_too(place: Path) -> None:
    (place / "TUNED" / TEMPLATE).unlink()
    (place / "TUNED" / TOKENIZER).write_text(json.dumps({"chat_template": TALK}))
    assert extract(place / "BASE", place / "TUNED").info["chat"]["template"] == TALK


@pytest.mark.parametrize(
    "chat",
    [
        {"template": "x" * (MOST_CHARACTERS + 1)},
        {"template": 3},
        {"generation": {"custom_generate": 1}},
        {"generation": {"eos_token_id": "2"}},
        {"generation": {"eos_token_id": [True]}},
        {"generation": [1]},
        {"tokenizer": "{}"},
    ],
)
def test_anything_else_is_refused(place: Path, chat: dict[str, Any]) -> None:
    graft = extract(place / "BASE", place / "OTHER").with_info(chat=chat)
    with pytest.raises(SkillgraftError):
        apply(place / "BASE", graft, out=place / "on")
    assert not (place / "on").exists()


def test_a_template_without_end_is_not_extracted(place: Path) -> None:
    (place / "TUNED" / TEMPLATE).write_text("x" * (MOST_CHARACTERS + 1))
    with pytest.raises(InputError, match="at most 65,536 characters, found 65,537"):
        extract(place / "BASE", place / "TUNED")


def test_inspect_shows_both(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run: Run = runner(place, monkeypatch, capsys)
    extract(place / "BASE", place / "TUNED").save(place / "g.safetensors")
    ended = run("inspect", "g.safetensors")
    assert f"chat template: {len(TALK)} characters" in ended.out
    assert "generation: eos_token_id [2, 7], pad_token_id 0" in ended.out
