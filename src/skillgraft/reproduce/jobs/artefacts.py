"""What steps leave in their folders, by name, and how other steps read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from skillgraft import graft_file
from skillgraft.extraction import extract
from skillgraft.graft import Graft
from skillgraft.region import Region

MODEL, GRAFT, REGION, SAID, FACTS = "model", "graft.safetensors", "region.safetensors", "said.npz", "facts.json"
# Role → folder of the step that plays it.
Needs = Mapping[str, Path]


def model_of(step: Path, checkpoint: str = "") -> Path:
    """A tuning step's model, or one of its checkpoints."""
    return step / f"{MODEL}.steps" / checkpoint if checkpoint else step / MODEL


def region_file(step: Path) -> Path:
    """The file that says which entries a step found: its region, or its graft."""
    return step / REGION if (step / REGION).exists() else step / GRAFT


def region_of(step: Path) -> Region:
    """The region that a step found, or that of its graft."""
    return graft_file.load_region(region_file(step))


def change_of(needs: Needs, base: str, checkpoint: str = "") -> Graft:
    """The graft that a step made, or all that its tuned model changes; `heads` are those of another tuned model."""
    if "graft" in needs:
        return graft_file.load(needs["graft"] / GRAFT)
    change = extract(base, model_of(needs["tuned"], checkpoint))
    return replace(change, heads=extract(base, model_of(needs["heads"])).heads) if "heads" in needs else change


def write_facts(out: Path, **facts: Any) -> None:
    (out / FACTS).write_text(json.dumps(facts, default=float) + "\n", encoding="utf-8")


def read_facts(step: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((step / FACTS).read_text(encoding="utf-8"))
    return found
