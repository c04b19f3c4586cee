"""Random skills of a live model, and a batch's answers row by row: what a SkillBank is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from torch import Tensor, nn

from skillgraft import Graft, Region, Scope, grafted
from skillgraft.live.grafted import fingerprint_of, tensors_of
from skillgraft.live.row_forms import RowForms


def random_skill(model: nn.Module, seed: int, *, share: float = 0.05, step: float = 0.25) -> Graft:
    """A graft that moves a share of every parameter that can differ from row to row."""
    draw, tensors = np.random.default_rng(seed), tensors_of(model)
    refused = RowForms(model).refusals(tensors.shapes)
    scope = Scope.select("all", tensors.shapes)
    sites = {
        name: np.sort(draw.choice(size := int(np.prod(shape)), max(1, int(size * share)), replace=False))
        for name, shape in scope.shapes.items()
        if name not in refused
    }
    region = Region(scope, sites)
    before = {name: tensors.flat(name)[at].copy() for name, at in region.sites.items()}
    after = {
        name: (old.astype(np.float32) + step * draw.standard_normal(len(old)).astype(np.float32)).astype(old.dtype)
        for name, old in before.items()
    }
    return Graft(region, before, after, base_fingerprint=fingerprint_of(model))


def row_by_row(model: nn.Module, skills: Sequence[Graft | None], ask: Callable[[], Tensor]) -> Tensor:
    """Row i of the answer that the model gives with skill i on, and nothing else."""
    answers = ask().clone()
    for row, skill in enumerate(skills):
        if skill is not None:
            with grafted(model, skill):
                answers[row] = ask()[row]
    return answers


def distance(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest number."""
    return float((a.float() - b.float()).abs().max() / b.float().abs().max().clamp(min=1e-30))
