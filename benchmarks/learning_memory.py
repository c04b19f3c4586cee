"""Peak memory of learning a region (P1 §2.3) in four layers of RoBERTa-base, beside plain passes and the authors' loop.

Each job has a process of its own and loads the same base; tuned stays in its mapped file. *Ours* runs three steps with
their rounded regions put on, and ranks the entries. *Plain* runs three forward and backward passes with gradients for the
layers: what it needs beyond model and gradients is taken for the activations. The *authors' loop*, written again here, keeps
three models and six dense buffers. What is left of a peak after imports, the rest of the model and the activations is told in
copies of the scope: four are the weights, their gradients, S and the delta; the reference stays in the base's mapped file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn

from measuring import GIGABYTE, MEGABYTE, Figure, Measured, Settings, command, work_folder
from peaks import peak_of
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.live.grafted import parameter_names
from skillgraft.opening.source import silence
from skillgraft.regions.learned import START, MaskPlan, learn
from skillgraft.regions.problem import Problem, Step
from skillgraft.values.names import in_layers
from skillgraft.values.region import Region

_ROWS, _TOKENS, _STEPS = 8, 16, 3
_LR = 1e7
Batch = dict[str, Tensor]


def measure(settings: Settings) -> Measured:
    """copies: of the scope, in ours; authors: their peak / ours, both after imports."""
    with work_folder(settings, needed_bytes=GIGABYTE // 2) as folder:
        scope, rest = _write(folder, small=settings.small)
        jobs: dict[str, Callable[[Path], None]] = {"ours": _ours, "plain": _plain, "authors": _authors}
        peaks = {name: peak_of(job, folder) for name, job in jobs.items()}
    used = {name: peak.peak - peak.baseline for name, peak in peaks.items()}
    activations = used["plain"] - rest - 2 * scope
    copies = {name: (taken - rest - activations) / scope for name, taken in used.items()}
    told = f"scope {scope:.0f} MB, rest of the model {rest:.0f} MB, activations {activations:.0f} MB"
    return Measured(
        {
            "copies": Figure(copies["ours"], f"peak {used['ours']:.0f} MB; {told}"),
            "authors": Figure(
                used["authors"] / used["ours"], f"peak {used['authors']:.0f} MB, {copies['authors']:.1f} copies"
            ),
        },
        {"peaks": {name: vars(peak) for name, peak in peaks.items()}, "copies": copies},
    )


def _write(folder: Path, *, small: bool) -> tuple[float, float]:
    """Base and tuned as folders; MB of the scope and of the rest of the model."""
    torch.manual_seed(0)
    size = {"num_hidden_layers": 1 if small else 4, "vocab_size": 1000 if small else 10_000}
    model = transformers.RobertaModel(transformers.RobertaConfig(**size), add_pooling_layer=False)
    with silence(), torch.no_grad():
        model.save_pretrained(folder / "base")
        for name, parameter in parameter_names(model).items():
            if in_layers(name):
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)
        model.save_pretrained(folder / "tuned")
    nbytes = {name: p.numel() * p.element_size() / MEGABYTE for name, p in parameter_names(model).items()}
    scope = sum(mine for name, mine in nbytes.items() if in_layers(name))
    return scope, sum(nbytes.values()) - scope


def _load(folder: Path) -> nn.Module:
    torch.set_num_threads(1)  # each thread has buffers of its own
    with silence():
        model: nn.Module = transformers.RobertaModel.from_pretrained(folder, add_pooling_layer=False)
    return model.eval()


def _batch() -> Batch:
    ids = torch.randint(5, 1000, (_ROWS, _TOKENS), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": torch.arange(_ROWS) % 2}


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    scores = model(input_ids=batch["input_ids"]).last_hidden_state[:, 0, :2]
    return nn.functional.cross_entropy(scores, batch["labels"])


def _steps(_step: int) -> Step:
    return [(_batch(), 1.0)]


def _ours(folder: Path) -> None:
    tuned = Checkpoint.open(folder / "tuned")
    problem = Problem.between(_load(folder / "base"), tuned, steps=_steps, loss=_loss)
    start = Region(problem.scope, {name: [0] for name in list(problem.scope.shapes)[:20]})
    found = learn(problem, start, MaskPlan(steps=_STEPS, lr=_LR, look_every=1), score=lambda: 0.0)
    found.soft.ranking(most=round(1e-4 * problem.scope.size))


def _plain(folder: Path) -> None:
    model = _load(folder / "base").requires_grad_(False)
    layers = [parameter for name, parameter in parameter_names(model).items() if in_layers(name)]
    for parameter in layers:
        parameter.requires_grad_()
        parameter.data = (
            parameter.data.clone()
        )  # numbers that are written to, as in the others, are not in a mapped file
    for _ in range(_STEPS):
        model.zero_grad(set_to_none=True)
        _loss(model, _batch()).backward()  # type: ignore[no-untyped-call]


def _authors(folder: Path) -> None:
    """Base, tuned and the model in between; S, γ_base, the delta, a gradient's copy, their sum, and the slope."""
    base, tuned, model = (_load(folder / name) for name in ("base", "tuned", "base"))
    mine, before, after = (
        {name: p for name, p in parameter_names(one).items() if in_layers(name)} for one in (model, base, tuned)
    )
    model.requires_grad_(False)
    for name, parameter in mine.items():
        parameter.requires_grad_()
        before[name].data, after[name].data = before[name].data.clone(), after[name].data.clone()
    s = {name: torch.full_like(p, START) for name, p in mine.items()}
    flipped = {name: torch.zeros_like(p) for name, p in mine.items()}
    delta = {name: (after[name] - before[name]).detach() for name in mine}
    for _ in range(_STEPS):
        with torch.no_grad():
            for name, parameter in mine.items():
                soft = torch.sigmoid(s[name])
                gamma = flipped[name] * (1 - soft) + (1 - flipped[name]) * soft
                parameter.copy_(before[name] + gamma * delta[name])
        _loss(model, _batch()).backward()  # type: ignore[no-untyped-call]
        copied = {name: p.grad.detach().clone() for name, p in mine.items() if p.grad is not None}
        total = {name: torch.zeros_like(gradient) for name, gradient in copied.items()}
        for name in total:
            total[name] += copied[name] * delta[name] * (1 - 2 * flipped[name])
        slope = {name: total[name] * torch.sigmoid(s[name]) * (1 - torch.sigmoid(s[name])) for name in total}
        for name in s:
            s[name] -= _LR * slope[name]
        model.zero_grad(set_to_none=False)


if __name__ == "__main__":
    command("learning_memory", measure)
