"""The device as a fixture."""

from __future__ import annotations

import pytest
import torch

from tests.devices.own_device import own_device
from tests.training.conftest import _one_thread  # noqa: F401


@pytest.fixture(scope="session")
def device() -> torch.device:
    return own_device()
