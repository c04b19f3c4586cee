"""What verbs print with `--json`, and what grafts record of themselves, as values that a page can show.

A file is what its `format` says, name and version. Everything else is checked too: a file may have been cut or edited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skillgraft.errors import InputError
from skillgraft.measure.intervals import Estimate
from skillgraft.measure.summary import summary
from skillgraft.predictions.completions import side_by_side
from skillgraft.predictions.predictions import AnyPredictions
from skillgraft.report.sheet import Cell, Sheet
from skillgraft.report.value_sheets import cell_of, disentanglement_sheet
from skillgraft.values import info
from skillgraft.values.graft import Graft
from skillgraft.values.printing import Unit

MEASURES = (
    *("score", "ece", "nll", "perplexity", "token_accuracy", "exact_match", "contains"),
    *("agreement", "share_kept", "relative_gain", "exact_match_kept"),
)
ROLES = ("base", "tuned", "graft", "sum", "forgotten")


@dataclass(frozen=True)
class Role:
    """What a model is (one of ROLES; "" where nobody says), and the task, or tasks, that it was made for."""

    role: str = ""
    tasks: tuple[str, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any], name: str) -> Role:
        """From what predictions and evaluations say of a model; a name may say it too."""
        tasks = tuple(filter(None, str(facts.get("tasks", "")).split(", ")))
        role = str(facts.get("role", name if name in ROLES else ""))
        return cls(role if role in ROLES and not {"temperature", "shift"} & facts.keys() else "", tasks)


@dataclass(frozen=True)
class Scores:
    """Several models on one split of one task: model → measure → cell, and what each model is.

    Completions have no majority class; `answers` are a few rows' prompts and true completions with what the models wrote.
    """

    task: str
    split: str
    metric: str
    rows: int
    majority: float | None
    models: Mapping[str, Mapping[str, Cell]]
    roles: Mapping[str, Role] = field(default_factory=dict, compare=False)
    answers: tuple[Mapping[str, str], ...] = ()

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
        roles = {**other.roles, **self.roles}
        return replace(self, models=models, roles=roles, answers=self.answers or other.answers)

    @property
    def title(self) -> str:
        return f"{self.task}, {self.rows:,} {self.split} rows"


@dataclass(frozen=True)
class Localized:
    """What `localize` printed: its scores on the validation rows, and the points of its curve over density."""

    method: str
    scores: Scores
    curve: tuple[Mapping[str, Any], ...]
    curve_kind: str


@dataclass(frozen=True)
class ScaleCurves:
    """The scales that were tried, as text, and what each curve says there; and the one that was chosen."""

    curves: Mapping[str, Mapping[str, float]]
    chosen: str


def read(facts: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The kind of an artefact and its value; None where its format is not one of ours."""
    name, _, version = str(facts.get("format", "")).rpartition(" ")
    kind = next((kind for kind in READERS if info.FORMATS[kind].rpartition(" ")[0] == name), None)
    if kind is None:
        return None
    if facts["format"] != info.FORMATS[kind]:
        raise InputError(f"expected {info.FORMATS[kind]!r}, found version {version}: another skillgraft printed this")
    return kind, checked(READERS[kind], facts)


def checked(reader: Callable[..., Any], *facts: Any) -> Any:
    """What the reader makes of the facts; whatever a wrong shape raises becomes one clear error."""
    try:
        return reader(*facts)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, IndexError) as error:
        raise InputError(f"not what skillgraft prints ({error!r}); print it again") from None


def _evaluation(facts: Mapping[str, Any]) -> tuple[Scores, ...]:
    """The scores that `evaluate --json` printed, a table for each task."""
    roles = {str(name): Role.of(each, str(name)) for name, each in dict(facts.get("models", {})).items()}
    answers, split = dict(facts.get("examples", {})), str(facts["split"])
    return tuple(
        _scores(models, roles, split=split, answers=answers.get(task, ())) for task, models in facts["tasks"].items()
    )


def _localization(facts: Mapping[str, Any]) -> Localized:
    """The scores and the curve that `localize --json` printed."""
    curve = [
        dict(point, density=float(point["density"]), score=dict(point["score"])) for point in _points(facts["curve"])
    ]
    for point in curve:
        cell_of(point["score"])
    scores = _scores(*_by_file(facts["validation"], Path(facts["out"]).name), split="validation")
    return Localized(str(facts["method"]), scores, tuple(curve), str(facts.get("curve_kind") or "nested"))


def _scale_curves(facts: Mapping[str, Any]) -> ScaleCurves:
    """The points that `combine --scale auto` and `forget` printed: every number of a point is one curve's."""
    curves: dict[str, dict[str, float]] = {}
    for point in _points(facts.get("search", facts)):
        for name, value in _numbers({key: value for key, value in point.items() if key != "scale"}):
            curves.setdefault(name, {})[_scales(point["scale"])] = value
    if not curves:
        raise ValueError("no points")
    return ScaleCurves(curves, _scales(facts["scale"]))


def _scales(found: Any) -> str:
    """One scale, or one for each graft."""
    return ", ".join(f"{float(scale):g}" for scale in (found if isinstance(found, list) else [found]))


def _disentanglement(facts: Mapping[str, Any]) -> Sheet:
    """A map of the disentanglement error, as `compose.maps.DisentanglementMap.as_json` gives it."""
    first, second = map(str, facts["tasks"])
    errors = [[Estimate(**error) for error in row] for row in facts["errors"]]
    return disentanglement_sheet([float(alpha) for alpha in facts["alphas"]], errors, tasks=(first, second))


READERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = MappingProxyType(
    {
        "evaluation": _evaluation,
        "localization": _localization,
        "scales": _scale_curves,
        "map": _disentanglement,
    }
)


def recorded(graft: Graft, file: str) -> tuple[Scores, ...]:
    """The scores that a graft carries: those of `localize` on validation, those of `evaluate --record` by task."""
    tables = []
    for split, models in graft.info.get("scores", {}).items():
        if "graft" in models:
            tables.append(_scores(*_by_file(models, file), split=split))
        else:
            tables += [_scores({file: model}, split=split) for model in models.values()]
    return tuple(tables)


def _by_file(models: Mapping[str, Any], file: str) -> tuple[dict[str, Any], dict[str, Role]]:
    """`localize` calls the one it made "graft": here it goes by its file, base first. And what each model is."""
    order = [*(name for name in ("base", "tuned", "graft") if name in models)]
    names = {name: file if name == "graft" else name for name in [*order, *(models.keys() - set(order))]}
    tasks = tuple({str(model["task"]) for model in models.values()})
    roles = {name: Role(role if role in ROLES else "", tasks) for role, name in names.items()}
    return {name: models[given] for given, name in names.items()}, roles


def predicted(models: Mapping[str, AnyPredictions], *, split: str) -> Scores:
    """Scores computed from saved predictions of the same task and split, by the models' names."""
    roles = {name: Role.of(each.made_by, name) for name, each in models.items()}
    references = [_only(models, roles, role) for role in ("base", "tuned")]

    def summarised(each: AnyPredictions) -> dict[str, Any]:
        base, tuned = (None if other is each else other for other in references)
        try:
            return summary(each, base=base, tuned=tuned)
        except InputError:  # the others answered other rows
            return summary(each)

    summaries = {name: summarised(each) for name, each in models.items()}
    return _scores(summaries, roles, split=split, answers=side_by_side(models))


def _only(models: Mapping[str, AnyPredictions], roles: Mapping[str, Role], role: str) -> AnyPredictions | None:
    """The one model of that role; of several tuned models the one of this very task."""
    found = [name for name in models if roles[name].role == role]
    own = [name for name in found if roles[name].tasks == (models[name].task,)]
    return models[own[0]] if len(own) == 1 else models[found[0]] if len(found) == 1 else None


def _scores(
    models: Mapping[str, Mapping[str, Any]],
    roles: Mapping[str, Role] = MappingProxyType({}),
    *,
    split: str,
    answers: Sequence[Mapping[str, Any]] = (),
) -> Scores:
    """From `measure.summary`'s dictionaries, by model."""
    if not models:
        raise ValueError("no models")
    first = next(iter(models.values()))
    cells = {
        str(name): {measure: cell_of(model[measure]) for measure in MEASURES if measure == "score" or measure in model}
        for name, model in models.items()
    }
    known = {name: roles.get(name) or Role.of({}, name) for name in cells}
    majority = float(first["majority"]) if "majority" in first or "tokens" not in first else None
    head = (str(first["task"]), split, str(first["metric"]), int(first["n"]), majority)
    rows = tuple({str(name): str(text) for name, text in row.items()} for row in answers)
    return Scores(*head, cells, known, rows)


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
