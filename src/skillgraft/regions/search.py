"""How a region is searched, whatever the model: `SearchPlan` says what is wanted, `search` runs the method.

A budget is a density, a number of entries, or a share of tuned's score (`keep`) or of its gain over base (`keep_gain`); without
one the learned method says itself how many (γ > ½), and a search that serves one budget takes P1's density. For a share the
smallest graft is looked for: a method whose search serves one budget (budgeted) is searched again at each that is tried, up to
the whole scope. A `scale` above 1 searches, and cuts, a multiple of tuned's change: a small region keeps the direction of a
skill, but most of the distance that tuned went is outside it. Scale 1 is P1's graft; "auto" tries 1 to 16, and beyond while it
helps, each with a search of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, get_args

from skillgraft.errors import InputError, did_you_mean, listed
from skillgraft.folders.movement import check_budget, count_of
from skillgraft.opening.runtime import MixedPrecision, Runtime
from skillgraft.regions.methods import DEFAULT, METHODS, P1, MethodResult, method
from skillgraft.regions.problem import Problem, Reference, Start
from skillgraft.training.snapshot import Snapshot
from skillgraft.values.region import Region, Scope

AUTO = "auto"
SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)  # that "auto" tries; then it doubles while the largest is the best
LARGEST_SCALE = 1024.0
P1_DENSITY = 1e-4  # where the search for the smallest graft begins; what a method is given that cannot say how many
P1_ROWS = 1024  # of one step
BUDGETS = ("density", "entries", "keep", "keep_gain")
NESTED, PAPER, EACH = "nested", "paper", "each"
# What each curve over densities is, in words for whoever reads a table.
CURVES: Mapping[str, str] = {
    NESTED: "nested budgets of one search",
    PAPER: "a search of its own from γ_base = the most moved entries of each density (P1)",
    EACH: "a search of its own for each density",
}


@dataclass(frozen=True)
class SearchPlan:
    """What to search for: the method with its own `options`, how many entries, where, from which labels.

    `density` is a share of the scope, `entries` a count; `keep` is the share of tuned's score, `keep_gain` that of its gain over
    base, which the fewest entries must keep. With `max_rank` the region uses at most so many rows and columns of a matrix
    (scope="matrices"), as an adapter can. `start` is γ_base: a density, "empty", a region or its file. `labels` "tuned"
    learns tuned's own answers instead, as KL to their whole distribution (P1 D.4). `control_strength` weighs the KL to base's
    answers on control rows; "auto" searches it. `densities` are points of a `curve`. `batch_size` is the rows of one step.
    `mixed_precision` "bf16" takes gradients with matrix products in bfloat16; scores are measured in the model's own format.
    `checkpoint_activations` computes them again instead of keeping them.
    """

    method: str = DEFAULT
    density: float | None = None
    entries: int | None = None
    keep: float | None = None
    keep_gain: float | None = None
    scope: str = "layers"
    max_rank: int | None = None
    start: Start = 1e-5
    reference: Reference = "base"
    scale: float | str = 1.0
    labels: str = "true"
    control_strength: float | str = AUTO
    batch_size: int | None = None
    densities: tuple[float, ...] = ()
    curve: str = NESTED
    mixed_precision: MixedPrecision = "no"
    checkpoint_activations: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        method(self.method, self.options)
        check_budget(self.density, self.entries)
        if isinstance(self.start, int | float):
            check_budget(self.start, None)
        budgets = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(budgets) > 1:
            raise InputError(
                f"give a density, a number of entries, or a share to keep of the score or of the gain, one of them; "
                f"found {listed(budgets)}"
            )
        for name in ("keep", "keep_gain"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise InputError(f"a share to keep lies between 0 and 1, found {share}")
        strength = self.control_strength
        if strength != AUTO and (isinstance(strength, str) or not 0 <= strength < math.inf):
            raise InputError(f"control_strength is a number of at least 0, or {AUTO!r}; found {strength!r}")
        if self.scale != AUTO and (isinstance(self.scale, str) or not 0 < self.scale < math.inf):
            raise InputError(f"scale is a number above 0, or {AUTO!r}; found {self.scale!r}")
        if self.scale != 1.0 and self.reference != "base":
            raise InputError(f"scale is for grafts on the base: with the reference {self.reference!r} leave it at 1")
        if self.labels not in ("true", "tuned"):
            raise InputError(f"labels are 'true' or 'tuned', found {self.labels!r}")
        if self.max_rank is not None and self.max_rank < 1:
            raise InputError(f"max_rank is 1 or more, found {self.max_rank}")
        if self.max_rank is not None and self.method == "random":
            raise InputError(
                "max_rank chooses lines by what moved, which a random region does not look at: leave it out"
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"batch_size must be 1 or more, found {self.batch_size}")
        if self.mixed_precision not in get_args(MixedPrecision):
            raise InputError(f"mixed_precision is 'no' or 'bf16', found {self.mixed_precision!r}")
        if self.curve not in (NESTED, PAPER):
            raise InputError(f"unknown curve {self.curve!r}; {did_you_mean(self.curve, (NESTED, PAPER))}")
        if self.curve == PAPER and self.method != P1:
            raise InputError(
                f"the paper's curve starts a learned region from each density; {self.method!r} has no start: ask for the "
                "method 'learned', or for the other curve"
            )

    @classmethod
    def of(cls, **asked: Any) -> SearchPlan:
        """A plan of its own fields; every other keyword is an option of the method."""
        own = {each.name for each in fields(cls)}
        chosen = asked.get("method", DEFAULT)
        if "start" in asked and chosen in METHODS and not METHODS[chosen].own_size:
            raise InputError(f"the method {chosen!r} takes no 'start'; that is for {P1}")
        options = {name: value for name, value in asked.items() if name not in own}
        return cls(**{name: value for name, value in asked.items() if name in own}, options=options)

    def seeded(self, seed: int) -> SearchPlan:
        """With the seed of the rows for a method that draws something, unless it has one."""
        return replace(self, options={"seed": seed, **self.options}) if METHODS[self.method].draws else self

    @property
    def step_rows(self) -> int:
        """Rows of one step at most: P1's 1024, or as few as the method likes."""
        return self.batch_size or METHODS[self.method].step_rows or P1_ROWS

    @property
    def balanced(self) -> bool:
        """Whether each step has as many rows of each class."""
        return METHODS[self.method].balanced

    @property
    def scales(self) -> tuple[float, ...]:
        """The scales to try at least."""
        return SCALES if isinstance(self.scale, str) else (float(self.scale),)

    @property
    def is_own(self) -> bool:
        """Whether the method itself says how many entries: γ > ½ of its best step."""
        return METHODS[self.method].own_size and self._has_no_budget

    @property
    def _has_no_budget(self) -> bool:
        return all(getattr(self, name) is None for name in BUDGETS)

    @property
    def curve_kind(self) -> str:
        """What the points of the curve are: a search that serves one budget is made anew for each."""
        return EACH if METHODS[self.method].one_budget else self.curve

    @property
    def keeps(self) -> bool:
        """Whether the smallest graft that keeps a share is looked for."""
        return self.keep is not None or self.keep_gain is not None

    @property
    def plain(self) -> dict[str, Any]:
        """The plan as a recipe records it."""
        options = {key: value for key, value in self.options.items() if not callable(value)}
        recorded = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "options"}
        given = {key: value for key, value in recorded.items() if key not in ("densities", "curve", "method")}
        return {**given, "start": str(self.start), "batch_size": self.step_rows, **options}

    @property
    def decisive(self) -> dict[str, Any]:
        """What decides a search, besides its start and scale; how many entries are cut from its ranking does not."""
        cut = ("density", "entries", "keep", "keep_gain", "start", "scale")
        return {"method": self.method, **{key: value for key, value in self.plain.items() if key not in cut}}

    def count(self, scope: Scope) -> int | None:
        """How many entries were asked for; None where a share is to be kept, or the method decides."""
        if METHODS[self.method].one_budget and self._has_no_budget:
            return count_of(scope, density=P1_DENSITY)
        if self.density is None and self.entries is None:
            return None
        return count_of(scope, density=self.density, entries=self.entries)

    def most(self, scope: Scope) -> int:
        """The largest budget that a ranking will be asked for."""
        asked = [self.count(scope) or 1]
        asked += [count_of(scope, density=each) for each in self.densities if self.curve_kind == NESTED]
        return max(asked)


class OutOfReach(InputError):
    """No budget keeps as much as was asked for."""


class RegionScorer(Protocol):
    """How regions are compared: by the score of the model as it stands, of a region at a scale, of base and of all of tuned.

    `trial` says what scales are compared by: a `merit`, and whatever is worth telling beside it.
    """

    def score_now(self) -> float: ...

    def score(self, problem: Problem, region: Region) -> float: ...

    def trial(self, problem: Problem, region: Region) -> dict[str, float]: ...

    def tuned_score(self) -> float: ...

    def base_score(self) -> float: ...


@dataclass(frozen=True)
class Snapshots:
    """The files from which a killed search goes on, one for every scale and part of the work, and what they belong to."""

    file: Path | None = None
    identity: Callable[[], Mapping[str, Any]] = dict

    def at(self, scale: float, part: str = "", **settings: Any) -> Snapshot | None:
        """The file of one part."""
        if self.file is None:
            return None
        return Snapshot.at(self._path(scale, part), {**self.identity(), "scale": scale, **settings})

    def delete(self, scales: Iterable[float]) -> None:
        """Remove what a resumed run would need: the result is there."""
        for scale in scales if self.file is not None else ():
            for part in ("", "point", "curve"):
                self._path(scale, part).unlink(missing_ok=True)

    def _path(self, scale: float, part: str) -> Path:
        assert self.file is not None
        times = f"x{scale:g}" if scale != 1.0 else ""
        return self.file.with_name(".".join(filter(None, (self.file.name, times, part))))


Trial = Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Outcome:
    """A finished search: the region, the scale that it was found at, the problem there, and the method's own result.

    `trials` has what was measured of every scale that was tried, where several were.
    """

    region: Region
    scale: float
    problem: Problem
    found: MethodResult
    trials: tuple[Trial, ...] = ()

    def scales(self, plan: SearchPlan) -> tuple[float, ...]:
        """Every scale that may have been tried."""
        return (*plan.scales, *(trial["scale"] for trial in self.trials if "scale" in trial))


@dataclass(frozen=True, eq=False)
class Searching:
    """One problem, searched by a plan again and again: at several scales, from several starts."""

    problem: Problem
    plan: SearchPlan
    scorer: RegionScorer
    snapshots: Snapshots = field(default_factory=Snapshots)
    runtime: Runtime = field(default_factory=Runtime)
    compares: bool = True  # whether there is a score to compare steps by

    def best(self, start: Region) -> Outcome:
        """The best outcome over the plan's scales; of equals the first. One scale alone needs no score.

        All are tried, and larger ones while the largest is the best: searches at large scales are noisy, so that one may fail and
        the next one not. Where none keeps what it should, the error is the first one's.
        """
        if not isinstance(self.plan.scale, str):
            return self.at(float(self.plan.scale), start)
        best: Outcome | None = None
        trials: list[Trial] = []
        failures: list[OutOfReach] = []
        scale, largest = SCALES[0], SCALES[-1]
        while scale <= largest:
            try:
                # A scale that needs more entries than another is not the best.
                tried = self.at(scale, start, fewer_than=len(best.region) if best and self.plan.keeps else None)
            except OutOfReach as failure:
                failures.append(failure.with_traceback(None))  # which would hold the attempt's tensors
            else:
                facts = self.scorer.trial(tried.problem, tried.region)
                trials.append({"scale": scale, "entries": len(tried.region), **facts})
                if best is None or self.plan.keeps or facts["merit"] > max(one["merit"] for one in trials[:-1]):
                    best = tried
                if best is tried and scale == largest < LARGEST_SCALE:
                    largest *= 2
            scale *= 2
        if best is None:
            raise failures[0]
        return replace(best, trials=tuple(trials))

    def at(self, scale: float, start: Region, *, part: str = "", fewer_than: int | None = None) -> Outcome:
        """One search at a scale; as a `part` of a curve the method says how many entries there are."""
        problem = self.problem.scaled(scale)
        plan = self.plan if not part else replace(self.plan, density=None, entries=None, keep=None, keep_gain=None)
        if plan.keeps:
            return self._smallest(problem, start, scale, fewer_than)
        found = self._run(plan, problem, start, 1 if part else plan.most(problem.scope), part)
        count = plan.count(problem.scope)
        if count is not None:
            return Outcome(found.ranking.top(count), scale, problem, found)
        if found.region is None:
            raise InputError(
                f"the method {plan.method!r} ranks entries but does not say how many: give a density, entries or a share to keep"
            )
        return Outcome(found.region, scale, problem, found)

    def _run(self, plan: SearchPlan, problem: Problem, start: Region, most: int, part: str = "") -> MethodResult:
        options = self._options(plan, problem.scale, start, part)
        if plan.method == "budgeted" and plan.options.get("look_every"):
            if not self.compares:
                raise InputError("look_every compares scores: give score=, a function of the model")
            options["score"] = lambda region: self.scorer.trial(problem, region)["merit"]
        return METHODS[plan.method](problem, start, most=most, **options)

    def _smallest(self, problem: Problem, start: Region, scale: float, fewer_than: int | None) -> Outcome:
        """The smallest graft that keeps what it should; each budget that is tried has the search that serves it."""
        size = problem.scope.size
        most = size if fewer_than is None else fewer_than - 1
        target, plan = self._target(), self.plan
        if most < 1:
            raise OutOfReach("a graft of one entry cannot be made smaller")
        first = min(most, max(1, round(P1_DENSITY * size)))
        tried: dict[int, MethodResult] = {}

        def result(entries: int) -> MethodResult:
            if METHODS[plan.method].one_budget:
                if entries not in tried:
                    tried[entries] = self._run(plan, problem, start, entries)
                return tried[entries]
            if not tried or len(tried[0].ranking.order) < entries:
                wide = min(size, max(4 * entries, 4 * first))
                earlier = tried.get(0)
                again = earlier.wider if earlier is not None else None
                tried[0] = (
                    replace(earlier, ranking=again(wide))
                    if earlier is not None and again is not None
                    else self._run(plan, problem, start, wide)
                )
            return tried[0]

        def score(entries: int) -> float:
            return self.scorer.score(problem, result(entries).ranking.top(entries))

        precision = 0.1 if METHODS[plan.method].one_budget else 0.05
        count = smallest_budget(score, target=target, most=most, first=first, precision=precision)
        found = result(count)
        return Outcome(found.ranking.top(count), scale, problem, found)

    def _target(self) -> float:
        """The score that must be reached."""
        tuned = self.scorer.tuned_score()
        if self.plan.keep is not None:
            return self.plan.keep * tuned
        assert self.plan.keep_gain is not None
        base = self.scorer.base_score()
        if not tuned > base:
            raise InputError(
                f"tuned scores {tuned:.4f} on these rows and base {base:.4f}: there is no gain to keep a share of"
            )
        return base + self.plan.keep_gain * (tuned - base)

    def point(self, outcome: Outcome, density: float, start: Callable[[float], Region]) -> Region:
        """The region of one density of the plan's curve: a prefix of the outcome's ranking, or a search of its own.

        P1 starts one from γ_base = top-s for each density s (fig. 2); its region has about that many entries.
        """
        if self.plan.curve_kind == PAPER:
            return self.at(outcome.scale, start(density), part="point").region
        count = count_of(outcome.problem.scope, density=density)
        if self.plan.curve_kind == EACH and count != len(outcome.region):
            return self._run(self.plan, outcome.problem, outcome.region, count).ranking.top(count)
        return outcome.found.ranking.top(count)

    def _options(self, plan: SearchPlan, scale: float, start: Region, part: str) -> dict[str, Any]:
        """The method's settings. Steps of a learned region are compared only where that decides something."""
        if plan.method == "budgeted":
            return {"progress": self.runtime.progress, **plan.options}
        if plan.method != "learned":
            return dict(plan.options)
        compare = self.compares and (plan.is_own or bool(plan.options.get("patience")))
        return {
            "score": self.scorer.score_now if compare else None,
            # Looks that an earlier search did not take cannot be had any more: a search that compares begins anew.
            "snapshot": self.snapshots.at(scale, part, start=start.digest, compares=compare, **plan.decisive),
            "runtime": self.runtime,
            **plan.options,
        }


def smallest_budget(
    score: Callable[[int], float], *, target: float, most: int, first: int = 1, precision: float = 0.05
) -> int:
    """The smallest budget up to `most` whose score reaches `target`, to within `precision` of its size.

    Scores rise with the budget but for noise: from `first` on budgets are quadrupled until one reaches the target, or quartered
    until one does not; then the interval between is halved. An error says what the largest budget reached.
    """
    known: dict[int, float] = {}

    def reaches(entries: int) -> bool:
        known[entries] = score(entries)
        return known[entries] >= target

    high, low = first, 0
    if reaches(first):
        while high > 1:
            lower = max(1, high // 4)
            if not reaches(lower):
                low = lower
                break
            high = lower
    else:
        low = first
        while True:
            if low == most:
                raise OutOfReach(
                    f"even {most:,} entries reach only {known[most]:.4f} of the {target:.4f} asked for; keep less, try a larger "
                    "scale, or widen the scope"
                )
            high = min(4 * low, most)
            if reaches(high):
                break
            low = high
    while high - low > max(1, int(precision * high)):
        middle = round(math.sqrt(max(low, 1) * high))
        middle = min(max(middle, low + 1), high - 1)
        if reaches(middle):
            high = middle
        else:
            low = middle
    return high
