"""Models this small are slower on two threads than on one; and pictures need a browser, which costs seconds each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.readouts.making import bert, gpt2, write_films
from tests.training.conftest import _one_thread  # noqa: F401


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models (bert, gpt2) and three tasks with the same rows (films, plays, songs)."""
    folder = tmp_path_factory.mktemp("studio")
    bert(folder / "bert")
    gpt2(folder / "gpt2")
    films = write_films(folder).read_text(encoding="utf-8")
    for name in ("plays", "songs"):
        (folder / f"{name}.toml").write_text(films.replace('name = "films"', f'name = "{name}"'), encoding="utf-8")
    return folder


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes' own tasks are drafted without looking for their data in the hub."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


@pytest.fixture
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures as HTML alone."""
    from skillgraft.report import figure_files

    def refuse(_figures: object, _kind: str) -> list[bytes]:
        raise figure_files.NoBrowser("no pictures in this test")

    monkeypatch.setattr(figure_files, "pictures_of", refuse)
