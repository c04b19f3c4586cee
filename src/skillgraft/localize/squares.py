"""Sums over examples of squared per-example gradients, from one backward pass per batch.

Examples of a batch do not see each other, so the gradient that reaches a layer's output, taken row by row, is each example's
own; together with the layer's input it gives every example's weight gradient (for a linear layer Σ_t δ_t a_tᵀ), which is
squared and added up at once, one tile at a time. Nothing of the size (examples × parameters) is ever held.

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

# One example's product and the sums it is added to stay in a core's cache together: the work is then that of the
# multiplication alone. With products of all examples in memory at once it took three times as long.
TILE_BYTES = 512 * 1024


@dataclass(frozen=True)
class Site:
    """One layer's own parameters in the scope: key in the layer → prefix-free name."""

    module: nn.Module
    names: Mapping[str, str]


# (layer, input, gradient of the output, sums by key): adds each example's squares. Input and gradient are
# (rows, positions, width).
Rule = Callable[[nn.Module, Tensor, Tensor, Mapping[str, Tensor]], None]


def _linear(_module: nn.Module, entered: Tensor, delta: Tensor, sums: Mapping[str, Tensor]) -> None:
    _add_bias(sums, delta)
    if "weight" in sums:
        _add_products(sums["weight"], delta, entered)


def _conv1d(_module: nn.Module, entered: Tensor, delta: Tensor, sums: Mapping[str, Tensor]) -> None:
    """GPT-2's linear layer, whose weight is (in, out)."""
    _add_bias(sums, delta)
    if "weight" in sums:
        _add_products(sums["weight"], entered, delta)


def _normalised(module: nn.Module, entered: Tensor, delta: Tensor, sums: Mapping[str, Tensor]) -> None:
    """LayerNorm, RMSNorm and their kin: whatever they do, the last step is weight ⊙ x̂ + bias."""
    _add_bias(sums, delta)
    if "weight" in sums:
        neutral = {"weight": torch.ones_like(module.weight)}  # type: ignore[arg-type]
        if getattr(module, "bias", None) is not None:
            neutral["bias"] = torch.zeros_like(module.bias)  # type: ignore[arg-type]
        scaled = torch.func.functional_call(module, neutral, (entered,))
        sums["weight"] += (scaled * delta).sum(1).square().sum(0)


def _add_bias(sums: Mapping[str, Tensor], delta: Tensor) -> None:
    if "bias" in sums:
        sums["bias"] += delta.sum(1).square().sum(0)


def _add_products(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add Σ over examples of (Σ_t left_t right_tᵀ)², some rows of the weight and one example at a time."""
    left, right = left.to(total.dtype).transpose(1, 2), right.to(total.dtype)
    rows = max(1, TILE_BYTES // (total.shape[1] * total.element_size()))
    room = torch.empty_like(total[:rows])
    for low in range(0, len(total), rows):
        tile = total[low : low + rows]
        product = room[: len(tile)]
        for mine, other in zip(left[:, low : low + rows].unbind(), right.unbind(), strict=True):
            torch.mm(mine, other, out=product)
            tile.addcmul_(product, product)


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
        sums = {key: self.sums[name] for key, name in site.names.items()}
        rule(site.module, self._by_row(entered), self._by_row(delta), sums)

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
