"""What a figure depends on besides the code: the machine and the versions."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("numpy", "torch", "transformers", "peft")


def facts() -> dict[str, str]:
    """Cores, memory, system and versions, as text. Nothing heavy is imported to find out."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory:.0f} GB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
    }


def _processor() -> str:
    found = Path("/proc/cpuinfo")
    lines = found.read_text(encoding="utf-8").splitlines() if found.is_file() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
