"""Sums over examples of squared per-example gradients, from one backward pass per batch.

Examples of a batch do not see each other, so the gradient that reaches a layer's output, taken row by row, is each example's
own; together with the layer's input it gives every example's weight gradient (for a linear layer Σ_t δ_t a_tᵀ), which is
squared and added up at once, one tile at a time. Nothing of the size (examples × parameters) is ever held.

Known layers are rows of one table. All of it rests on a layer's rows standing first: its input and output are
(rows · something, …, width). A layer whose shapes do not allow that, that runs more than once in a forward pass (as ALBERT's
shared layers do) or takes several tensors is dropped, and whatever was added up for it is forgotten: its parameters are
`slow`, and their examples run one at a time. Shapes alone cannot prove it: `fisher` compares every layer with autograd.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from skillgraft.opening.shards import own_shape, span

# One example's product of a whole MiniLM matrix. Larger tiles leave the cache; smaller ones make threads wait for each other
# more often than they work (with 512 kB, products on two threads took 1.2 to 1.4 times as long as with this).
TILE_BYTES = 4 * 1024 * 1024

Shape = tuple[int, ...]
Sums = Mapping[str, Tensor]
Spans = Mapping[str, slice]
# (layer, input, gradient of the output, rows, sums by key, the span of each that is summed): adds each row's squares.
Add = Callable[[nn.Module, Tensor, Tensor, int, Sums, Spans], None]


@dataclass(frozen=True)
class Rule:
    """How a kind of layer's gradients are squared, and if its weight is a matrix, the axis along which its outputs lie."""

    add: Add
    outputs: int | None


@dataclass(frozen=True, eq=False)
class Site:
    """One layer's own parameters in the scope: key in the layer → prefix-free name, and which of its rows this process has."""

    module: nn.Module
    names: Mapping[str, str]
    rule: Rule
    spans: Spans


def _linear(_module: nn.Module, entered: Tensor, delta: Tensor, rows: int, sums: Sums, spans: Spans) -> None:
    _add_bias(sums, delta, rows, spans)
    if "weight" in sums:
        _add_products(sums["weight"], by_row(delta, rows)[..., spans["weight"]], by_row(entered, rows))


def _conv1d(_module: nn.Module, entered: Tensor, delta: Tensor, rows: int, sums: Sums, spans: Spans) -> None:
    """GPT-2's linear layer, whose weight is (in, out)."""
    _add_bias(sums, delta, rows, spans)
    if "weight" in sums:
        _add_products(sums["weight"], by_row(entered, rows)[..., spans["weight"]], by_row(delta, rows))


def _normalised(module: nn.Module, entered: Tensor, delta: Tensor, rows: int, sums: Sums, spans: Spans) -> None:
    """LayerNorm, RMSNorm and their kin: whatever they do, the last step is weight ⊙ x̂ + bias, or (1 + weight) ⊙ x̂ as in Gemma."""
    _add_bias(sums, delta, rows, spans)
    if "weight" in sums:
        total = sums["weight"]
        scaled = _with_weight(module, entered.to(total.dtype), 1.0)
        if not isinstance(module, nn.LayerNorm):  # which is known to give 0 for a weight of 0
            scaled = scaled - _with_weight(module, entered.to(total.dtype), 0.0)
        total += by_row(scaled * delta, rows)[..., spans["weight"]].sum(1).square().sum(0)


def _with_weight(module: nn.Module, entered: Tensor, number: float) -> Tensor:
    # By shape: outside of a pass a split parameter is not the whole one.
    named = module.named_parameters(recurse=False)
    own = {key: torch.zeros(p.shape, dtype=entered.dtype, device=entered.device) for key, p in named}
    own["weight"].fill_(number)
    output: Tensor = torch.func.functional_call(module, own, (entered,))
    return output


def by_row(tensor: Tensor, rows: int) -> Tensor:
    """(rows, positions, width): an example's several sequences (its choices) are one row's positions."""
    return tensor.reshape(rows, -1, tensor.shape[-1])


def _add_bias(sums: Sums, delta: Tensor, rows: int, spans: Spans) -> None:
    if "bias" in sums:
        mine = by_row(delta, rows)[..., spans["bias"]]
        sums["bias"] += mine.sum(1, dtype=sums["bias"].dtype).square().sum(0)


def _add_products(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add Σ over examples of (Σ_t left_t right_tᵀ)², some rows of the weight and one example at a time."""
    if not total.is_contiguous():  # it lies in memory the other way round: see `_zeros`
        total, left, right = total.t(), right, left
    left, right = left.to(total.dtype).transpose(1, 2), right.to(total.dtype)
    tiles = max(1, -(-total.numel() * total.element_size() // TILE_BYTES))
    rows = -(-len(total) // tiles)
    room = torch.empty_like(total[:rows])
    for low in range(0, len(total), rows):
        tile = total[low : low + rows]
        product = room[: len(tile)]
        for mine, other in zip(left[:, low : low + rows].unbind(), right.unbind(), strict=True):
            torch.mm(mine, other, out=product)
            tile.addcmul_(product, product)


LINEAR, CONV1D, NORMALISED = Rule(_linear, outputs=0), Rule(_conv1d, outputs=1), Rule(_normalised, outputs=None)


def rule_for(module: nn.Module) -> Rule | None:
    """How to square this layer's gradients, or None: one example at a time."""
    if isinstance(module, nn.Linear):
        return LINEAR
    if type(module).__name__ == "Conv1D":
        return CONV1D
    weight = getattr(module, "weight", None)
    own = {key for key, _ in module.named_parameters(recurse=False)}
    # Batch norms and the norms of convolutions run over channels that do not lie last.
    last = (
        not isinstance(module, nn.modules.batchnorm._NormBase)
        and getattr(module, "data_format", "") != "channels_first"
    )
    is_norm = "norm" in type(module).__name__.lower() and own <= {"weight", "bias"} and last
    return NORMALISED if is_norm and weight is not None and weight.ndim == 1 else None


class Squares:
    """Collects Σ gradient² of a scope's parameters while batches run forward and backward.

    `unproven` are sites that no comparison has shown to be right, because no gradient reached them in it: should one do so
    later, they are dropped.
    """

    def __init__(self, model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = dict(parameters)
        self.sums = {name: _zeros(parameter) for name, parameter in parameters.items()}
        self.sites = list(_sites(model, parameters))
        hooked = {name for site in self.sites for name in site.names.values()}
        self.slow = sorted(parameters.keys() - hooked)
        self.unproven: frozenset[Site] = frozenset()

    @contextmanager
    def listening(self, rows: int) -> Iterator[None]:
        """Add up the squares of one batch of so many examples; drop the layers that turn out to be unfit."""
        late = set[Site]()

        def add(site: Site, entered: Tensor, delta: Tensor) -> None:
            if site in self.unproven and bool(delta.any()):
                late.add(site)
            else:
                sums = {key: self.sums[name] for key, name in site.names.items()}
                site.rule.add(site.module, entered, delta, rows, sums, site.spans)

        with tapped(self.sites, rows, add) as unfit:
            yield
        self.drop({*unfit, *late})

    def drop(self, sites: Iterable[Site]) -> None:
        """Handle these layers one example at a time, and forget what was added up for them."""
        dropped = set(sites)
        names = {name for site in dropped for name in site.names.values()}
        for name in names:
            self.sums[name].zero_()
        self.slow = sorted({*self.slow, *names})
        self.sites = [site for site in self.sites if site not in dropped]


Take = Callable[[Site, Tensor, Tensor], None]


@contextmanager
def tapped(sites: Sequence[Site], rows: int, take: Take) -> Iterator[set[Site]]:
    """`take(site, input, gradient of the output)` for every layer that a batch runs back through, if its shapes fit the rows.

    Yields the sites that are unfit; complete when the context ends. What was taken of them is void.
    """
    unfit, leading = set[Site](), dict[Site, Shape]()
    handles = [
        site.module.register_forward_hook(_hook(site, rows, take, unfit, leading), with_kwargs=True) for site in sites
    ]
    try:
        yield unfit
    finally:
        for handle in handles:
            handle.remove()
        unfit |= _loose(leading, rows)


def _hook(
    site: Site, rows: int, take: Take, unfit: set[Site], leading: dict[Site, Shape]
) -> Callable[..., Tensor | None]:
    def entering(_module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Tensor | None:
        if not torch.is_grad_enabled():
            return None
        given = [value for value in (*inputs, *kwargs.values()) if isinstance(value, Tensor)]
        if site in leading or not _fits(given, output, rows):
            unfit.add(site)
            return None
        entered = given[0].detach()
        leading[site] = tuple(entered.shape[:-1])
        if not output.requires_grad:  # the first layers: no parameter asks for gradients, and nothing before them does
            output = output.detach().requires_grad_().clone()  # a leaf could not be changed in place, as some models do
        output.register_hook(lambda delta: take(site, entered, delta))
        return output  # type: ignore[no-any-return]

    return entering


def _fits(given: Sequence[Tensor], output: Any, rows: int) -> bool:
    """One tensor in, one out, position by position, and equally many positions for every row."""
    if len(given) != 1 or not isinstance(output, Tensor) or output.ndim < 2:
        return False
    return given[0].shape[:-1] == output.shape[:-1] and output.shape[0] % rows == 0


def _loose(leading: Mapping[Site, Shape], rows: int) -> set[Site]:
    """Layers that run over single tokens of which nobody knows whose they are, as the experts of a mixture do.

    Flattened tokens are trusted only if they are as many as the rows, as their sequences, or as all tokens elsewhere.
    """
    counts = {rows}
    for shape in leading.values():
        if len(shape) > 1:
            counts |= {shape[0], torch.Size(shape).numel()}
    return {site for site, shape in leading.items() if len(shape) == 1 and shape[0] not in counts}


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
        rule = rule_for(module)
        if own and not tied and rule is not None:
            named = module.named_parameters(recurse=False)
            yield Site(module, own, rule, {key: span(p) for key, p in named if key in own})


def _zeros(parameter: Tensor) -> Tensor:
    """Room for a parameter's sums, at least float32.

    A matrix that is wider than tall lies in memory as its transpose: multiplications share their work among threads by rows,
    and took a quarter longer on the few long ones.
    """
    dtype, shape = torch.promote_types(parameter.dtype, torch.float32), own_shape(parameter)
    if len(shape) == 2 and shape[0] < shape[1]:
        return torch.zeros(shape[::-1], dtype=dtype, device=parameter.device).t()
    return torch.zeros(shape, dtype=dtype, device=parameter.device)
