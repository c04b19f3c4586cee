"""skillgraft report, as a user meets it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..running import Run, runner

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(tmp_path, monkeypatch, capsys)


def test_json(run: Run, runs: Path) -> None:
    found = run("report", runs, "-o", "page.html", "--title", "T", "--json").json
    page = Path("page.html")
    assert (found["out"], found["bytes"]) == ("page.html", page.stat().st_size)
    assert found["found"]["graft"] == 2
    assert found["sections"][0] == "overview"
    assert found["unused"] == [{"file": "runs/notes.txt", "why": "a report does not read .txt"}]
    assert [each["file"] for each in found["unread"]] == ["runs/damaged.safetensors"]
    assert "<title>T</title>" in page.read_text()
    section = DOCUMENT.read_text(encoding="utf-8").split("\n## report\n")[1]
    assert re.findall(r"`(\w+)`", section.split("JSON fields: ")[1].split(".")[0]) == list(found)


def test_for_people(run: Run, runs: Path) -> None:
    ended = run("report", runs, "-o", "page.html")
    assert (ended.code, ended.err) == (0, "")
    first, unread, unused = ended.out.splitlines()
    assert first.startswith("page.html: 2 grafts, 1 region, 3 model folders, ")
    assert unread.startswith("could not be read: runs/damaged.safetensors: ")
    assert unused == "not used: 1 other files"


def test_without_plotly(run: Run, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    ended = run("report", runs, "-o", "page.html")
    assert ended.code == 2
    assert "pip install 'skillgraft[report]'" in ended.err
    assert not Path("page.html").exists()


def test_a_report_needs_no_torch() -> None:
    """The extra `report` does not bring it."""
    code = "import sys; sys.modules['torch'] = None; import skillgraft.report.page"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
