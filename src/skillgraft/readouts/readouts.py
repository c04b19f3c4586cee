"""Which readout each task gets, and how the model that they read is loaded.

Everything about tasks, prompts, words and files is checked before the weights are loaded. `TaskModel.open` is the only caller.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.opening.compat import in_one_format
from skillgraft.opening.shards import split
from skillgraft.opening.source import Source
from skillgraft.readouts.causal import plan_causal
from skillgraft.readouts.choice import plan_choice
from skillgraft.readouts.completion import plan_completion
from skillgraft.readouts.linear import plan_linear
from skillgraft.readouts.masked import plan_masked
from skillgraft.readouts.prototypes import plan_prototypes
from skillgraft.readouts.readout import Options, Plan, Readout
from skillgraft.readouts.text_head import TWO_TOWERS, plan_text_head
from skillgraft.tasks import Task
from skillgraft.values.names import is_head, natural_key

_SENTENCE_FILES = ("modules.json", "sentence_bert_config.json")
_MASKED = ("ForMaskedLM", "BertForPreTraining")  # ElectraForPreTraining has no masked-LM head
_CAUSAL = ("ForCausalLM", "LMHeadModel")


def choose_readout(base: Source | str | Path, task: Task) -> tuple[str, str]:
    """The readout's name, and why, in words for a log line."""
    source = base if isinstance(base, Source) else Source.of(base)
    for name, reason in _fitting(source, task):
        return name, reason
    found = f"no readout fits {source.name} ({_architecture(source) or 'unknown architecture'}) and the"
    if task.kind == "complete":
        raise InputError(f"{found} task {task.name!r}: completing prompts needs a causal language model")
    raise InputError(
        f"{found} multiple-choice task {task.name!r}: a language model needs a [prompt] table in its file, an encoder a "
        "[describe] table"
    )


def _fitting(source: Source, task: Task) -> Iterator[tuple[str, str]]:
    """Every readout that fits, the best first."""
    kind = "a GGUF file" if source.gguf else _architecture(source)
    if task.kind == "complete":
        if source.gguf or kind.endswith(_CAUSAL):
            yield "completion", f"{kind} is a causal language model, and {task.name} has prompts to complete"
        return
    if task.kind == "image" or kind.endswith("Classification"):
        yield from _by_label(source, task, kind)
        return
    if any(source.file(name) for name in _SENTENCE_FILES) and task.describe:
        yield "text-head", f"a sentence encoder, and {task.name} has descriptions"
    if kind.endswith(_MASKED) and "masked" in task.prompts:
        yield "masked", f"{kind} has a masked-LM head, and {task.name} a masked prompt"
    yield from _generating(source, task, kind)
    if task.describe and (task.kind == "choice" or source.settings.get("model_type") in TWO_TOWERS):
        yield "text-head", f"{kind or 'an encoder'} embeds texts, and {task.name} has descriptions"
    if task.kind != "choice":
        yield "linear", f"{kind or 'its architecture'} and the prompts of {task.name} fit no other readout"


def _by_label(source: Source, task: Task, kind: str) -> Iterator[tuple[str, str]]:
    if task.kind == "image" and source.settings.get("model_type") in TWO_TOWERS and task.describe:
        yield "text-head", f"the model embeds images and texts alike, and {task.name} has descriptions"
    if task.kind != "choice":
        yield "linear", f"{kind or 'its architecture'} is read with a classifier"


def _generating(source: Source, task: Task, kind: str) -> Iterator[tuple[str, str]]:
    is_seq2seq = bool(source.settings.get("is_encoder_decoder"))
    is_causal = bool(source.gguf) or kind.endswith(_CAUSAL)
    can_rank = "choice" in task.prompts or "causal" in task.prompts
    if is_seq2seq and can_rank:
        yield "choice", f"{kind} is a seq2seq model: it ranks whole answers"
    if is_causal and task.kind == "choice" and can_rank:
        yield "choice", f"{kind} is a causal language model, and {task.name} is multiple choice"
    if is_causal and "causal" in task.prompts:
        yield "causal", f"{kind} is a causal language model, and {task.name} has a causal prompt"
    if is_causal and can_rank:
        yield "choice", f"{kind} is a causal language model, and {task.name} has answers to rank"


def _architecture(source: Source) -> str:
    stated = source.settings.get("architectures") or [""]
    return str(stated[0])


# A plain table: a readout of one's own is one more row, added from anywhere.
READOUTS: dict[str, Callable[[Source, Sequence[Task], Options], Plan]] = {
    "masked": plan_masked,
    "causal": plan_causal,
    "choice": plan_choice,
    "linear": plan_linear,
    "text-head": plan_text_head,
    "prototypes": plan_prototypes,
    "completion": plan_completion,
}
AUTO = "auto"


@dataclass(frozen=True)
class Loader:
    """How the model of a plan is loaded: from the base, and again from any tuned folder of the same architecture.

    `attention` None lets transformers take what the architecture supports; forward-mode derivatives need "eager". `shard` splits
    it over the processes.
    """

    plan: Plan
    dtype: torch.dtype
    device: torch.device
    attention: str | None = None
    seed: int = 0
    shard: bool = False

    def __call__(self, source: Source) -> tuple[nn.Module, tuple[str, ...]]:
        """The model in eval mode on its device, and the names of its tensors that no file held.

        Those are drawn from `seed`, whatever has been drawn before; the caller's random state is left as it was.
        """
        config = copy.deepcopy(source.config)
        for key, value in self.plan.config.items():
            setattr(config, key, value)
        options: dict[str, Any] = {"ignore_mismatched_sizes": True} if self.plan.head == "made" else {}
        options |= {"attn_implementation": self.attention} if self.attention else {}
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            model, info = source.load(self.plan.loader, config=config, dtype=self.dtype, **options)
        fresh = _fresh(info)
        _check_fresh(source, self.plan, model, fresh)
        in_one_format(model, self.dtype)
        return split(model, self.device) if self.shard else model.to(self.device), fresh


def choose_plan(
    source: Source, tasks: Sequence[Task], *, readout: str = AUTO, options: Options = Options()
) -> tuple[Plan, str]:
    """What the tasks' readouts need of the model, settled before any weights are loaded, and the readouts' names."""
    names = [_name(source, task, readout) for task in tasks]
    return _joint_plan(source, tasks, names, options), "+".join(dict.fromkeys(names))


def why_readout(base: Source | str | Path, task: Task, readout: str = AUTO) -> tuple[str, str]:
    """Which readout a task gets when this one is asked for, and why, for a line of the results."""
    return choose_readout(base, task) if readout == AUTO else (readout, "asked for with --readout")


def _name(source: Source, task: Task, readout: str) -> str:
    if readout == AUTO:
        return choose_readout(source, task)[0]
    if readout not in READOUTS:
        raise InputError(f"no readout {readout!r}: {did_you_mean(readout, (AUTO, *READOUTS))}")
    if task.kind == "complete" and readout != "completion":
        raise InputError(
            f"task {task.name!r} has prompts to complete: its readout is completion, not {readout!r}; use auto"
        )
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
