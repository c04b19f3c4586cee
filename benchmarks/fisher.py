"""The exact Fisher diagonal of MiniLM's layers over 32 × 32 tokens, beside a plain pass and two slower ways to the same numbers.

*Plain* is one ordinary forward and backward pass of the batch with gradients for the layers. The *authors' loop* runs the batch
forward once and sends each example back through the batch's graph on its own. The *batch-1 loop* runs every example alone. All
three ways to the Fisher diagonal use the true labels, and their results are compared before anything is timed.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor, nn

from measuring import Figure, Measured, Settings, command, interleaved, median_ratio
from minilm import made_up_rows, minilm
from skillgraft.live.grafted import parameter_names
from skillgraft.readouts.readout import Encoded, Readout, loss_of
from skillgraft.regions.fisher import fisher_diagonal
from skillgraft.values.names import in_layers

_ROWS = 32
_ROUNDS = 7


def measure(settings: Settings) -> Measured:
    """plain: ours / plain pass; authors, single: that loop / ours."""
    opened, readout = minilm()
    model = opened.model
    parameters = {name: p for name, p in parameter_names(model).items() if in_layers(name)}
    rows = made_up_rows(4 if settings.small else _ROWS)
    _check_same(model, readout, rows, parameters)
    jobs = {
        "ours": lambda: fisher_diagonal(model, readout, rows, parameters, labels="true", batch_size=len(rows)),
        "plain": lambda: _plain(model, readout, rows, parameters),
        "authors": lambda: _each_through_the_batch(model, readout, rows, parameters),
        "single": lambda: _one_by_one(model, readout, rows, parameters),
    }
    seconds = interleaved(jobs, rounds=2 if settings.small else _ROUNDS)
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    taken = ", ".join(f"{name} {value:.2f} s" for name, value in medians.items())
    return Measured(
        {
            "plain": Figure(median_ratio(seconds["ours"], seconds["plain"]), taken),
            "authors": Figure(
                median_ratio(seconds["authors"], seconds["ours"]), "each example back through the batch's graph"
            ),
            "single": Figure(
                median_ratio(seconds["single"], seconds["ours"]), "every example alone, forward and backward"
            ),
        },
        {"median_seconds": medians, "seconds": seconds},
    )


def _wanted(model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    model.eval().requires_grad_(False)
    for parameter in parameters.values():
        parameter.requires_grad_()


def _plain(model: nn.Module, readout: Readout, rows: list[Encoded], parameters: dict[str, nn.Parameter]) -> None:
    _wanted(model, parameters)
    batch = readout.collate(rows)
    loss_of(readout.scores(model, batch), batch["labels"]).backward()  # type: ignore[no-untyped-call]
    model.zero_grad(set_to_none=True)


def _each_through_the_batch(
    model: nn.Module, readout: Readout, rows: list[Encoded], parameters: dict[str, nn.Parameter]
) -> dict[str, Tensor]:
    _wanted(model, parameters)
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    batch = readout.collate(rows)
    logs = torch.log_softmax(readout.scores(model, batch), -1)
    for index, label in enumerate(batch["labels"].tolist()):
        _add(sums, torch.autograd.grad(logs[index, label], list(parameters.values()), retain_graph=True))
    return sums


def _one_by_one(
    model: nn.Module, readout: Readout, rows: list[Encoded], parameters: dict[str, nn.Parameter]
) -> dict[str, Tensor]:
    _wanted(model, parameters)
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for row in rows:
        batch = readout.collate([row])
        logs = torch.log_softmax(readout.scores(model, batch), -1)
        _add(sums, torch.autograd.grad(logs[0, row.label], list(parameters.values())))
    return sums


def _add(sums: dict[str, Tensor], gradients: tuple[Tensor, ...]) -> None:
    for total, gradient in zip(sums.values(), gradients, strict=True):
        total.addcmul_(gradient, gradient)


def _check_same(model: nn.Module, readout: Readout, rows: list[Encoded], parameters: dict[str, nn.Parameter]) -> None:
    expected = _one_by_one(model, readout, rows, parameters)
    found = fisher_diagonal(model, readout, rows, parameters, labels="true")
    largest = max(float(total.max()) for total in expected.values())  # key biases have no gradient, only rounding
    for name, total in expected.items():
        torch.testing.assert_close(found[name] * len(rows), total, rtol=1e-3, atol=1e-6 * largest, msg=name)


if __name__ == "__main__":
    command("fisher", measure)
