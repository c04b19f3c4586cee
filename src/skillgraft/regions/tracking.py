"""A skill's region over the course of training (P1 D.4, fig. 15).

    finetune(base, ["sst2"], out="tuned", plan=TrainingPlan(checkpoint_every=50))
    tracked = track(base, checkpoints_of("tuned"), "sst2", chosen=3, densities=(1e-4, 1e-3), data=Data(shots=64))

Regions are learned from what the checkpoint predicts, not from the true labels; scores are those of the validation rows, by
the true labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skillgraft.errors import InputError
from skillgraft.folders.movement import count_of
from skillgraft.measure.summary import summary
from skillgraft.regions.methods import P1
from skillgraft.regions.search import Searching, SearchPlan
from skillgraft.regions.tuned_pair import open_pair
from skillgraft.tasks.data import Data, TaskLike, as_task
from skillgraft.values.region import Region

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
    """The folders that `finetune` wrote every so many steps on its way to `tuned`, in order, and that one last."""
    end = Path(tuned)
    steps = sorted((end.parent / f"{end.name}.steps").glob("step-*"))
    if not steps:
        raise InputError(f"{end}.steps holds no checkpoints; fine-tune with checkpoint_every (--checkpoint-every)")
    return [*steps, end]


def track(
    base: str | Path,
    checkpoints: Sequence[str | Path],
    task: TaskLike,
    *,
    chosen: int = -1,
    densities: Sequence[float] = (1e-5, 1e-4, 1e-3),
    data: Data = Data(),
    on_checkpoint: OnCheckpoint | None = None,
    **asked: Any,
) -> Tracked:
    """P1's figure 15: the regions of one checkpoint, of several densities, put to every checkpoint of the run.

    `chosen` is that checkpoint's index in the list: P1 takes the one from which on training and test scores part. The
    densities are nested budgets of one search, whose settings `asked` are fields of `SearchPlan` and the method's options; P1's
    method unless another is asked for.
    """
    folders, name = _folders(checkpoints, chosen), as_task(task).name
    plan = SearchPlan.of(**{"method": P1, "densities": tuple(densities), **asked}).seeded(data.seed)
    with open_pair(base, folders[chosen], [task], plan=replace(plan, labels="tuned"), data=data) as pair:
        scope = pair.problem.scope
        # The ranking is asked for, not the method's own number of entries: a budget keeps steps from being compared.
        most = replace(pair.plan, entries=max(count_of(scope, density=density) for density in densities))
        ranking = Searching(pair.problem, most, pair).best(pair.start(plan.start)).found.ranking
        regions = {density: ranking.top(count_of(scope, density=density)) for density in densities}
    stages = []
    for done, folder in enumerate(folders, start=1):
        with open_pair(base, folder, [task], plan=plan, data=data) as pair:
            grafts = {density: pair.summary(name, region) for density, region in regions.items()}
            own = summary(pair.tuned_predictions(name), base=pair.base_predictions(name))
            stages.append(Stage(folder.name, own, grafts))
        if on_checkpoint:
            on_checkpoint(done, len(folders))
    return Tracked(folders[chosen].name, regions, tuple(stages))


def own_regions(
    base: str | Path,
    checkpoints: Sequence[str | Path],
    task: TaskLike,
    *,
    data: Data = Data(),
    on_checkpoint: OnCheckpoint | None = None,
    **asked: Any,
) -> tuple[Milestone, ...]:
    """Every checkpoint's own region, and how it grows into the last one's: where a skill settles, and when."""
    folders, name = _folders(checkpoints, -1), as_task(task).name
    plan = replace(SearchPlan.of(**{"method": P1, **asked}).seeded(data.seed), labels="tuned")
    found: list[tuple[str, Region, Summary]] = []
    for done, folder in enumerate(folders, start=1):
        with open_pair(base, folder, [task], plan=plan, data=data) as pair:
            region = Searching(pair.problem, plan, pair).best(pair.start(plan.start)).region
            found.append((folder.name, region, pair.summary(name, region)))
        if on_checkpoint:
            on_checkpoint(done, len(folders))
    last = found[-1][1]
    return tuple(
        Milestone(name, region, graft, region.jaccard(last), region.coverage(of=last)) for name, region, graft in found
    )


def _folders(checkpoints: Sequence[str | Path], chosen: int) -> list[Path]:
    folders = [Path(folder) for folder in checkpoints]
    if not -len(folders) <= chosen < len(folders):
        raise InputError(f"there are {len(folders)} checkpoints; number {chosen} is none of them")
    return folders
