"""Which of a model's parameters can differ from row to row of a batch, and how a change of one entry reaches the output.

A module has a per-row form if an entry of its parameters changes one number of each token's output, by delta times one number
that the token brings (or by delta itself): `nn.Linear`, GPT-2's `Conv1D`, embeddings, and norms of any class that are found to
compute weight · x̂ + bias. That is the whole list. Everything else is refused by name, with the reason.

    forms = RowForms(model)
    forms.refusals(["encoder.layer.0.output.dense.weight"])     # {} : every one of them has a per-row form
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from skillgraft.live.slots import Stored, stored
from skillgraft.live.source_reading import direct_reads
from skillgraft.opening.compat import own_parameters, table_ids
from skillgraft.values.region import Indices, Shape

Columns = npt.NDArray[np.int32]
LINEAR, EMBEDDING, NORM = "linear", "embedding", "norm"
NOTHING = -1  # the input of an entry whose delta is added as it is: a bias


Entries = tuple[Columns, Columns, npt.NDArray[np.float32]]  # inputs, outputs, delta

# A norm's x̂ is read off its own output where that loses nothing: no bias outweighs its weight by more than this.
_BIAS_PER_WEIGHT = {torch.float32: 8.0, torch.float64: 8.0, torch.bfloat16: 1.0, torch.float16: 1.0}
# What no rule finds in the source.
_KNOWN = {
    "DisentangledSelfAttention": "asks its projections about relative positions too",
    "DebertaEncoder": "norms its table of relative positions",
    "DebertaV2Encoder": "norms its table of relative positions",
}


@dataclass(frozen=True, eq=False)
class RowModule:
    """A module that has a per-row form: how an entry of its parameters reaches a token's output.

    A norm has a `unit`, its twin with weight 1 and bias 0, which gives x̂; or, cheaper, its `weight` (with Gemma's 1 added) and
    `bias`, by which x̂ is read off the output.
    """

    path: str
    module: nn.Module
    kind: str
    transposed: bool = False
    scale: float = 1.0  # what an embedding multiplies its rows by
    unit: nn.Module | None = None
    weight: npt.NDArray[np.float32] | None = None
    bias: npt.NDArray[np.float32] | None = None

    @property
    def input_width(self) -> int:
        """How many numbers of a token's input the module reads; of a table, how many tokens it knows."""
        return self.shape[0 if self.transposed or self.kind == EMBEDDING else -1]

    @property
    def output_width(self) -> int:
        """How many numbers the module gives for a token."""
        return self.shape[-1 if self.transposed or self.kind != LINEAR else 0]

    @property
    def shape(self) -> Shape:
        """The weight's shape."""
        weight = own_parameters(self.module)["weight"]
        return tuple(weight.shape) if weight is not None else ()

    def entries(self, key: str, at: Indices, delta: npt.NDArray[np.float32]) -> list[Entries]:
        """Which number of the token's input, times what, is added to which of its output when these entries change by delta."""
        sites = at.astype(np.int32)
        nothing = np.full(len(at), NOTHING, np.int32)
        if key == "bias":
            return [(nothing, sites, delta)]
        if self.kind == NORM:
            if self.weight is None:
                return [(sites, sites, delta)]
            ratio = delta / self.weight[at]  # y = x̂ · w + b, so x̂ · delta = (y − b) · delta / w
            back = [] if self.bias is None else [(nothing, sites, -self.bias[at] * ratio)]
            return [(sites, sites, ratio), *back]
        first, second = (part.astype(np.int32) for part in np.divmod(at, self.shape[1]))
        rows_first = self.kind == EMBEDDING or self.transposed
        return [(first, second, delta) if rows_first else (second, first, delta)]


class RowForms:
    """A model's modules that have a per-row form, looked up once."""

    def __init__(self, model: nn.Module) -> None:
        self.stored: Stored = stored(model)
        self.modules: list[RowModule] = []
        self._owners: dict[int, list[tuple[int, str]]] = defaultdict(list)
        self._refused: dict[int, str] = {}
        ancestors: dict[str, list[nn.Module]] = {"": []}
        for path, module in model.named_modules():
            parent = path.rpartition(".")[0]
            above = ancestors[path] = [*ancestors[parent], model.get_submodule(parent)] if path else []
            if any(tensor is not None for tensor in own_parameters(module).values()):
                self._take(path, module, above)

    def seen(self, model: nn.Module) -> tuple[object, ...]:
        """Which tables and numbers the model has now: another answer means that it was trained, moved or rebuilt."""
        numbers = [
            (tensor.data_ptr(), None if tensor.is_inference() else tensor._version)
            for module in self.modules
            for tensor in own_parameters(module.module).values()
            if tensor is not None
        ]
        return (*table_ids(model), *numbers)

    @cached_property
    def widths(self) -> npt.NDArray[np.int64]:
        """(2, modules): how many numbers of a token each module reads and gives."""
        both = [[module.input_width for module in self.modules], [module.output_width for module in self.modules]]
        return np.array(both, np.int64)

    @cached_property
    def sizes(self) -> npt.NDArray[np.float64]:
        """How many entries each module's matrix has; infinite where it is no matrix."""
        linear = [module.kind == LINEAR for module in self.modules]
        return np.where(linear, [float(np.prod(module.shape)) for module in self.modules], np.inf)

    def owners(self, name: str) -> list[tuple[int, str]]:
        """The modules that a stored tensor is a parameter of: index in `modules`, and the parameter's key there."""
        return self._owners[id(self.stored.slots[name].tensor)]

    def refusals(self, names: Iterable[str]) -> dict[str, str]:
        """Those of the names that cannot differ from row to row, each with the reason."""
        found = {}
        for name in names:
            tensor = self.stored.slots[name].tensor
            if id(tensor) in self._refused:
                found[name] = self._refused[id(tensor)]
            elif id(tensor) not in self._owners:
                found[name] = "no module reads it as its weight or bias"
        return found

    def _take(self, path: str, module: nn.Module, above: list[nn.Module]) -> None:
        reason = _reason(path, above)
        made = reason or _row_module(path, module)
        for key, tensor in own_parameters(module).items():
            if tensor is None:
                continue
            if not isinstance(made, str) and key in ("weight", "bias"):
                self._owners[id(tensor)].append((len(self.modules), key))
            elif isinstance(made, str) and not _only_keeps(module, key):
                self._refused[id(tensor)] = f"{made} ({path or 'the model'}: {type(module).__name__})"
        if not isinstance(made, str):
            self.modules.append(made)


def _only_keeps(module: nn.Module, key: str) -> bool:
    """Whether a module of ours has a parameter that its forward pass never looks at: the bias tied to BERT's decoder."""
    known = direct_reads(type(module))
    return not type(module).__module__.startswith("torch.") and known is not None and key not in known.own


def _reason(path: str, above: list[nn.Module]) -> str:
    """Why nothing at this path can have a per-row form, read off what stands above it; "" if nothing speaks against it."""
    parts = path.split(".")
    if "experts" in parts[:-1]:
        return "tokens are sorted by expert, so that their rows are not known"
    if re.search(r"(^|[._])rel(ative)?_|pos_bias", path):
        return "a table of relative positions has no axis of rows"
    for module in above:
        known = direct_reads(type(module))
        if known is None:
            return f"the source of {type(module).__name__} cannot be read, so how it uses this is not known"
        if parts[-1] in known.children:
            return f"{type(module).__name__} reads its numbers directly"
        if known.moves_rows:
            return f"{type(module).__name__} moves the axis of rows"
        if type(module).__name__ in _KNOWN and (above[-1] is module or not type(module).__name__.endswith("Encoder")):
            return f"{type(module).__name__} {_KNOWN[type(module).__name__]}"
    return ""


def _row_module(path: str, module: nn.Module) -> RowModule | str:
    """The module's per-row form, or why it has none."""
    kind = type(module)
    if kind is nn.Linear:
        return RowModule(path, module, LINEAR)
    if (kind.__module__, kind.__name__) == ("transformers.pytorch_utils", "Conv1D"):
        return RowModule(path, module, LINEAR, transposed=True)
    if isinstance(module, nn.Embedding):
        return _embedding(path, module)
    if "norm" in kind.__name__.lower():
        return _norm(path, module)
    return "this kind of module has no per-row form"


def _embedding(path: str, module: nn.Embedding) -> RowModule | str:
    """A plain table, or one whose rows are multiplied by its own `embed_scale`."""
    if module.max_norm is not None:
        return "a table with max_norm changes itself when it is read"
    if type(module) is nn.Embedding:
        return RowModule(path, module, EMBEDDING)
    scale = getattr(module, "embed_scale", None)
    known = direct_reads(type(module))
    if scale is None or known is None or not known.scales_only:
        return "this kind of table has no per-row form"
    return RowModule(path, module, EMBEDDING, scale=float(scale))


def _norm(path: str, module: nn.Module) -> RowModule | str:
    """A norm of any class that is found to compute (weight + c) · x̂ + bias over the last axis, with c 0 or 1 (Gemma)."""
    names = {key for key, tensor in own_parameters(module).items() if tensor is not None}
    weight = own_parameters(module).get("weight")
    unlike = "this norm is not weight · x̂ + bias over the last axis"
    if weight is None or weight.dim() != 1 or not names <= {"weight", "bias"} or any(True for _ in module.children()):
        return unlike
    try:
        offset = _probed(module, weight)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return unlike
    if offset is None:
        return unlike
    bias = own_parameters(module).get("bias")
    ours = weight.detach().float().cpu().numpy() + np.float32(offset)
    shift = None if bias is None else bias.detach().float().cpu().numpy()
    weighty = (np.abs(ours) > 0) & (
        np.abs(0 if shift is None else shift) <= _BIAS_PER_WEIGHT[weight.dtype] * np.abs(ours)
    )
    if weighty.all():
        return RowModule(path, module, NORM, weight=ours, bias=shift)
    unit = _with(module, weight=torch.full_like(weight, 1 - offset), bias=torch.zeros_like(weight))
    return RowModule(path, module, NORM, unit=unit)


def _probed(module: nn.Module, weight: Tensor) -> float | None:
    """The c of weight + c; None if the norm does something else with its numbers."""
    size = len(weight)
    draw = torch.Generator().manual_seed(0)
    x, w, b = (torch.randn(shape, generator=draw) for shape in ((2, size + 1, size), (size,), (size,)))
    x, w, b = (tensor.to(weight.device, weight.dtype) for tensor in (x, w, b))
    biased = own_parameters(module).get("bias") is not None
    with torch.no_grad():
        zero, one, drawn = (_with(module, weight=at, bias=0 * b)(x).float() for at in (0 * w, 0 * w + 1, w))
        shift = _with(module, weight=w, bias=b)(x).float() - drawn if biased else torch.zeros(())
    unit = one - zero
    offset = float(zero.abs().max() > 0)
    pairs = [(drawn, unit * (w.float() + offset)), (zero, unit * offset), (shift, b.float() if biased else shift)]
    close = 1e-4 if weight.dtype == torch.float32 else 0.06
    return offset if all(((a - b).abs() <= close * (1 + b.abs())).all() for a, b in pairs) else None


def _with(module: nn.Module, **numbers: Tensor) -> nn.Module:
    """A twin of a small module that has these parameters and no hooks; the module itself is not touched."""
    twin = copy.copy(module)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")
    twin.__dict__.update({name: type(module.__dict__[name])() for name in hooks})
    twin.__dict__["_parameters"] = {
        key: None if tensor is None else nn.Parameter(numbers[key].detach(), requires_grad=False)
        for key, tensor in own_parameters(module).items()
    }
    return twin
