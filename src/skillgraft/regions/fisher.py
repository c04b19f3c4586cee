"""How sensitive a model's answers are to each entry: the diagonal of the Fisher information (P2).

    F_jj = E_x E_{y∼p(y|x)} (∂ log p(y|x) / ∂θ_j)²

Exact per example: labels are sampled from the model itself (or the true ones, the "empirical" Fisher), and every example's own
gradient is squared. Of a completion every token is sampled, after the true tokens before it. Cost: about one forward and
backward pass of the same batches.

That holds for layers whose gradients `squares` can take apart by row. Each of them is compared with autograd on two rows before
it is trusted; what cannot be taken apart, or comes out differently, is computed from examples that run one at a time.

Log-probabilities, products and sums are float32 at least. Gradients flow back in the model's own format: in float16 those below
6e-8 count as 0, and above 65504 they overflow, which is refused (RunError). bfloat16 has float32's range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from skillgraft.errors import InputError, RunError
from skillgraft.opening.processes import ALONE, Processes
from skillgraft.opening.shards import is_split, own, own_shape
from skillgraft.predictions.predict import by_length, on_device
from skillgraft.readouts.readout import Batch, Encoded, Readout, units_of
from skillgraft.regions.squares import Site, Squares, by_row, tapped

Scores = Callable[[Sequence[Encoded]], Tensor]

# So many outputs of a matrix, evenly spaced, are compared: whose a gradient is does not depend on the output.
_OUTPUTS = 64
# A sum that should be 0, as a key bias's gradient, is as large as the rounding of what it adds up: a few units each.
_UNITS = 8


@dataclass(frozen=True)
class Agreement:
    """One row's squares of one parameter: the sum of |the rule's − autograd's|, and of autograd's.

    A batch rounds differently from a row alone, so both may differ by the root of the format's precision (3e-4 in float32,
    0.03 in float16, 0.09 in bfloat16) and by what is rounding altogether. Rows that are mixed up are off by tens of percent.
    """

    difference: float
    size: float
    tolerance: float
    rounding: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.tolerance * self.size + self.rounding

    @property
    def is_empty(self) -> bool:
        """Neither found a gradient: that proves nothing."""
        return self.difference == 0 and self.size == 0


def drop_disagreeing(scores: Scores, rows: Sequence[Encoded], squares: Squares, processes: Processes = ALONE) -> None:
    """Drop the layers that are wrong about these rows; those that no gradient reached stay, unproven."""
    proven, wrong = set[Site](), set[Site]()
    for site, found in _of_all(list(agreements(scores, rows, squares, processes)), processes):
        if not found.holds:
            wrong.add(site)
        elif not found.is_empty:
            proven.add(site)
    squares.drop(wrong)
    squares.unproven = frozenset(squares.sites) - proven


def _of_all(found: list[tuple[Site, Agreement]], processes: Processes) -> Iterator[tuple[Site, Agreement]]:
    """Agreements about whole parameters, where each process has compared its rows of them."""
    sums = torch.tensor([(each.difference, each.size, each.rounding) for _, each in found], dtype=torch.float64)
    for (site, mine), (difference, size, rounding) in zip(found, processes.summed(sums).tolist(), strict=True):
        yield site, Agreement(difference, size, mine.tolerance, rounding)


def agreements(
    scores: Scores, rows: Sequence[Encoded], squares: Squares, processes: Processes = ALONE
) -> Iterator[tuple[Site, Agreement]]:
    """Each layer's rule against autograd, row by row. Layers whose shapes do not fit are dropped on the way."""
    taken = dict[Site, tuple[Tensor, Tensor]]()

    def take(site: Site, entered: Tensor, delta: Tensor) -> None:
        taken[site] = (entered, delta)

    with tapped(squares.sites, len(rows), take) as unfit:
        value = _spread(scores(rows))
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
    squares.drop(unfit)
    wanted = {name: squares.parameters[name] for site in squares.sites for name in site.names.values()}
    with wanting(wanted.values()):
        for number, row in enumerate(rows):
            gradients = gradients_of(_spread(scores([row])), wanted, processes)
            for site in squares.sites:
                mine = [tensor.chunk(len(rows))[number] for tensor in taken.get(site, ())]
                yield from ((site, found) for found in _compared(site, mine, gradients))


def _spread(scores: Tensor) -> Tensor:
    """The scores of even classes minus those of odd ones, absent choices aside.

    Not a log-probability: where a model is sure of a row, that hardly moves, and the row would not count.
    """
    signs = 1 - 2 * (torch.arange(scores.shape[1], device=scores.device) % 2)
    return (scores.masked_fill(scores.isinf(), 0.0) * signs).sum()


@torch.no_grad()
def _compared(site: Site, taken: Sequence[Tensor], gradients: Mapping[str, Tensor]) -> Iterator[Agreement]:
    """One row's agreement for each of the layer's parameters; `taken` is its input and gradient, empty if it did not run."""
    held = {key: p for key, p in site.module.named_parameters(recurse=False) if key in site.names}
    in_parts = any(is_split(p) for p in held.values())  # few rows of each: all outputs are compared
    step = max(1, taken[1].shape[-1] // _OUTPUTS) if taken and site.rule.outputs is not None and not in_parts else 1
    sums = {key: _room(_some(site, key, own(p).view(own_shape(p)), step)) for key, p in held.items()}
    if taken:
        spans = site.spans if in_parts else dict.fromkeys(held, slice(None))
        site.rule.add(site.module, taken[0], taken[1][..., ::step], 1, sums, spans)
    for key, total in sums.items():
        gradient = gradients.get(site.names[key])
        expected = 0 * total if gradient is None else _some(site, key, gradient, step).to(total.dtype).square()
        precision = torch.finfo(held[key].dtype).eps
        rounding = _rounding(taken[1][..., ::step], precision) if taken and key == "bias" else 0.0
        yield Agreement(float((total - expected).abs().sum()), float(expected.sum()), precision**0.5, rounding)


def _some(site: Site, key: str, tensor: Tensor, step: int) -> Tensor:
    """Every so many outputs of a weight, a bias or their gradients."""
    return tensor[:, ::step] if key == "weight" and site.rule.outputs == 1 else tensor[::step]


def _room(tensor: Tensor) -> Tensor:
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return torch.zeros_like(tensor, dtype=dtype, memory_format=torch.contiguous_format)


def _rounding(delta: Tensor, precision: float) -> float:
    """The squares of sums over positions that are nothing but rounding."""
    return float((_UNITS * precision * by_row(delta, 1).abs().sum(1, dtype=torch.float32)).square().sum())


def gradients_of(
    value: Tensor, parameters: Mapping[str, nn.Parameter], processes: Processes = ALONE, *, retain_graph: bool = False
) -> dict[str, Tensor]:
    """The gradients of those parameters that have a part in the value; of split ones those of this process's rows."""
    if not value.requires_grad:
        return {}
    if processes.split:  # all processes ask about the same value: their gradients arrive as a sum of equal ones
        value.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        reached = {name: p.grad / processes.count for name, p in parameters.items() if p.grad is not None}
        for parameter in parameters.values():
            parameter.grad = None
        return {name: own(grad).view(own_shape(grad)) for name, grad in reached.items()}
    found = torch.autograd.grad(value, list(parameters.values()), retain_graph=retain_graph, allow_unused=True)
    return {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}


@contextmanager
def wanting(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """These parameters ask for gradients."""
    before = {parameter: parameter.requires_grad for parameter in parameters}
    try:
        for parameter in before:
            parameter.requires_grad_()
        yield
    finally:
        for parameter, wanted in before.items():
            parameter.requires_grad_(wanted)


Labels = Literal["sampled", "true"]


class Averaging(TypedDict, total=False):
    """The keywords of `fisher_diagonal` that say what is averaged: true labels, or so many drawn for each row."""

    labels: Labels
    samples: int
    seed: int
    batch_size: int


def fisher_diagonal(
    model: nn.Module,
    readout: Readout,
    rows: Sequence[Encoded],
    parameters: Mapping[str, nn.Parameter],
    *,
    labels: Labels = "sampled",
    samples: int = 1,
    seed: int = 0,
    batch_size: int = 32,
    processes: Processes = ALONE,
) -> dict[str, Tensor]:
    """The Fisher diagonal of these parameters (prefix-free names), averaged over the rows and `samples` labels of each.

    Deterministic under a seed: which label is drawn depends on the row's place, not on the batch it runs in. The result lies
    where the parameters lie. Of a model that is split every process runs all rows, squares its own rows of each parameter
    and has these alone: squares of sums over processes would be another thing.
    """
    if not rows:
        raise InputError(f"task {readout.task.name!r}: there are no rows to find the Fisher information on; give some")
    draws = torch.rand(samples, units_of(rows), generator=torch.Generator().manual_seed(seed))
    at = _units(rows)
    squares = Squares(model, parameters)
    with _evaluating(model):
        compared = _to_compare(rows, batch_size)
        drop_disagreeing(lambda some: readout.scores(model, _batch(model, readout, some)), compared, squares, processes)
        for part in by_length(rows, batch_size):
            chosen = draws[:, torch.cat([at[row] for row in part])] if labels == "sampled" else None
            _square(model, readout, [rows[row] for row in part], squares, chosen)
        if squares.slow:
            _square_one_by_one(model, readout, rows, squares, draws if labels == "sampled" else None, processes)
    count = len(rows) * (samples if labels == "sampled" else 1)
    return {name: _mean(name, total, count, parameters[name].dtype) for name, total in squares.sums.items()}


def _square(
    model: nn.Module, readout: Readout, rows: Sequence[Encoded], squares: Squares, chosen: Tensor | None
) -> None:
    """One batch: a forward pass, and a backward pass per drawn label."""
    if not squares.sites:
        return
    batch = _batch(model, readout, rows)
    with squares.listening(len(rows)):
        for value, is_last in _values(readout.scores(model, batch), batch, chosen):
            if value.requires_grad:  # else nothing of the scope has a part in these scores
                value.backward(retain_graph=not is_last)  # type: ignore[no-untyped-call]


def _square_one_by_one(
    model: nn.Module,
    readout: Readout,
    rows: Sequence[Encoded],
    squares: Squares,
    draws: Tensor | None,
    processes: Processes,
) -> None:
    """The parameters that no rule covers: every example alone, its gradient from autograd itself."""
    slow = {name: squares.parameters[name] for name in squares.slow}
    with wanting(slow.values()):
        for row, mine in zip(rows, _units(rows), strict=True):
            batch = _batch(model, readout, [row])
            chosen = None if draws is None else draws[:, mine]
            for value, is_last in _values(readout.scores(model, batch), batch, chosen):
                for name, gradient in gradients_of(value, slow, processes, retain_graph=not is_last).items():
                    squares.sums[name] += gradient.to(squares.sums[name].dtype).square()


def _units(rows: Sequence[Encoded]) -> tuple[Tensor, ...]:
    """Each row's lines among all of them: one, or one for each token of its completion, which is drawn for itself."""
    return torch.split(torch.arange(units_of(rows)), [row.units for row in rows])


def _batch(model: nn.Module, readout: Readout, rows: Sequence[Encoded]) -> Batch:
    return on_device(readout.collate(rows), next(model.parameters()).device)


def _values(scores: Tensor, batch: Batch, chosen: Tensor | None) -> Iterator[tuple[Tensor, bool]]:
    """For each drawn label (or the true one), the sum over rows of its log-probability, and whether it is the last."""
    logs = torch.log_softmax(_precise(scores), -1)
    picks = list(_labels(logs, batch, chosen))
    for number, picked in enumerate(picks, start=1):
        yield logs.gather(1, picked.unsqueeze(1)).sum(), number == len(picks)


def _precise(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _labels(logs: Tensor, batch: Batch, chosen: Tensor | None) -> Iterator[Tensor]:
    """The true labels once, or for each drawn number u the label whose stretch of the cumulated probabilities holds u."""
    if chosen is None:
        yield batch["labels"].to(logs.device)
        return
    cumulated = logs.detach().exp().cumsum(-1)
    for drawn in chosen:
        yield (cumulated < drawn.to(cumulated).unsqueeze(1) * cumulated[:, -1:]).sum(-1)


def _mean(name: str, total: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    if total.numel() and not bool(torch.isfinite(total.max())):
        raise RunError(
            f"{name}: expected finite gradients, found some that are not; a model in {dtype} may need more range: "
            "open it in float32 or bfloat16"
        )
    return total.div_(count).contiguous()


def _to_compare(rows: Sequence[Encoded], batch_size: int) -> list[Encoded]:
    """Two rows (one if batches hold one): the shortest and one of middling length, cheap to run and padded if they differ."""
    order = next(by_length(rows, len(rows)))
    middle, last = (len(order) - 1) // 2, len(order) - 1
    return [rows[order[number]] for number in ((middle, last) if middle < last and batch_size > 1 else (last,))]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """In eval mode, and no parameter asks for gradients: those of activations are enough.

    Weight gradients of the whole batch, a third of the work of a backward pass, are never computed.
    """
    training = {module: module.training for module in model.modules()}
    wanted = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.eval()
    for parameter in wanted:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, before in wanted.items():
            parameter.requires_grad_(before)
        for module, was_training in training.items():
            module.training = was_training
