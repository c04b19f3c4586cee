"""Take one skill out of a model and leave the others: base − scale · delta (P2, task negation).

The scale is the one with the lowest accuracy on the target task among those at which every control task keeps `keep` of the
base's accuracy, all on validation rows. 21 scales are tried, from 0 to 3 and 0.15 apart. Accuracy decides for tasks that are
scored by F1 too: F1 rises where a model without the skill answers yes to everything. Where prompts are completed the task's own
metric decides; a loss is to rise on the target, and on controls at most to base's loss / `keep`. Where some scale leaves fewer
prompts completed exactly than the base, the one that leaves the fewest decides before the loss, and of equal ones the smallest.
Controls may be files of plain text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from skillgraft.compose.scales import POINTS, ROWS, Scaled, as_graft, at_scale, scale_grid
from skillgraft.errors import InputError
from skillgraft.measure.metrics import METRICS, is_loss
from skillgraft.opening.runtime import Progress, Runtime, silent
from skillgraft.predictions.completions import Completions
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.task_model import VALIDATION, TaskModel
from skillgraft.tasks.data import Data, TaskLike, as_rows, load_tasks
from skillgraft.values.graft import Graft

MOST = 3.0  # the largest scale (P2): a skill goes on being taken out beyond its own length
# Accuracies are fractions of whole rows: 0.95 of 0.8 must count as kept by 0.76, whatever the last bit.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Trial:
    """One scale: the tasks' accuracies there, and whether every control keeps enough.

    Tasks whose prompts are completed have `nll`, and `exact`: the share of rows whose every token was the likeliest after the
    true ones before it, which is what greedy generation gives back token for token.
    """

    scale: float
    scores: Mapping[str, float]
    keeps: bool
    nll: Mapping[str, float] = field(default_factory=dict)
    exact: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        own = {"scale": self.scale, "scores": dict(self.scores), "keeps": self.keeps}
        return {**own, "nll": dict(self.nll), "exact": dict(self.exact)} if self.exact else own


@dataclass(frozen=True)
class Forgotten:
    """The negated graft, the scale that was chosen, and every scale that was tried; the first trial is the base."""

    graft: Graft
    chosen: Trial
    trials: tuple[Trial, ...]

    def as_json(self) -> dict[str, Any]:
        scores, base = dict(self.chosen.scores), dict(self.trials[0].scores)
        points = [trial.as_json() for trial in self.trials]
        return {"scale": self.chosen.scale, "scores": scores, "base": base, "points": points}


def forget(
    base: str | Path,
    graft: Graft | str | Path,
    *,
    task: TaskLike,
    controls: Sequence[TaskLike],
    linear: bool = False,
    data: Data = Data(validation_rows=ROWS),
    runtime: Runtime = Runtime(),
    **asked: Any,
) -> Graft:
    """The negated graft that lowers the task most and leaves the controls alone; `negate` has the options.

    The graft may be given as its file, or as a tuned folder that stands for all that it changes. `linear` asks the model
    linearised around the base. `data` must be what the graft was trained with: it says which rows validate. Every scale that
    was tried is in the recipe.
    """
    runtime.check_whole("forget")
    asked_about = load_tasks([task, *map(as_rows, controls)])
    names = [each.name for each in asked_about]
    opened = TaskModel.open(
        base, asked_about, data=data, dtype=runtime.dtype, device=runtime.device, splits=(VALIDATION,)
    )
    change = as_graft(graft, base)
    along = Scaled(opened, (change,), linear=linear)
    found = negate(along, target=names[0], controls=names[1:], progress=runtime.progress, **asked)
    made_of = {"forget": names[0], "controls": names[1:], "graft": change.digest}
    recipe = {**made_of, "linear": linear, **asked, **asdict(data), **found.as_json()}
    return found.graft.with_info(recipe=recipe, command=runtime.command or None)


def negate(
    along: Scaled,
    *,
    target: str,
    controls: Sequence[str],
    keep: float = 0.95,
    points: int = POINTS,
    most: float = MOST,
    or_base: bool = False,
    progress: Progress = silent,
) -> Forgotten:
    """−scale · graft for the scale that lowers the target most, of `points` from 0 to `most`; of equal ones the smallest.

    Where no scale above 0 keeps the controls, or none of these lowers the target, that is an error which says what was found;
    with `or_base` it is the base, at scale 0, as a table of measured methods has it.
    """
    if not 0 < keep <= 1:
        raise InputError(f"the share of a control's accuracy to keep lies above 0 and is at most 1, found {keep}")
    if not controls or target in controls:
        raise InputError(f"forgetting {target!r} needs control tasks other than itself, found {list(controls)}")
    (graft,) = along.grafts
    trials: list[Trial] = []
    losses: frozenset[str] = frozenset()
    grid = scale_grid(points, most=most)
    for number, scale in enumerate(grid, start=1):
        found = along.predict(-scale, tasks=[target, *controls])
        scores = {task: _score(predictions) for task, predictions in found.items()}
        losses = frozenset(task for task, predictions in found.items() if is_loss(predictions))
        base = trials[0].scores if trials else scores
        kept = all(_keeps(scores[task], base[task], keep, is_loss=task in losses) for task in controls)
        completed = {task: each for task, each in found.items() if isinstance(each, Completions)}
        nll = {task: METRICS["nll"](each) for task, each in completed.items()}
        exact = {task: float((each.hits == each.tokens).mean()) for task, each in completed.items()}
        trials.append(Trial(scale, scores, kept, nll, exact))
        progress(number, len(grid), {})
    keeping = [each for each in trials if each.keeps]
    chosen = min(keeping, key=_left(keeping, target, losses))
    if chosen.scale == 0.0 and not or_base:
        raise InputError(_why_not(trials, target, controls, keep, losses))
    # The scores that the graft carries are its own, not those of what is made of it here.
    return Forgotten(at_scale(graft, -chosen.scale).with_info(scores=None), chosen, tuple(trials))


def _left(trials: Sequence[Trial], target: str, losses: frozenset[str]) -> Callable[[Trial], tuple[float, float]]:
    """What there still is of the target at a scale, the least being the best; then the scale. The first trial is the base."""
    if target in losses and any(each.exact[target] < trials[0].exact[target] for each in trials):
        return lambda trial: (trial.exact[target], trial.scale)
    sign = -1 if target in losses else 1
    return lambda trial: (sign * trial.scores[target], trial.scale)


def _score(predictions: AnyPredictions) -> float:
    """Accuracy; where prompts are completed the task's own metric."""
    return METRICS["score" if isinstance(predictions, Completions) else "accuracy"](predictions)


def _keeps(score: float, base: float, keep: float, *, is_loss: bool) -> bool:
    """At least this share of base's score; a loss at most base's divided by it."""
    return score <= base / keep + _ROUNDING if is_loss else score >= keep * base - _ROUNDING


def _why_not(trials: Sequence[Trial], target: str, controls: Sequence[str], keep: float, losses: frozenset[str]) -> str:
    base = trials[0]
    keeping = [trial for trial in trials[1:] if trial.keeps]
    if keeping:
        worst = (max if target in losses else min)(trial.scores[target] for trial in keeping)
        return (
            f"no scale {'raises the loss of' if target in losses else 'lowers'} {target}: it scores "
            f"{base.scores[target]:.4f} on the base and {worst:.4f} at best among the "
            f"{len(keeping)} scales that keep {keep:.0%} of the controls; use a graft that holds this skill"
        )
    first = trials[1]
    scores = ", ".join(f"{task} {base.scores[task]:.4f} → {first.scores[task]:.4f}" for task in [target, *controls])
    return (
        f"no scale above 0 keeps {keep:.0%} of the controls' scores; at the smallest, {first.scale:g}: {scores}; try more "
        "points, a smaller share to keep, or a sparser graft"
    )
