"""A skill's region over the course of training (P1 D.4, fig. 15).

    finetune(base, ["sst2"], "tuned", checkpoint_every=50)
    tracked = track(base, checkpoints_of("tuned"), "sst2", chosen=3, densities=(1e-4, 1e-3), data=Rows(shots=64))

Regions are learned from what the checkpoint says, not from the true labels; scores are those of the validation rows, by
the true labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skillgraft.errors import InputError
from skillgraft.localize.how_many import HowMany
from skillgraft.localize.methods import Found, method
from skillgraft.localize.problem import Start
from skillgraft.localize.workplace import Rows, Workplace, open_workplace
from skillgraft.measure.summary import summary
from skillgraft.movement import count_of
from skillgraft.region import Region
from skillgraft.tasks import Task

Summary = Mapping[str, Any]
OnCheckpoint = Callable[[int, int], None]


@dataclass(frozen=True)
class Stage:
    """One checkpoint: its own scores, and by density those of the base with its numbers in the chosen checkpoint's region."""

    name: str
    checkpoint: Summary
    grafts: Mapping[float, Summary]


@dataclass(frozen=True)
class Tracked:
    """The regions of the chosen checkpoint by density, and every checkpoint seen through them."""

    chosen: str
    regions: Mapping[float, Region]
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Milestone:
    """One checkpoint's own region: its scores, and how it relates to the last checkpoint's."""

    name: str
    region: Region
    graft: Summary  # share_kept and agreement are against this checkpoint
    jaccard: float
    coverage: float  # how much of the last region is here already


def checkpoints_of(tuned: str | Path) -> list[Path]:
    """The folders that `finetune(…, checkpoint_every=…)` wrote on its way to `tuned`, in order, and that one last."""
    end = Path(tuned)
    steps = sorted((end.parent / f"{end.name}.steps").glob("step-*"))
    if not steps:
        raise InputError(f"{end}.steps holds no checkpoints; fine-tune with checkpoint_every (--checkpoint-every)")
    return [*steps, end]


def track(
    base: str | Path,
    checkpoints: Sequence[str | Path],
    task: str | Path | Task,
    *,
    chosen: int = -1,
    densities: Sequence[float] = (1e-5, 1e-4, 1e-3),
    name: str = "learned",
    scope: str = "layers",
    start: Start = 1e-5,
    data: Rows = Rows(),
    on_checkpoint: OnCheckpoint | None = None,
    **options: Any,
) -> Tracked:
    """P1's figure 15: the regions of one checkpoint, of several densities, put to every checkpoint of the run.

    `chosen` is that checkpoint's place in the list: P1 takes the one from which on training and test scores part. The densities
    are nested budgets of one search.
    """
    folders = _folders(checkpoints, chosen)
    learning = replace(data, labels="tuned")
    with open_workplace(base, folders[chosen], task, scope=scope, data=learning) as place:
        counts = {density: count_of(density, place.problem.scope) for density in densities}
        ranking = _search(place, name, start, most=max(counts.values(), default=1), options=options).ranking
        regions = {density: ranking.top(count) for density, count in counts.items()}
    stages = []
    for done, folder in enumerate(folders, start=1):
        with open_workplace(base, folder, task, scope=scope, data=data) as place:
            grafts = {density: place.told(region) for density, region in regions.items()}
            stages.append(Stage(folder.name, summary(place.tuned_said, base=place.base_said), grafts))
        if on_checkpoint:
            on_checkpoint(done, len(folders))
    return Tracked(folders[chosen].name, regions, tuple(stages))


def own_regions(
    base: str | Path,
    checkpoints: Sequence[str | Path],
    task: str | Path | Task,
    *,
    budget: float | None = None,
    name: str = "learned",
    scope: str = "layers",
    start: Start = 1e-5,
    data: Rows = Rows(),
    on_checkpoint: OnCheckpoint | None = None,
    **options: Any,
) -> tuple[Milestone, ...]:
    """Every checkpoint's own region, and how it grows into the last one's: where a skill settles, and when."""
    folders, how_many = _folders(checkpoints, -1), HowMany(budget)
    found: list[tuple[str, Region, Summary]] = []
    for done, folder in enumerate(folders, start=1):
        with open_workplace(base, folder, task, scope=scope, data=replace(data, labels="tuned")) as place:
            result = _search(place, name, start, most=how_many.most(place.problem.scope), options=options)
            region = how_many.region(result, place.problem.scope, score=place.score, tuned=place.tuned_score)
            found.append((folder.name, region, place.told(region)))
        if on_checkpoint:
            on_checkpoint(done, len(folders))
    last = found[-1][1]
    return tuple(
        Milestone(name, region, graft, region.jaccard(last), region.coverage(of=last)) for name, region, graft in found
    )


def _search(place: Workplace, name: str, start: Start, *, most: int, options: Mapping[str, Any]) -> Found:
    given = {"score": place.score_now, **options} if name == "learned" else options
    return method(name, options)(place.problem, place.start(start), most=most, **given)


def _folders(checkpoints: Sequence[str | Path], chosen: int) -> list[Path]:
    folders = [Path(folder) for folder in checkpoints]
    if not -len(folders) <= chosen < len(folders):
        raise InputError(f"there are {len(folders)} checkpoints; number {chosen} is none of them")
    return folders
