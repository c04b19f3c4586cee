"""Text from files on terminals, Markdown pages and in YAML: shown, never obeyed."""

from __future__ import annotations

import doctest
import json
import sys

import pytest

from skillgraft.cli.main import main
from skillgraft.files import graft_file
from skillgraft.folders.apply import apply
from skillgraft.folders.extract import extract
from skillgraft.folders.given import Named
from skillgraft.report.sheet import Cell, Result, Sheet, markdown
from skillgraft.values import escaping, permitted
from tests.attacks.hostile import graft_of_nothing, with_power
from tests.model_folders import body, moved, write_folder, write_pair

EVIL = "x\x1b[2J\x1b]0;title\x07\nforged: line\r\t\u202eabc\u2066\ud800\x9b31m\u2028"


def run(capsys, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["skillgraft", *map(str, words)])
    with pytest.raises(SystemExit):
        main()
    return capsys.readouterr()


def harmless(text):
    return all(escaping.terminal(line) == line for line in text.split("\n"))


def test_the_examples():
    for module in (escaping, permitted):
        assert doctest.testmod(module).failed == 0


def test_a_line_stays_one_line():
    shown = escaping.terminal(EVIL)
    assert shown == (r"x\x1b[2J\x1b]0;title\x07\nforged: line\r\t\u202eabc\u2066\ud800\x9b31m\u2028")
    assert escaping.terminal(shown) == shown
    assert escaping.terminal("Ünïcödé 漢字 ☃ e\u0301") == "Ünïcödé 漢字 ☃ e\u0301"


def test_inspect_shows_metadata_without_obeying_it(tmp_path, capsys, monkeypatch):
    text = EVIL.replace("\ud800", "")
    graft = graft_of_nothing(base=text, task=text, method=text, recipe={text: text}, labels=[text], command=text)
    file = tmp_path / "g.safetensors"
    graft_file.save(graft, file)
    printed = run(capsys, monkeypatch, "inspect", file)
    assert printed.err == ""
    assert harmless(printed.out)
    assert not any(line.startswith("forged") for line in printed.out.splitlines())
    as_json = run(capsys, monkeypatch, "inspect", file, "--json").out
    assert as_json.isascii()
    assert json.loads(as_json)["made"]["base"] == text


def test_inspect_tells_what_a_graft_changes_and_cannot(tmp_path, capsys, monkeypatch):
    base, tuned = write_pair(
        tmp_path, body(prefix="bert.", cls__bias=(3,)), moved(body(prefix="bert.", classifier__weight=(2, 4)))
    )
    graft = extract(base, tuned)
    graft_file.save(with_power(graft, config={"auto_map": {}, "pad_token_id": 1}), tmp_path / "g.safetensors")
    out = run(capsys, monkeypatch, "inspect", tmp_path / "g.safetensors").out
    assert f"digest {graft.digest}" in out
    for line in ("would bring whole: classifier.weight [2, 4]", "would take away, where the model has them: cls.bias",
                 "pad_token_id = 1", "give the body: names that begin with 'bert.'",
                 "apply refuses it: 'auto_map' is not among the keys that a graft may set", "cannot: run code"):  # fmt: skip
        assert line in out
    graft_file.save(with_power(graft, chat={"template": "{{ x }}"}), tmp_path / "t.safetensors")
    out = run(capsys, monkeypatch, "inspect", tmp_path / "t.safetensors").out
    assert "would set of the chat: template" in out
    assert "cannot: run code outside the sandbox that chat templates run in, touch" in out


def test_errors_quote_file_names_harmlessly(tmp_path, capsys, monkeypatch):
    printed = run(capsys, monkeypatch, "inspect", tmp_path / f"{EVIL[:20]}.safetensors")
    assert harmless(printed.err)
    assert printed.err.count("\n") == 1
    printed = run(capsys, monkeypatch, "inspect", tmp_path / f"{EVIL[:20]}.safetensors", "--debug")
    assert harmless(printed.err)


def test_the_card_takes_no_yaml_and_no_markup(tmp_path):
    name = 'x | <img src=x onerror=y> | [a](http://b) "license: mit'
    base = write_folder(tmp_path / "base", body(), config={"_name_or_path": name})
    graft = extract(base, write_folder(tmp_path / "tuned", moved(body())))
    apply(base, Named(graft, "a|b\n# forged <b> [x](http://y).safetensors"), out=tmp_path / "on")
    card = (tmp_path / "on" / "README.md").read_text().split("\n---\n", 1)[1]  # below the YAML
    assert "<img" not in card
    assert "<b>" not in card
    assert "](" not in card
    assert [line for line in card.splitlines() if line.startswith(("license", "# forged"))] == []
    assert "\n---\n" not in card
    assert r"| a\|b\\n# forged &lt;b> [x]\(http://y).safetensors |" in card
    assert graft.digest in card


def test_sheets_have_no_markup_in_their_cells():
    sheet = Sheet("a <b>", ("r|](x)",), ("c\n| d |",), {("r|](x)", "c\n| d |"): Cell(0.5)})
    page = markdown(Result("n", "t", (sheet,)))
    assert "<b>" not in page
    assert "](" not in page
    assert len(page.splitlines()) == 7


def test_json_has_no_infinity():
    assert json.loads(escaping.plain_json({"a": [float("inf"), 1.5, float("nan")], "b": {"c": float("-inf")}})) == {
        "a": [None, 1.5, None],
        "b": {"c": None},
    }
