"""One folder per tiny model for the whole run."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.readouts import making


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model by the name of its maker; made when first asked for."""
    made: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = getattr(making, name)(tmp_path_factory.mktemp(name))
        return made[name]

    return folder


@pytest.fixture(autouse=True)
def _few_threads_and_no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    torch.set_num_threads(2)
