"""A headless Chromium for the tests, or the reason why there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--no-first-run",
]  # fmt: skip
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def need_browser() -> None:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    if find_spec("playwright") is None:
        pytest.skip("playwright is not installed")


@contextmanager
def browser(folder: Path) -> Iterator[Any]:
    """A browser with a profile of its own that knows no network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        context = driver.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=FLAGS, env={"HOME": str(folder), "TMPDIR": str(folder)}
        )
        try:
            yield context
        finally:
            context.close()
