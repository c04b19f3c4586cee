"""What verbs printed with `--json`, and what grafts record of themselves, as values that a page can show.

Everything is checked here: a file may have been cut, edited, or printed by another version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from skillgraft.errors import InputError
from skillgraft.measure.intervals import Estimate
from skillgraft.measure.summary import summary
from skillgraft.predictions.completions import side_by_side
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.report.from_values import cell_of, disentanglement_sheet
from skillgraft.report.numbers import Unit
from skillgraft.report.sheet import Cell, Sheet
from skillgraft.values.graft import Graft

P = ParamSpec("P")
T = TypeVar("T")
MEASURES = (
    *("score", "ece", "nll", "perplexity", "token_accuracy", "exact_match", "contains"),
    *("agreement", "share_kept", "relative_gain", "exact_match_kept"),
)
Answer = Mapping[str, str]  # prompt, completion, and what every model wrote


@dataclass(frozen=True)
class Scores:
    """Several models on one split of one task: model → measure → cell. Completions have no majority class.

    `answers` are a few rows' prompts and true completions with what the models wrote.
    """

    task: str
    split: str
    metric: str
    rows: int
    majority: float | None
    models: Mapping[str, Mapping[str, Cell]]
    answers: tuple[Answer, ...] = ()

    @property
    def unit(self) -> Unit:
        """That of the task's own metric."""
        return "number" if self.metric in ("nll", "perplexity", "callable") else "percent"

    def joined(self, other: Scores) -> Scores | None:
        """Both in one table, where they are about the same rows and agree on every model that both know; else None."""
        if (self.task, self.split, self.metric, self.rows) != (other.task, other.split, other.metric, other.rows):
            return None
        shared = [(self.models[name], other.models[name]) for name in self.models.keys() & other.models.keys()]
        # Comparisons are part of it: the same model is compared with other tuned models elsewhere.
        if any(mine[measure] != theirs[measure] for mine, theirs in shared for measure in mine.keys() & theirs.keys()):
            return None
        names = dict.fromkeys([*self.models, *other.models])
        models = {name: {**other.models.get(name, {}), **self.models.get(name, {})} for name in names}
        return replace(self, models=models, answers=self.answers or other.answers)


@dataclass(frozen=True)
class Localized:
    """What `localize` printed: its scores on the validation rows, and the points of its curve over density."""

    method: str
    scores: Scores
    curve: tuple[Mapping[str, Any], ...]
    curve_kind: str


@dataclass(frozen=True)
class ScaleSearch:
    """The scales that were tried, as text, and what each curve says there; and the one that was chosen."""

    curves: Mapping[str, Mapping[str, float]]
    chosen: str


def checked(read: Callable[P, T]) -> Callable[P, T]:
    """Whatever a wrong shape raises becomes one clear error."""

    @wraps(read)
    def checked_read(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
            raise InputError(f"not what skillgraft prints ({error!r}); print it again") from None

    return checked_read


@checked
def evaluation(facts: Mapping[str, Any]) -> tuple[Scores, ...]:
    """The scores that `evaluate --json` printed, a table for each task."""
    answers = dict(facts.get("examples", {}))
    return tuple(
        scores_of(models, split=str(facts["split"]), answers=answers.get(task, ()))
        for task, models in facts["tasks"].items()
    )


@checked
def localization(facts: Mapping[str, Any]) -> Localized:
    """The scores and the curve that `localize --json` printed."""
    curve = [
        dict(point, density=float(point["density"]), score=dict(point["score"])) for point in _points(facts["curve"])
    ]
    for point in curve:
        cell_of(point["score"])
    validation = _named(facts["validation"], Path(facts["out"]).name)
    scores = scores_of(validation, split="validation")
    return Localized(str(facts["method"]), scores, tuple(curve), str(facts.get("curve_kind") or "nested"))


@checked
def scale_search(facts: Mapping[str, Any]) -> ScaleSearch:
    """The points that `combine --scale auto` and `forget` printed: every number of a point is one curve's."""
    curves: dict[str, dict[str, float]] = {}
    for point in _points(facts.get("search", facts)):
        for name, value in _numbers({key: value for key, value in point.items() if key != "scale"}):
            curves.setdefault(name, {})[_scales(point["scale"])] = value
    if not curves:
        raise ValueError("no points")
    return ScaleSearch(curves, _scales(facts["scale"]))


def _scales(found: Any) -> str:
    """One scale, or one for each graft."""
    return ", ".join(f"{float(scale):g}" for scale in (found if isinstance(found, list) else [found]))


@checked
def disentanglement(facts: Mapping[str, Any]) -> Sheet:
    """A map of the disentanglement error, as `compose.maps.DisentanglementMap.as_json` gives it."""
    first, second = map(str, facts["tasks"])
    errors = [[Estimate(**error) for error in row] for row in facts["errors"]]
    return disentanglement_sheet([float(alpha) for alpha in facts["alphas"]], errors, tasks=(first, second))


@checked
def recorded(graft: Graft, file: str) -> tuple[Scores, ...]:
    """The scores that a graft carries: those of `localize` on validation, those of `evaluate --record` by task."""
    found = graft.info.get("scores", {})
    tables = []
    for split, models in found.items():
        if "graft" in models:
            tables.append(scores_of(_named(models, file), split=split))
        else:
            tables += [scores_of({file: model}, split=split) for model in models.values()]
    return tuple(tables)


def _named(models: Mapping[str, Any], file: str) -> dict[str, Any]:
    """`localize` says "graft" of the one it made: here it goes by its file, base first."""
    order = [name for name in ("base", "tuned", "graft") if name in models]
    return {file if name == "graft" else name: models[name] for name in [*order, *(models.keys() - set(order))]}


def predicted(said: Mapping[str, AnyPredictions], *, split: str) -> Scores:
    """Scores computed from saved predictions of the same task and split, by the models' names."""
    base = said.get("base")
    models = {name: _summary(each, base) for name, each in said.items()}
    return scores_of(models, split=split, answers=side_by_side(said))


def _summary(said: AnyPredictions, base: AnyPredictions | None) -> dict[str, Any]:
    try:
        return summary(said, base=None if said is base else base)
    except InputError:  # the base answered other rows
        return summary(said)


def scores_of(
    models: Mapping[str, Mapping[str, Any]], *, split: str, answers: Sequence[Mapping[str, Any]] = ()
) -> Scores:
    """From `measure.summary`'s dictionaries, by model."""
    if not models:
        raise ValueError("no models")
    first = next(iter(models.values()))
    cells = {
        str(name): {measure: cell_of(model[measure]) for measure in MEASURES if measure == "score" or measure in model}
        for name, model in models.items()
    }
    majority = float(first["majority"]) if "majority" in first or "tokens" not in first else None
    head = (str(first["task"]), split, str(first["metric"]), int(first["n"]), majority)
    rows = tuple({str(name): str(text) for name, text in row.items()} for row in answers)
    return Scores(*head, cells, rows)


def _points(found: Any) -> Sequence[Mapping[str, Any]]:
    """The points of a curve: a list, or an object that holds it as `points`."""
    points: Sequence[Mapping[str, Any]] = found["points"] if isinstance(found, Mapping) else found
    return points


def _numbers(found: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number below an object by the names that lead to it; an estimate counts as its value."""
    for key, value in found.items():
        name = f"{prefix} {key.replace('_', ' ')}".strip()
        if isinstance(value, Mapping):
            inner = {name.removesuffix(" value"): value["value"]} if "value" in value else value
            yield from _numbers(inner, "" if "value" in value else name)
        elif isinstance(value, float | int) and not isinstance(value, bool):
            yield name, float(value)
