"""A search among candidates in a bfloat16 language model, beside plain forward and backward passes of the same batches.

*Step*: one step of the budgeted search among 5 % of the layers, with the region written and the slopes read, beside one plain
forward and backward pass with gradients for the same parameters. *Memory*: peak anonymous memory of loading and a search of
three steps, less the activations, in sizes of the model. The activations are what plain passes need beyond the model where each
gradient is dropped as it is made. The model's numbers are copied into memory of their own first: in a mapped file they would
not count. *Full* is the learned region over the whole scope, for comparison.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

from measuring import GIGABYTE, MEGABYTE, Figure, Measured, Settings, command, interleaved, median_ratio, work_folder
from peaks import peak_of
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.live.grafted import parameter_names
from skillgraft.opening.source import silence
from skillgraft.regions.budgeted import learn_within_budget
from skillgraft.regions.candidates import Candidates, most_moved_of
from skillgraft.regions.learned import MaskPlan, learn
from skillgraft.regions.problem import Problem, Step
from skillgraft.values.names import in_layers
from skillgraft.values.region import Region

_ROWS, _TOKENS, _STEPS = 8, 48, 3
_SHARE, _DENSITY = 0.05, 1e-3
Batch = dict[str, Tensor]


def measure(settings: Settings) -> Measured:
    """step: ours / plain; memory: sizes of the model; full: the same of the full search."""
    with work_folder(settings, needed_bytes=GIGABYTE) as folder:
        size = _write(folder, small=settings.small)
        jobs: dict[str, Callable[[Path], None]] = {"ours": _ours, "plain": _plain, "full": _full}
        peaks = {name: peak_of(job, folder) for name, job in jobs.items()}
        seconds = _steps_of(folder, rounds=2 if settings.small else 9)
    used = {name: peak.peak - peak.baseline for name, peak in peaks.items()}
    activations = used["plain"] - size
    sizes = {name: (taken - activations) / size for name, taken in used.items()}
    times = ", ".join(f"{name} {statistics.median(found):.2f} s" for name, found in seconds.items())
    told = f"model {size:.0f} MB, activations {activations:.0f} MB"
    return Measured(
        {
            "step": Figure(median_ratio(seconds["ours"], seconds["plain"]), times),
            "memory": Figure(sizes["ours"], f"peak {used['ours']:.0f} MB; {told}"),
            "full": Figure(sizes["full"], f"peak {used['full']:.0f} MB"),
        },
        {"peaks": {name: vars(peak) for name, peak in peaks.items()}, "sizes": sizes, "seconds": seconds},
    )


def _write(folder: Path, *, small: bool) -> float:
    """A model of SmolLM2's shape, half as deep, and a tuned one, as bfloat16 folders; the size in MB."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1_000 if small else 16_000, hidden_size=64 if small else 576, intermediate_size=96 if small else 1536,
        num_hidden_layers=2 if small else 15, num_attention_heads=8, num_key_value_heads=4, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    with silence(), torch.no_grad():
        model.save_pretrained(folder / "base")
        for name, parameter in parameter_names(model).items():
            if in_layers(name):
                parameter.add_(torch.randn_like(parameter), alpha=1e-2)
        model.save_pretrained(folder / "tuned")
    return sum(p.numel() * p.element_size() for p in model.parameters()) / MEGABYTE


def _load(folder: Path) -> nn.Module:
    torch.set_num_threads(1)  # each thread has buffers of its own
    with silence():
        model: nn.Module = transformers.LlamaForCausalLM.from_pretrained(folder / "base", dtype=torch.bfloat16)
    for parameter in model.requires_grad_(False).parameters():
        parameter.data = parameter.data.clone()
    return model.eval()


def _batch(model: nn.Module) -> Batch:
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(5, model.config.vocab_size, (_ROWS, _TOKENS), generator=draw)  # type: ignore[union-attr, arg-type]
    return {"input_ids": ids, "labels": ids}


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def _problem(folder: Path) -> Problem:
    model = _load(folder)
    batch = _batch(model)

    def steps(_step: int) -> Step:
        return [(batch, 1.0)]

    return Problem.between(model, Checkpoint.open(folder / "tuned"), steps=steps, loss=_loss)


def _ours(folder: Path) -> None:
    problem = _problem(folder)
    learn_within_budget(problem, budget=round(_DENSITY * problem.scope.size), steps=_STEPS, candidates=_SHARE)


def _full(folder: Path) -> None:
    problem = _problem(folder)
    learn(problem, Region(problem.scope, {}), MaskPlan(steps=_STEPS, lr=1e7)).soft.ranking(
        most=round(_DENSITY * problem.scope.size)
    )


def _plain(folder: Path) -> None:
    model = _load(folder)
    _wanting(model)
    for _ in range(_STEPS):
        _loss(model, _batch(model)).backward()  # type: ignore[no-untyped-call]


def _wanting(model: nn.Module) -> list[torch.utils.hooks.RemovableHandle]:
    """Gradients for the layers, each dropped as soon as it is there."""

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    layers = [parameter for name, parameter in parameter_names(model).items() if in_layers(name)]
    return [p.requires_grad_().register_post_accumulate_grad_hook(drop) for p in layers]  # type: ignore[no-untyped-call]


def _steps_of(folder: Path, *, rounds: int) -> dict[str, list[float]]:
    problem = _problem(folder)
    among = Candidates(problem, most_moved_of(problem, round(_SHARE * problem.scope.size)))
    among.values.copy_(among.delta.abs())
    budget, batch = round(_DENSITY * problem.scope.size), _batch(problem.model)
    with problem.among(among.at) as touched:

        def ours() -> None:
            touched.put_on(among.sites(among.best(budget)))
            among.backward(0)
            among.values.add_(among.slope)

        def plain() -> None:
            _loss(problem.model, batch).backward()  # type: ignore[no-untyped-call]
            problem.model.zero_grad(set_to_none=True)

        return interleaved({"ours": ours, "plain": plain}, rounds=rounds)


if __name__ == "__main__":
    command("candidate_search", measure)
