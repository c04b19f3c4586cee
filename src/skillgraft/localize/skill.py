"""From a base and a tuned folder to a graft: find the region of a task's skill, cut the graft, tell what it keeps.

    located = localize_skill("MiniLM", "tuned", "sst2", budget=1e-4, data=Rows(shots=64))
    located.graft.info["scores"]["validation"]["graft"]["accuracy"]

Everything about data and folders is checked before the model is loaded. Scores are those of the validation rows; the test
rows are `evaluate`'s alone. Several processes share the rows of each step; with `out`, a killed search resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from skillgraft import atomic
from skillgraft.errors import InputError, did_you_mean
from skillgraft.graft import Graft
from skillgraft.graft_file import save
from skillgraft.localize.amplifying import best_attempt, factors_of
from skillgraft.localize.curves import KINDS, NESTED, PAPER, Point, nested_curve, paper_curve
from skillgraft.localize.how_many import HowMany
from skillgraft.localize.methods import SEEDED, STEP_ROWS, Found, method
from skillgraft.localize.problem import EMPTY as EMPTY
from skillgraft.localize.problem import Reference, Start
from skillgraft.localize.workplace import Rows as Rows
from skillgraft.localize.workplace import Workplace, open_workplace
from skillgraft.region import Region
from skillgraft.tasks import Task
from skillgraft.training.snapshot import Snapshot


@dataclass(frozen=True)
class Located:
    """What was found: the graft (with its scores in the provenance), and the scores of every density asked for."""

    graft: Graft
    curve: tuple[Point, ...] = ()


def localize_skill(
    base: str | Path,
    tuned: str | Path,
    task: str | Path | Task,
    *,
    name: str = "learned",
    scope: str = "layers",
    start: Start = 1e-5,
    budget: float | None = None,
    keep: float | None = None,
    densities: Sequence[float] = (),
    curve: str = NESTED,
    reference: Reference = "base",
    amplify: float | str = 1.0,
    data: Rows = Rows(),
    out: str | Path | None = None,
    command: str = "",
    snapshot_seconds: float = 60.0,
    **options: Any,
) -> Located:
    """Localize one task's skill by the method `name`, whose own settings are `options`.

    `budget` takes that many entries; `keep` the fewest that keep this share of tuned's score; neither: γ > ½.
    `start` is γ_base: a density, "empty", or a region file. `densities` are points of a `curve`: over nested budgets of
    this search, or as in the paper with a search for each. `amplify` searches, and cuts, with a multiple of tuned's change;
    "auto" finds the multiple on the rows that are told about. With `out` the graft is saved there; killed and called again
    with the same arguments, the learned region's search then goes on where it was.
    """
    how_many, search = HowMany(budget, keep), method(name, options)
    factors = factors_of(amplify, reference=reference)
    _check_curve(curve, name)
    target = Path(out) if out is not None else None
    if target is not None:
        atomic.check_target(target)
    if name in SEEDED:
        options.setdefault("seed", data.seed)
    data = replace(data, batch_size=data.batch_size or STEP_ROWS.get(name))
    with open_workplace(base, tuned, task, scope=scope, reference=reference, data=data) as whole:
        most = how_many.most(whole.problem.scope, densities if curve == NESTED else ())
        begin = whole.start(start)

        def attempt(factor: float) -> tuple[_Search, Found, Region]:
            plan = _Search(whole.amplified(factor), name, options, reference, factor, target, snapshot_seconds)
            place = plan.place
            found = search(place.problem, begin, most=most, **plan.settings(begin, compare=how_many.is_own))
            return plan, found, how_many.region(found, place.problem.scope, score=place.score, tuned=place.tuned_score)

        plan, found, region = best_attempt(
            factors, attempt, lambda tried: how_many.merit(tried[2], tried[0].place.score)
        )
        place, scores = plan.place, plan.place.scores(region)
        if curve == PAPER:
            points = paper_curve(place, densities, plan.region, kept=plan.snapshot("curve", densities=densities))
        else:
            points = nested_curve(place, found, densities)
        asked = {"start": str(start), "budget": budget, "keep": keep, "scope": scope, "reference": reference}
        asked |= {"amplify": plan.factor} if factors != (1.0,) else {}
        recipe = {**asked, **asdict(data), **plan.plain, **({"search": found.facts} if found.facts else {})}
        graft = (plan.factor * place.cut(region)).with_info(
            method=name, recipe=recipe, scores={"validation": scores}, command=command or None
        )
        if target is not None and place.problem.processes.is_main:
            save(graft, target)
            for factor in factors:
                replace(plan, factor=factor).clean_up()
    return Located(graft, points)


@dataclass(frozen=True, eq=False)
class _Search:
    """How a method is run here, again and again in the same way, and where it is kept."""

    place: Workplace
    name: str
    options: Mapping[str, Any]
    reference: Reference
    factor: float
    out: Path | None
    snapshot_seconds: float

    @property
    def plain(self) -> dict[str, Any]:
        """The options that a recipe can tell."""
        return {key: value for key, value in self.options.items() if not callable(value)}

    def settings(self, begin: Region, *, part: str = "", compare: bool = True) -> dict[str, Any]:
        """The method's settings for a search from this start. Steps are compared only where that decides something."""
        if self.name != "learned":
            return dict(self.options)
        kept = {"snapshot": self.snapshot(part, start=begin.digest), "snapshot_seconds": self.snapshot_seconds}
        score = self.place.score_now if compare or self.options.get("patience") else None
        return {"score": score, **kept, **self.options}

    def region(self, begin: Region) -> Region:
        """γ > ½ of a search from this start: a point of P1's curve."""
        found: Found = method(self.name)(self.place.problem, begin, most=1, **self.settings(begin, part="point"))
        return HowMany().region(found, self.place.problem.scope, score=self.place.score, tuned=self.place.tuned_score)

    def snapshot(self, part: str, **settings: Any) -> Snapshot | None:
        """The file beside the output that this part of the work resumes from."""
        if self.out is None:
            return None
        everything = {**self.place.identity, **self.plain, **settings}
        everything |= {"scope": self.place.problem.scope.label, "reference": self.reference, "factor": self.factor}
        return Snapshot.beside(self._beside(part), everything)

    def clean_up(self) -> None:
        """Remove what a resumed run would need: the output is there."""
        if self.out is not None:
            for part in ("", "point", "curve"):
                Snapshot.beside(self._beside(part), {}).delete()

    def _beside(self, part: str) -> Path:
        assert self.out is not None
        factor = f"x{self.factor:g}" if self.factor != 1.0 else ""
        return self.out.with_name(".".join(filter(None, (self.out.name, factor, part))))


def _check_curve(curve: str, name: str) -> None:
    if curve not in KINDS:
        raise InputError(f"unknown curve {curve!r}; {did_you_mean(curve, KINDS)}")
    if curve == PAPER and name != "learned":
        raise InputError(
            f"the paper's curve starts a learned region from each density; {name!r} has no start: ask for the nested curve"
        )
