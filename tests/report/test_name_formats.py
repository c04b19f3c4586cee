"""examples/name_formats.py: JSON of earlier versions gets the name that a report goes by."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from skillgraft.report.artefacts import find

ROOT = Path(__file__).parents[2]


def test_what_was_printed_before_is_read_again(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    migrate = importlib.import_module("name_formats").migrate
    for name in ("scores.json", "localize.json", "scales.json"):
        facts = json.loads((runs / name).read_text())
        del facts["format"]
        (tmp_path / name).write_text(json.dumps(facts))
    (tmp_path / "other.json").write_text('{"a": 1}')
    assert not find([tmp_path]).artefacts
    assert [path.name for path, _ in migrate([tmp_path])] == ["localize.json", "scales.json", "scores.json"]
    assert [each.kind for each in find([tmp_path]).artefacts] == ["localization", "scales", "evaluation"]
    assert list(migrate([tmp_path])) == []


def test_results_in_the_repository_name_their_format() -> None:
    files = list(ROOT.glob("docs/results/*/*.json"))
    assert files
    assert all(str(json.loads(file.read_text())["format"]).startswith("skillgraft result ") for file in files)
