"""What skillgraft sees of the machine it runs on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from skillgraft.files.system import cores

# Package → what it is used for, and the extra that brings it.
_USES = {
    "numpy": "everything",
    "ml_dtypes": "bfloat16",
    "torch": "live models, training (skillgraft[train])",
    "transformers": "loading models (skillgraft[train])",
    "accelerate": "training on any device (skillgraft[train])",
    "peft": "LoRA (skillgraft[train])",
    "scipy": "temperature scaling (skillgraft[train])",
    "datasets": "hub datasets, parquet (skillgraft[data])",
    "gguf": "GGUF models (skillgraft[gguf])",
    "plotly": "figures and reports (skillgraft[report])",
    "jinja2": "reports (skillgraft[report])",
    "kaleido": "figures as SVG (skillgraft[report], and a Chromium browser)",
}


def examine() -> dict[str, Any]:
    """Versions, cores, memory, devices and packages, ready for JSON."""
    packages = {name: (_version(name), use) for name, use in _USES.items()}
    return {
        "skillgraft": _version("skillgraft"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores(),
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        "devices": _devices() if packages["torch"][0] else ["cpu"],
        "packages": packages,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _devices() -> list[str]:
    import torch

    found = ["cpu"]
    found += [f"cuda:{n} {torch.cuda.get_device_name(n)}" for n in range(torch.cuda.device_count())]
    return found + (["mps"] if torch.backends.mps.is_available() else [])
