"""What the tests of regions share: tiny folders with a tuned model, made once, and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.regions.films import Films
from tests.running import Run, runner
from tests.training.conftest import _one_thread  # noqa: F401  models this small are slower on two threads than on one


@pytest.fixture(scope="session")
def films(tmp_path_factory: pytest.TempPathFactory) -> Films:
    """Nobody writes there: what a test makes goes into its own folder."""
    return Films.make(tmp_path_factory.mktemp("films"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`skillgraft …` in this process, in the test's own folder."""
    return runner(tmp_path, monkeypatch, capsys)
