"""A store of three tiny tasks, learned one after the other on one base."""

from __future__ import annotations

from pathlib import Path

import pytest

from skillgraft.compose.continual import Learning, add
from skillgraft.compose.store import ContinualStore
from skillgraft.tasks.data import Data
from tests.compose.toy_tasks import QUICK, _one_thread, place, run, tasks  # noqa: F401
from tests.model_folders import content

# pytest passes fixtures by their names, which are imported here
# ruff: noqa: F811

PLAN = QUICK.with_changes(steps=12, lr=1e-2)
LEARNING = Learning(PLAN, search={"method": "learned", "density": 0.05, "steps": 3, "lr": 1e5}, data=Data(shots=12))


@pytest.fixture(scope="module")
def encoder(place: Path) -> Path:
    return place / "encoder"


@pytest.fixture(scope="module")
def history(encoder: Path, tasks: list[Path], place: Path) -> list[dict[str, str]]:
    """STORE with three tasks; the bytes of its visible files after each addition."""
    seen = []
    for task in tasks:
        add(place / "STORE", encoder, task, learning=LEARNING)
        seen.append(files_of(place / "STORE"))
    return seen


@pytest.fixture(scope="module")
def store(history: list[dict[str, str]], place: Path) -> ContinualStore:
    assert len(history) == 3
    return ContinualStore.open(place / "STORE")


def files_of(folder: Path) -> dict[str, str]:
    """What a reader of the store looks at, by SHA-256."""
    return {name: digest for name, digest in content(folder).items() if not name.startswith(".")}
