"""docs/migrating.md tells the truth: its commands run as they stand, on a tiny Llama, its adapter and two fine-tunes."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest

from skillgraft import Graft, apply, combine, extract
from skillgraft.compose.rules import RULES
from skillgraft.interop.lora import export_lora
from tests.families.architectures import FAMILIES, tuned, write
from tests.model_folders import content, same_weights
from tests.running import Run, runner

PAGE = (Path(__file__).parents[1] / "docs" / "migrating.md").read_text(encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    base = write(FAMILIES["llama"], tmp_path / "BASE", "float32")
    tuned(base, tmp_path / "A")
    apply(base, extract(base, tmp_path / "A"), out=tmp_path / "B", scale=-0.5)
    some = extract(base, tmp_path / "A", entries=40, scope="matrices")
    export_lora(some, base, tmp_path / "adapter")
    return runner(tmp_path, monkeypatch, capsys)


def test_the_page_runs_from_top_to_bottom(run: Run) -> None:
    for text in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL):
        for line in text.splitlines():
            ended = run(*shlex.split(line)[1:])
            assert ended.code == 0, (line, ended.err)
    assert content(Path("BACK")) == content(Path("BASE"))
    assert not same_weights(Path("MERGED"), Path("BASE"))
    a = extract("BASE", "A")
    weighted = Graft.load("weighted.safetensors")
    assert weighted.norm == pytest.approx((0.6 - 0.5 * 0.4) * a.norm, rel=1e-4)
    ties = Graft.load("ties.safetensors")
    assert ties.norm == pytest.approx(combine([a], rule="ties", trim="tensor", keep=0.5).norm, rel=1e-4)


def test_every_rule_and_option_on_the_page_exists() -> None:
    rules = set(re.findall(r"`--rule (\w+)", PAGE))
    assert rules <= RULES.keys()
    assert len(rules) >= 6
    options = {name for rule in rules for name in inspect.signature(RULES[rule]).parameters}
    assert {"keep", "trim", "epsilon", "drop"} <= options
