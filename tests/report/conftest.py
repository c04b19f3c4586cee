"""One folder of artefacts for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from .making import write_runs


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that a report shows; read only."""
    return write_runs(tmp_path_factory.mktemp("report") / "runs")
