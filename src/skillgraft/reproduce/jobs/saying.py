"""Steps that let a model speak: the base, a tuned model, or a graft on the base, about the rows of a task.

Many steps ask about the same rows, so the loaded base and the encoded rows stay in memory from one to the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from skillgraft.checkpoint import Checkpoint
from skillgraft.errors import InputError
from skillgraft.graft import Graft
from skillgraft.measure.predictions import Predictions
from skillgraft.region import Region
from skillgraft.reproduce.jobs.artefacts import SAID, Needs, change_of, model_of, region_of
from skillgraft.reproduce.jobs.job import Job, say_tokens
from skillgraft.tasks import load_task, measured_split
from skillgraft.weight_files import has_adapters

if TYPE_CHECKING:
    from torch import nn

    from skillgraft.readouts.loading import Opened
    from skillgraft.readouts.readout import Encoded


def say(
    out: Path,
    needs: Needs,
    *,
    base: str,
    task: str,
    scale: float = 1.0,
    checkpoint: str = "",
    readout: str = "auto",
    max_length: int | None = None,
    linear: bool = False,
    **rows: Any,
) -> None:
    """What base, a tuned model or a graft on the base says about a task's rows; with a `ticket`, tuned in it and 0 elsewhere.

    `linear` reads the scores of the model linearised around the base; heads take no part in that.
    """
    from skillgraft.measure.predict import predict

    bench = _bench(base, task, readout, max_length, tuple(sorted(rows.items())))
    about = {"model": next(iter(needs), "base"), "split": rows.get("split", "test"), "readout": bench.opened.name}
    if linear:
        change = scale * change_of(needs, base, checkpoint).without_heads()
        _linearised(bench, change, {**about, "scores": "linearised"}).save(out / SAID)
        return
    with _changed(bench, needs, base, scale=scale, checkpoint=checkpoint) as model:
        predict(model, bench.opened.readouts[0], bench.rows, made_by=about).save(out / SAID)


def _linearised(bench: _Bench, change: Graft, about: Mapping[str, str]) -> Predictions:
    from skillgraft.measure.predict import predict
    from skillgraft.training.linearised import post_hoc

    model, readout = bench.opened.model, bench.opened.readouts[0]
    _check_head(bench.opened)
    return predict(model, readout, bench.rows, scores=post_hoc(model, readout, change), made_by=about)


@dataclass(frozen=True, eq=False)
class _Bench:
    """A loaded base and one task's rows."""

    opened: Opened
    rows: Sequence[Encoded]


@lru_cache(maxsize=2)
def _bench(base: str, task: str, readout: str, max_length: int | None, rows: tuple[tuple[str, Any], ...]) -> _Bench:
    chosen = dict(rows)
    examples = measured_split(load_task(task), chosen.pop("split", "test"), **chosen)
    opened = _opened(base, task, readout, max_length)
    return _Bench(opened, opened.readouts[0].encode(examples))


@lru_cache(maxsize=2)
def _opened(base: str, task: str, readout: str, max_length: int | None) -> Opened:
    from skillgraft.readouts.loading import open_readouts

    return open_readouts(base, [load_task(task)], readout=readout, max_length=max_length)


def _changed(
    bench: _Bench, needs: Needs, base: str, *, scale: float, checkpoint: str
) -> AbstractContextManager[nn.Module]:
    """The base with a change on it for as long as the block runs, or a model that is loaded beside it."""
    from skillgraft.live import grafted

    opened = bench.opened
    if not needs:
        _check_head(opened)
        return nullcontext(opened.model)
    if "tuned" in needs and has_adapters(folder := model_of(needs["tuned"], checkpoint)):
        if scale != 1.0 or "ticket" in needs:
            raise InputError("a model with adapters has no entries of its base to scale or to leave out")
        return nullcontext(opened.load(folder))
    change = change_of(needs, base, checkpoint)
    if "ticket" in needs:
        change = ticket(change, region_of(needs["ticket"]), Checkpoint.open(base))
    return grafted(opened.model, change if scale == 1.0 else scale * change)


def _check_head(opened: Opened) -> None:
    if opened.fresh and opened.loader.plan.head == "made":
        raise InputError(
            f"the {opened.name} readout reads a head that comes with tuning: the base has no score of its own"
        )


def ticket(change: Graft, region: Region, base: Checkpoint) -> Graft:
    """The graft that leaves tuned's numbers in the region and makes everything else of its scope 0 (P1 fig. 4b).

    Outside the scope everything is as in the tuned model.
    """
    kept, outside = change & region, change.without_heads().outside(Region.full(region.scope))
    before = {name: base.flat(name) for name in region.scope.shapes}
    after = {name: np.zeros_like(numbers) for name, numbers in before.items()}
    for name, at in region.sites.items():
        after[name][at] = before[name][at]  # entries that tuned left alone
    for name, at in kept.region.sites.items():
        after[name][at] = kept.change[name]
    whole = replace(kept, region=Region.full(region.scope), before=before, change=after)
    return whole + outside if len(outside) else whole


JOBS: Mapping[str, Job] = MappingProxyType({"say": Job(say, say_tokens)})
