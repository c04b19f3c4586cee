"""Sums over examples of squared per-example gradients, from one backward pass per batch.

Examples of a batch do not see each other, so the gradient that reaches a layer's output, taken row by row, is each example's
own; together with the layer's input it gives every example's weight gradient (for a linear layer Σ_t δ_t a_tᵀ), which is
squared and added up at once, a few output rows at a time. Nothing of the size (examples × parameters) is ever held.

Known layers are rows of one table. A parameter whose layer is not in it, or whose layer runs more than once in a forward pass (as
ALBERT's shared layers do), is handled by running its examples one at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

CHUNK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Site:
    """One layer's own parameters in the scope: key in the layer → prefix-free name."""

    module: nn.Module
    names: Mapping[str, str]


# (layer, input, gradient of the output, wanted keys), both as (rows, positions, width) → key, slice of rows, sum of squares
Rule = Callable[[nn.Module, Tensor, Tensor, Any], Iterator[tuple[str, Any, Tensor]]]


def _linear(_module: nn.Module, entered: Tensor, delta: Tensor, wanted: Any) -> Iterator[tuple[str, Any, Tensor]]:
    if "bias" in wanted:
        yield "bias", slice(None), delta.sum(1).square().sum(0)
    if "weight" in wanted:
        yield from _weight_squares(delta, entered)


def _conv1d(_module: nn.Module, entered: Tensor, delta: Tensor, wanted: Any) -> Iterator[tuple[str, Any, Tensor]]:
    """GPT-2's linear layer, whose weight is (in, out)."""
    if "bias" in wanted:
        yield "bias", slice(None), delta.sum(1).square().sum(0)
    if "weight" in wanted:
        yield from _weight_squares(entered, delta)


def _weight_squares(left: Tensor, right: Tensor) -> Iterator[tuple[str, Any, Tensor]]:
    """Σ over examples of (Σ_t left_t rightᵀ_t)², some rows of the weight at a time."""
    rows = max(1, CHUNK_BYTES // (left.shape[0] * right.shape[2] * left.element_size()))
    for low in range(0, left.shape[2], rows):
        part = torch.bmm(left[:, :, low : low + rows].transpose(1, 2), right)
        yield "weight", slice(low, low + rows), torch.einsum("boi,boi->oi", part, part)


def _normalised(module: nn.Module, entered: Tensor, delta: Tensor, wanted: Any) -> Iterator[tuple[str, Any, Tensor]]:
    """LayerNorm, RMSNorm and their kin: whatever they do, the last step is weight ⊙ x̂ + bias."""
    if "bias" in wanted:
        yield "bias", slice(None), delta.sum(1).square().sum(0)
    if "weight" in wanted:
        neutral = {"weight": torch.ones_like(module.weight)}  # type: ignore[arg-type]
        if getattr(module, "bias", None) is not None:
            neutral["bias"] = torch.zeros_like(module.bias)  # type: ignore[arg-type]
        scaled = torch.func.functional_call(module, neutral, (entered,))
        yield "weight", slice(None), (scaled * delta).sum(1).square().sum(0)


def rule_for(module: nn.Module) -> Rule | None:
    """How to square this layer's gradients, or None: one example at a time."""
    if isinstance(module, nn.Linear):
        return _linear
    if type(module).__name__ == "Conv1D":
        return _conv1d
    weight = getattr(module, "weight", None)
    own = {key for key, _ in module.named_parameters(recurse=False)}
    is_norm = "norm" in type(module).__name__.lower() and own <= {"weight", "bias"}
    return _normalised if is_norm and weight is not None and weight.ndim == 1 else None


class Squares:
    """Collects Σ gradient² of a scope's parameters while batches run forward and backward."""

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = dict(parameters)
        self.sums = {
            n: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for n, p in parameters.items()
        }
        self.sites = list(_sites(model, parameters))
        hooked = {name for site in self.sites for name in site.names.values()}
        self.slow = sorted(parameters.keys() - hooked)
        self._rows = 0
        self._runs: Counter[int] = Counter()

    @contextmanager
    def listening(self, rows: int) -> Iterator[None]:
        """Hook the layers while one batch of so many examples runs."""
        self._rows, self._runs = rows, Counter()
        handles = [site.module.register_forward_hook(self._hook(site), with_kwargs=True) for site in self.sites]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        shared = [site for site in self.sites if self._runs[id(site.module)] > 1]
        if shared:
            raise SharedLayers(shared)

    def _hook(self, site: Site) -> Callable[..., None]:
        def entered(_module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            if not torch.is_grad_enabled():
                return
            self._runs[id(site.module)] += 1
            given = (inputs[0] if inputs else next(iter(kwargs.values()))).detach()
            output.requires_grad_()  # the first layers: nothing before them asks for gradients, and no parameter needs to
            output.register_hook(lambda delta: self._add(site, given, delta))

        return entered

    @torch.no_grad()
    def _add(self, site: Site, entered: Tensor, delta: Tensor) -> None:
        rule = rule_for(site.module)
        assert rule is not None
        found = rule(site.module, self._by_row(entered), self._by_row(delta), site.names.keys())
        for key, where, squares in found:
            self.sums[site.names[key]][where] += squares

    def _by_row(self, tensor: Tensor) -> Tensor:
        """(rows, positions, width): an example's several sequences (its choices) are one row's positions."""
        return tensor.reshape(self._rows, -1, tensor.shape[-1])

    def give_up(self, sites: list[Site]) -> None:
        """Handle these layers one example at a time from now on, and forget what was added up for them."""
        given_up = {id(site.module) for site in sites}
        names = {name for site in sites for name in site.names.values()}
        for name in names:
            self.sums[name].zero_()
            self.parameters[name].requires_grad_()
        self.slow = sorted({*self.slow, *names})
        self.sites = [site for site in self.sites if id(site.module) not in given_up]


class SharedLayers(Exception):
    """Layers that ran more than once in a forward pass: their examples' gradients cannot be told apart by call."""

    def __init__(self, sites: list[Site]) -> None:
        super().__init__(f"{len(sites)} layers run more than once")
        self.sites = sites


def _sites(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> Iterator[Site]:
    """The layers whose own parameters are in the scope and that the table knows."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    seen: Counter[int] = Counter()
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            seen[id(parameter)] += 1
    for module in model.modules():
        own = {key: names[id(p)] for key, p in module.named_parameters(recurse=False) if id(p) in names}
        tied = any(seen[id(p)] > 1 for p in module.parameters(recurse=False))
        if own and not tied and rule_for(module) is not None:
            yield Site(module, own)
