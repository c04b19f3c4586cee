"""What a model answered about prompts that are completed: the loss of every true completion, and the texts generated.

    found = Completions([3.2, 0.9], [4, 2], [3, 2], prompts=("a", "b"), references=("x y", "z"), task="nl2bash")
    found.losses / found.tokens      # nats per token, row by row

`losses` are sums over a row's tokens in nats, `hits` how many of its tokens were the likeliest next ones, `texts` the greedy
answers (empty where nothing was generated), `cut` the tokens that a row lost to fit the window. The file is an .npz as that of
`Predictions`. Law: `load(found.save(path)) == found`. Refused: NaN, rows of different numbers, more hits than tokens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from skillgraft.errors import InputError, did_you_mean
from skillgraft.predictions.files import Spec, read_arrays, write_arrays

METRICS_OF_COMPLETIONS = ("nll", "perplexity", "token_accuracy", "exact_match", "contains", "callable")
OF_TEXTS = ("exact_match", "contains", "callable")  # those that need generated texts
SPEC = Spec(
    "skillgraft-completions-1",
    {
        name: np.dtype("<f8" if name in ("losses", "values") else "<i8")
        for name in ("losses", "tokens", "hits", "cut", "values")
    },
    ("prompts", "references", "texts", "task", "metric", "made_by"),
)


@dataclass(frozen=True, eq=False)
class Completions:
    """One split's losses and answers. `values` are the numbers that a callable metric gave, empty without one."""

    losses: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]
    hits: npt.NDArray[np.int64]
    prompts: Sequence[str] = field(kw_only=True)
    references: Sequence[str] = field(kw_only=True)
    texts: Sequence[str] = field(default=(), kw_only=True)
    cut: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), kw_only=True)
    values: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), kw_only=True)
    task: str = field(kw_only=True)
    metric: str = field(default="nll", kw_only=True)
    made_by: Mapping[str, str] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        cut = self.cut if len(self.cut) else np.zeros(len(self.tokens), np.int64)
        for name in SPEC.dtypes:
            array = np.array(cut if name == "cut" else getattr(self, name), dtype=SPEC.dtypes[name])
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        for name in ("prompts", "references", "texts"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "made_by", MappingProxyType(dict(self.made_by)))
        _check(self)

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Completions):
            return NotImplemented
        mine, theirs = ([_plain(getattr(each, one.name)) for one in fields(each)] for each in (self, other))
        return mine == theirs

    __hash__ = None  # type: ignore[assignment]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the file whole or not at all, and return its path as given."""
        arrays = {name: getattr(self, name) for name in SPEC.dtypes}
        return write_arrays(path, SPEC, arrays, {name: _plain(getattr(self, name)) for name in SPEC.header})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Completions:
        """Read what `save` wrote; everything is checked before any of it is used."""
        return read_arrays(path, SPEC, cls)


def side_by_side(models: Mapping[str, Any], rows: int = 3) -> list[dict[str, str]]:
    """A few rows, spread evenly: prompt, true completion, and what every model generated; none where nothing was."""
    written = {name: each for name, each in models.items() if isinstance(each, Completions) and each.texts}
    if not written or rows < 1:
        return []
    first = next(iter(written.values()))
    chosen = dict.fromkeys(len(first) * number // rows for number in range(rows))
    return [
        {"prompt": first.prompts[row], "completion": first.references[row]}
        | {name: each.texts[row] for name, each in written.items() if len(each) == len(first)}
        for row in chosen
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _check(found: Completions) -> None:
    rows = len(found.tokens)
    if not found.task or not isinstance(found.task, str):
        raise InputError(f"task must be a name, found {found.task!r}")
    if found.metric not in METRICS_OF_COMPLETIONS:
        known = did_you_mean(str(found.metric), METRICS_OF_COMPLETIONS)
        raise InputError(f"unknown metric of completions {found.metric!r}; {known}")
    sizes = {name: len(getattr(found, name)) for name in ("losses", "hits", "cut", "prompts", "references")}
    sizes |= {name: len(getattr(found, name)) or rows for name in ("texts", "values")}
    if not rows or set(sizes.values()) != {rows} or found.losses.ndim != 1:
        raise InputError(f"expected as many of each as the {rows} rows of tokens, and at least one, found {sizes}")
    texts = [*found.prompts, *found.references, *found.texts, *found.made_by, *found.made_by.values()]
    if not all(isinstance(text, str) for text in texts):
        raise InputError("prompts, references, texts and made_by hold strings only")
    if not np.isfinite(found.losses).all() or not np.isfinite(found.values).all():
        raise InputError("a loss or a value that is not finite; the model that made it diverged")
    if (found.tokens < 1).any() or (found.hits < 0).any() or (found.hits > found.tokens).any() or (found.cut < 0).any():
        raise InputError("expected at least one token in every row, from 0 to all of them hit, and none below 0 cut")
