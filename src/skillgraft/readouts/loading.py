"""One model and a readout per task over it.

    opened = open_readouts("roberta-base", [load_task("sst2")])
    scores = opened.readouts[0].scores(opened.model, batch)

Everything about tasks, prompts, words and files is checked before the weights are loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from skillgraft.bottleneck import Adapters
from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.names import is_head, natural_key
from skillgraft.readouts.auto import choose_readout
from skillgraft.readouts.causal import plan_causal
from skillgraft.readouts.choice import plan_choice
from skillgraft.readouts.linear import plan_linear
from skillgraft.readouts.masked import plan_masked
from skillgraft.readouts.plan import Options, Plan
from skillgraft.readouts.prototypes import plan_prototypes
from skillgraft.readouts.readout import Readout
from skillgraft.readouts.source import Source
from skillgraft.readouts.text_head import plan_text_head
from skillgraft.tasks import Task
from skillgraft.weight_files import ADAPTER, has_adapters, refuse_adapters

READOUTS: Mapping[str, Callable[[Source, Sequence[Task], Options], Plan]] = {
    "masked": plan_masked,
    "causal": plan_causal,
    "choice": plan_choice,
    "linear": plan_linear,
    "text-head": plan_text_head,
    "prototypes": plan_prototypes,
}
AUTO = "auto"


@dataclass(frozen=True)
class Loader:
    """How the model of a plan is loaded: from the base, and again from any tuned folder of the same architecture."""

    plan: Plan
    dtype: torch.dtype
    attention: str
    seed: int

    def __call__(self, source: Source) -> tuple[nn.Module, tuple[str, ...]]:
        """The model in eval mode, and the names of its tensors that no file held.

        Those are drawn from `seed`, whatever has been drawn before; the caller's random state is left as it was.
        """
        config = copy.deepcopy(source.config)
        for key, value in self.plan.config.items():
            setattr(config, key, value)
        options = {"ignore_mismatched_sizes": True} if self.plan.head == "made" else {}
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            model, info = source.load(
                self.plan.loader, config=config, dtype=self.dtype, attn_implementation=self.attention, **options
            )
        fresh = _fresh(info)
        _check_fresh(source, self.plan, model, fresh)
        return model, fresh


@dataclass(frozen=True)
class Opened:
    """A model with one readout per task. `name` says which, `fresh` which tensors were made here and not read."""

    model: nn.Module
    readouts: tuple[Readout, ...]
    name: str
    fresh: tuple[str, ...]
    source: Source
    loader: Loader

    @property
    def reads_heads(self) -> bool:
        """Whether the scores are read off heads that hold the task's classes (classifier, with its pooler)."""
        return self.loader.plan.head == "made"

    def load(self, folder: str | Path) -> nn.Module:
        """Another model for the same readouts: a tuned folder of this base, its bottleneck adapters attached."""
        source = Source.of(folder)
        source.check_weights()
        model, fresh = self.loader(source)
        if fresh and self.loader.plan.head == "made":
            raise InputError(f"{folder} lacks {listed(fresh)}, which the {self.name} readout reads")
        if has_adapters(folder):
            Adapters.load(Path(folder) / ADAPTER).attach(model)
        return model


def open_readouts(
    base: str | Path,
    tasks: Sequence[Task],
    *,
    readout: str = AUTO,
    dtype: torch.dtype | None = None,
    max_length: int | None = None,
    pad_multiple: int = 1,
    length_normalised: bool = False,
    attention: str = "sdpa",
    seed: int = 0,
) -> Opened:
    """The model of a folder, hub name or GGUF file, in float32 unless `dtype` says otherwise, and each task's readout.

    `attention`: "sdpa" and "eager" train equally fast on a CPU; forward-mode derivatives (`torch.func.jvp`) need "eager",
    or torch's math kernel for "sdpa". `seed` fixes a fresh linear head; `length_normalised` is for choice ranking.
    """
    refuse_adapters(base)
    source = Source.of(base)
    names = [_name(base, task, readout) for task in tasks]
    source.check_weights()
    options = Options(max_length, pad_multiple, length_normalised)
    plan = _joint_plan(source, tasks, names, options)
    loader = Loader(plan, dtype or torch.float32, attention, seed)
    model, fresh = loader(source)
    return Opened(model, plan.bind(model), "+".join(dict.fromkeys(names)), fresh, source, loader)


def _name(base: str | Path, task: Task, readout: str) -> str:
    if readout == AUTO:
        return choose_readout(base, task)[0]
    if readout not in READOUTS:
        raise InputError(f"no readout {readout!r}: {did_you_mean(readout, (AUTO, *READOUTS))}")
    return readout


def _joint_plan(source: Source, tasks: Sequence[Task], names: Sequence[str], options: Options) -> Plan:
    """One plan for all tasks. Readouts of several kinds can share a model that one Auto class loads (causal and choice)."""
    if not tasks:
        raise InputError("no task given; expected at least one")
    groups = {name: [task for task, its in zip(tasks, names, strict=True) if its == name] for name in names}
    plans = {name: READOUTS[name](source, group, options) for name, group in groups.items()}
    if len({plan.loader for plan in plans.values()}) > 1:
        wanted = listed(f"{task.name} ({name})" for task, name in zip(tasks, names, strict=True))
        raise InputError(
            f"{source.name}: these tasks need different models: {wanted}; give one readout for all of them"
        )

    def bind(model: nn.Module) -> tuple[Readout, ...]:
        bound = {name: iter(plan.bind(model)) for name, plan in plans.items()}
        return tuple(next(bound[name]) for name in names)

    first = plans[names[0]]
    return Plan(first.loader, bind, first.head, first.config)


def _fresh(info: Mapping[str, Any]) -> tuple[str, ...]:
    mismatched = (name for name, *_shapes in info["mismatched_keys"])
    return tuple(sorted({*info["missing_keys"], *mismatched}, key=natural_key))


def _check_fresh(source: Source, plan: Plan, model: Any, fresh: Sequence[str]) -> None:
    """Refuses a model whose body, or whose LM head that the readout reads, is not in the files."""
    prefix = f"{model.base_model_prefix}." if model.base_model is not model else ""
    body = [name for name in fresh if name.startswith(prefix) and not is_head(name)]
    if body:
        found = f"{listed(body)} are not in its files, or have another shape"
        raise InputError(f"{source.name} cannot be loaded as a {type(model).__name__}: {found}")
    if fresh and plan.head == "stored":
        raise InputError(
            f"{source.name} has no language-model head: {listed(fresh)} are not in its files; "
            "use the linear or the text-head readout"
        )
