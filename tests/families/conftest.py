"""One pair of folders per family and number format for the whole run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.families.architectures import Family, tuned, write
from tests.readouts.making import write_digits, write_films

Pair = tuple[Path, Path]


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Family, str], Pair]:
    """BASE and TUNED of a family; written when first asked for, and never changed by a test."""
    written: dict[tuple[str, str], Pair] = {}

    def folders(family: Family, dtype: str) -> Pair:
        key = family.name, dtype
        if key not in written:
            root = tmp_path_factory.mktemp(f"{family.name}-{dtype}")
            base = write(family, root / "BASE", dtype)
            written[key] = base, tuned(base, root / "TUNED")
        return written[key]

    return folders


@pytest.fixture(scope="session")
def task_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The toy tasks by name, with rows beside them."""
    folder = tmp_path_factory.mktemp("tasks")
    return {"films": write_films(folder), "digits": write_digits(folder, "digits")}
