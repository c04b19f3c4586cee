"""Many skills at once on one live model: every row of a batch is answered with its own.

    bank = SkillBank(model, {"sst2": graft, "bash": "bash.safetensors"})
    with bank.rows(["sst2", None, {"bash": 1.0, "sst2": 0.5}]):
        model(**batch)          # or model.generate(…)

The model's numbers are never written: rows without a skill are the base's own, bit for bit. The others agree with `grafted` to
rounding. What is answered is fixed when `rows` is called; skills may come and go meanwhile, also in other threads. Refused:
grafts of another base, parameters that cannot differ from row to row, names that are not held.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from skillgraft.errors import InputError, RunError, SkillgraftError, did_you_mean
from skillgraft.live.row_batch import RowBatch, UnderWay
from skillgraft.live.row_forms import RowForms
from skillgraft.live.row_skill import RowSkill, row_skill
from skillgraft.values.graft import Graft, GraftLike, graft_of, total

Row = str | Mapping[str, float] | None
Key = tuple[tuple[str, float], ...]  # digests and scales: what a row is answered with
_SUMS_KEPT = 256
_BATCHES_KEPT = 2  # a batch of 32 skills of a language model takes tens of megabytes


@dataclass(frozen=True, eq=False)
class Held:
    """A graft and its form for batches."""

    graft: Graft
    skill: RowSkill

    @property
    def nbytes(self) -> int:
        arrays = (*self.graft.before.values(), *self.graft.change.values(), *self.graft.heads.values())
        return sum(array.nbytes for array in (*arrays, *self.graft.region.sites.values())) + self.skill.nbytes


# Batches belong to the thread or task that entered them; two banks on two models may be under way together.
_UNDER_WAY: ContextVar[tuple[UnderWay, ...]] = ContextVar("skillgraft_rows", default=())


class SkillBank:
    """Any number of grafts of one base, held for the rows of batches on one live model."""

    def __init__(self, model: nn.Module, skills: Mapping[str, GraftLike] | None = None) -> None:
        self._model, self._forms = model, RowForms(model)
        self._held: dict[str, Held] = {}
        self._sums: OrderedDict[Key, RowSkill] = OrderedDict()
        self._batches: OrderedDict[tuple[Key, ...], RowBatch] = OrderedDict()
        self._lock = threading.RLock()
        self._token = object()
        self._handles: list[Any] = []
        weakref.finalize(self, _removed, self._handles)
        self._hook()
        for name, graft in (skills or {}).items():
            self.add(name, graft)

    def __repr__(self) -> str:
        return f"SkillBank({len(self._held)} skills on {type(self._model).__name__})"

    @property
    def names(self) -> list[str]:
        """The skills that are held, in the order in which they came."""
        return list(self._held)

    @property
    def digests(self) -> dict[str, str]:
        """Name → digest of the graft."""
        return {name: held.graft.digest for name, held in self._held.items()}

    @property
    def nbytes(self) -> int:
        """Bytes that the held skills take."""
        with self._lock:
            return sum(held.nbytes for held in self._held.values()) + sum(skill.nbytes for skill in self._sums.values())

    def fits(self, graft: GraftLike) -> None:
        """Raise the reason for which this graft cannot be held; nothing is held."""
        with self._lock:
            self._look_again()
            row_skill(graft_of(graft), self._forms)

    def add(self, name: str, graft: GraftLike, *, replace: bool = False) -> None:
        """Hold a graft under a name; a name that is held already is refused unless `replace`."""
        if not isinstance(name, str) or not name:
            raise InputError(f"a skill needs a name, found {name!r}")
        value = graft_of(graft)
        with self._lock:
            if name in self._held and not replace:
                raise InputError(f"a skill {name!r} is held already; remove it first, or add(…, replace=True)")
            self._look_again()
            self._held = {**self._held, name: Held(value, self._fitted(name, value))}

    def remove(self, name: str) -> None:
        """Let a skill go. A batch under way keeps what it began with."""
        with self._lock:
            digest = self._find(name).graft.digest
            self._held = {other: held for other, held in self._held.items() if other != name}
            for key in [key for key in self._sums if any(digest == part for part, _ in key)]:
                del self._sums[key]
            for rows in [rows for rows in self._batches if any(digest == part for key in rows for part, _ in key)]:
                del self._batches[rows]

    def rows(self, rows: Sequence[Row]) -> EnteredRows:
        """Answer row i of every batch of the model with rows[i]: a name, a mapping name → scale, or None for the base.

        A batch of k rows for each entry (beams, choices) gives all of them that entry's skill. What is answered is fixed by this
        call, which raises whatever is wrong with it. What it gives may be entered again and again, as for every token of a text.
        """
        return EnteredRows(self, UnderWay(self._token, self._batch(rows)))

    def _batch(self, rows: Sequence[Row]) -> RowBatch:
        if isinstance(rows, str) or not rows:
            raise InputError(f"rows() takes one entry for every row of the batch, found {rows!r}")
        with self._lock:
            self._look_again()
            parts = [self._parts(row) for row in rows]
            key = tuple(_key(row) for row in parts)
            batch = self._batches.pop(key, None) or RowBatch(self._forms, [self._skill(row) for row in parts])
            self._batches[key] = batch
            if len(self._batches) > _BATCHES_KEPT:
                self._batches.popitem(last=False)
            return batch

    def _hook(self) -> None:
        _removed(self._handles)
        self._seen = self._forms.seen(self._model)
        for index, module in enumerate(self._forms.modules):
            self._handles.append(module.module.register_forward_hook(_Hook(self._token, index), with_kwargs=True))

    def _look_again(self) -> None:
        """If the model was trained, moved or changed since: what is held is looked up again, or refused as of another base."""
        if self._seen == self._forms.seen(self._model):
            return
        self._forms = RowForms(self._model)
        self._held = {name: Held(held.graft, self._fitted(name, held.graft)) for name, held in self._held.items()}
        self._sums.clear()
        self._batches.clear()
        self._hook()

    def _fitted(self, name: str, graft: Graft) -> RowSkill:
        try:
            return row_skill(graft, self._forms)
        except SkillgraftError as error:
            raise error.within(f"skill {name!r}") from error

    def _parts(self, row: Row) -> list[tuple[Held, float]]:
        """The grafts of a row and their scales; none for the base."""
        if row is None:
            return []
        named = {row: 1.0} if isinstance(row, str) else row
        if not named:
            raise InputError("an empty mapping names no skill; write None for the base")
        return [(self._find(name), _checked(name, scale)) for name, scale in named.items()]

    def _skill(self, parts: list[tuple[Held, float]]) -> RowSkill | None:
        if not parts:
            return None
        if len(parts) == 1 and parts[0][1] == 1.0:
            return parts[0][0].skill
        key = _key(parts)
        if key not in self._sums:
            summed = total([held.graft if scale == 1.0 else scale * held.graft for held, scale in parts])
            self._sums[key] = row_skill(summed, self._forms)
            if len(self._sums) > _SUMS_KEPT:
                self._sums.popitem(last=False)
        self._sums.move_to_end(key)
        return self._sums[key]

    def _find(self, name: str) -> Held:
        held = self._held.get(name)
        if held is None:
            raise InputError(f"no skill {name!r} is held; {did_you_mean(str(name), self._held)}")
        return held


class EnteredRows:
    """The rows of a batch, to be entered with `with`. The bank lives as long as they do: without it nothing answers."""

    def __init__(self, bank: SkillBank, entered: UnderWay) -> None:
        self._bank, self._entered = bank, entered
        self._reset: Token[Any] | None = None

    def __enter__(self) -> None:
        if any(entered.token is self._entered.token for entered in _UNDER_WAY.get()):
            raise InputError("rows() is entered already; leave it before the next batch")
        self._reset = _UNDER_WAY.set((*_UNDER_WAY.get(), self._entered))

    def __exit__(self, kind: object, *_rest: object) -> None:
        assert self._reset is not None
        _UNDER_WAY.reset(self._reset)
        if kind is None and any(self._entered.batch.touched) and not self._entered.asked:
            raise RunError(
                "no module of the bank's model ran inside rows(), so no skill had any effect: ask the model that the bank was "
                "made for, in the thread that entered rows(), and make a bank before the model is compiled"
            )


class _Hook:
    """What a module calls after its own forward pass. A copy of the model has copies of these, which answer to no bank."""

    def __init__(self, token: object, index: int) -> None:
        self._token, self._index = token, index

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Any:
        for entered in _UNDER_WAY.get():
            if entered.token is self._token:
                return entered.answer(self._index, args[0] if args else next(iter(kwargs.values())), output)
        return None


def _key(parts: list[tuple[Held, float]]) -> Key:
    return tuple(sorted((held.graft.digest, scale) for held, scale in parts))


def _removed(handles: list[Any]) -> None:
    while handles:
        handles.pop().remove()


def _checked(name: str, scale: Any) -> float:
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise InputError(f"the scale of {name!r} must be a finite number, found {scale!r}")
    return float(scale)
