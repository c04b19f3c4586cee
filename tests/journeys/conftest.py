from __future__ import annotations

from pathlib import Path

import pytest

from tests.journeys.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    """In an empty folder."""
    return Terminal(tmp_path)
