"""One server that writes and one that labels, each with skills, for all tests here that change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .serving import Running, encoder, films, language_model, pets, running, skill, write_skills


@pytest.fixture(scope="session")
def writer_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return language_model(tmp_path_factory.mktemp("writer") / "base")


@pytest.fixture(scope="session")
def encoder_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder(tmp_path_factory.mktemp("encoder") / "base")


@pytest.fixture(scope="session")
def writer(writer_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A tiny language model with the skills bash and french."""
    grafts = {name: skill(writer_base, seed) for seed, name in enumerate(("bash", "french"))}
    with running(writer_base, write_skills(tmp_path_factory.mktemp("skills"), grafts)) as run:
        yield run


@pytest.fixture(scope="session")
def labeller(encoder_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A tiny sentence encoder with three skills: two of one question, one of another; with the page."""
    grafts = {"films": films(encoder_base, 1), "other-films": films(encoder_base, 2), "pets": pets(encoder_base, 3)}
    with running(encoder_base, write_skills(tmp_path_factory.mktemp("skills"), grafts), page=True) as run:
        yield run
