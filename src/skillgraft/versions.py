"""Which versions made an artefact."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("skillgraft", "numpy", "ml_dtypes", "torch", "transformers", "accelerate", "peft", "datasets")


@cache
def versions() -> dict[str, str]:
    """Package → version for what is installed here; nothing is imported to find out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
