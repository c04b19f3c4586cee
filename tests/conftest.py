"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skillgraft.files import atomic


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Folders that a test throws away need not reach the disk; tests/attacks/test_machine.py has the real thing."""
    real = atomic._to_disk
    atomic._to_disk = lambda _folder: None
    yield
    atomic._to_disk = real
