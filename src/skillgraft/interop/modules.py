"""What the base's tensors are called where adapters go: the modules of the loaded model, as PEFT and vLLM name them.

An adapter belongs to linear layers (`nn.Linear`, or GPT-2's `Conv1D`, which keeps its matrix as (in, out)). Everything else has
no adapter form: biases, LayerNorms, embeddings, convolutions, and what transformers fuses as it loads (the experts of a layer).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from skillgraft.errors import InputError, WrongBase, listed
from skillgraft.folders.apply import check
from skillgraft.folders.checkpoint import Checkpoint
from skillgraft.folders.ledger import changes_architecture
from skillgraft.values.graft import Graft
from skillgraft.values.names import body_prefix, is_embedding, kind_of

# What a class of transformers is for, as PEFT calls it.
TASK_TYPES = {
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
}


@dataclass(frozen=True)
class Module:
    """A linear layer of the loaded model; `transposed` if it keeps its matrix as (in, out)."""

    path: str
    transposed: bool


@dataclass(frozen=True)
class Modules:
    """The linear layers by the prefix-free names of their weights, and what the model is."""

    source: Checkpoint
    linear: Mapping[str, Module]
    prefix: str
    architecture: str
    library: str

    @classmethod
    def of(cls, source: Checkpoint, graft: Graft) -> Modules:
        """Of the model that the graft makes of this base: heads may bring an architecture of their own."""
        from torch import nn
        from transformers.pytorch_utils import Conv1D

        from skillgraft.live.slots import layout
        from skillgraft.opening.source import Source

        settings = dict(graft.info) if changes_architecture(graft) else {}
        named = settings.get("architectures") or source.config.get("architectures") or []
        if not named:
            raise InputError(
                f"{source.path}/config.json names no architecture; an adapter needs one to know its modules"
            )
        model = Source.of(source.path).skeleton(str(named[0]))
        plan = layout(model)
        prefix = body_prefix(plan.names)
        stored = {own: folder for own, pieces in plan.pieces.items() for folder, part in pieces.items() if part is None}
        linear = {
            stored[f"{path}.weight"].removeprefix(prefix): Module(path, isinstance(module, Conv1D))
            for path, module in model.named_modules()
            if isinstance(module, nn.Linear | Conv1D) and f"{path}.weight" in stored
        }
        return cls(source, linear, prefix, str(named[0]), type(model).__module__)

    def has_form(self, name: str) -> bool:
        """Whether the tensor is the matrix of a linear layer of its own (tied to no embedding)."""
        return name in self.linear and not is_embedding(name) and name not in self.source.twins

    def settings(self, heads: Iterable[str]) -> dict[str, Any]:
        """What every adapter_config.json says about the model. Whole heads are PEFT's `modules_to_save`."""
        task = next((task for ending, task in TASK_TYPES.items() if self.architecture.endswith(ending)), None)
        mapping = {"base_model_class": self.architecture, "parent_library": self.library}
        return {
            "base_model_name_or_path": self.source.name,
            "task_type": task,
            "auto_mapping": None if task else mapping,
            "inference_mode": True,
            "modules_to_save": sorted({self._saved_module(name) for name in heads}) or None,
        }

    def head_name(self, name: str, graft: Graft) -> str:
        """What a head is called in the loaded model: under the body's prefix if tuned had it there."""
        inside = name in graft.info.get("body_heads", [])
        inside = inside or (name in self.source.places and self.source.under_prefix(name))
        return self.prefix + name if inside else name

    def _saved_module(self, name: str) -> str:
        return name.split(".", 1)[0]


def opened(graft: Graft, base: str | Any) -> Modules:
    """The graft's own base, checked, with its modules."""
    report = check(base, graft)
    if not report.fits:
        raise WrongBase(report.problem)
    return Modules.of(Checkpoint.open(base), graft)


def without_form(graft: Graft, modules: Modules) -> dict[str, int]:
    """Kind → how many of the graft's entries lie where an adapter has no form for them."""
    counts: Counter[str] = Counter()
    for name, at in graft.region.sites.items():
        if not modules.has_form(name):
            kind = kind_of(name)
            counts["embeddings" if kind == "other" and is_embedding(name) else kind] += len(at)
    return dict(counts)


def refuse_without_form(graft: Graft, modules: Modules, *, drop: bool, form: str) -> dict[str, int]:
    """The counts of `without_form`; an error unless they may be dropped."""
    lost = without_form(graft, modules)
    if lost and not drop:
        total = sum(lost.values())
        parts = listed([f"{count:,} in {kind}" for kind, count in lost.items()])
        raise InputError(
            f"{total:,} of {len(graft):,} entries have no {form} form ({parts}); leave them out with drop=True (--drop), "
            "or localize with --scope matrices"
        )
    return lost
