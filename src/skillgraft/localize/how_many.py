"""How many entries a region gets: a budget, a share of the score to keep, or the method's own answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from skillgraft.errors import InputError
from skillgraft.localize.methods import Found
from skillgraft.localize.smallest import smallest_budget
from skillgraft.movement import count_of
from skillgraft.region import Region, Scope

MOST = 0.1  # of the scope: beyond that a region is not small, and a search for the smallest gives up


@dataclass(frozen=True)
class HowMany:
    """`budget` entries (a density or a count), the fewest that keep the share `keep` of tuned's score, or γ > ½."""

    budget: float | None = None
    keep: float | None = None

    def __post_init__(self) -> None:
        if self.budget is not None and self.keep is not None:
            raise InputError("give a budget or a share to keep, not both")
        if self.keep is not None and not 0 < self.keep <= 1:
            raise InputError(f"a share to keep lies between 0 and 1, found {self.keep}")

    @property
    def is_own(self) -> bool:
        """Whether the method itself says how many: γ > ½ of its best step."""
        return self.budget is None and self.keep is None

    def merit(self, region: Region, score: Callable[[Region], float]) -> float:
        """By what regions of several searches are compared: the fewest entries where a share is to be kept, else the score."""
        return -float(len(region)) if self.keep is not None else score(region)

    def most(self, scope: Scope, densities: Iterable[float] = ()) -> int:
        """The largest budget that a ranking will be asked for; `densities` are asked for as well."""
        asked = [count_of(each, scope) for each in (self.budget, *densities) if each is not None]
        return max([*asked, _largest(scope) if self.keep is not None else 1])

    def region(
        self, found: Found, scope: Scope, *, score: Callable[[Region], float], tuned: Callable[[], float]
    ) -> Region:
        """The region that was asked for; `score` tells a region's score and `tuned` tuned's, where a share is to be kept."""
        if self.budget is not None:
            return found.ranking.top(count_of(self.budget, scope))
        if self.keep is not None:
            count = smallest_budget(
                lambda count: score(found.ranking.top(count)), target=self.keep * tuned(), most=_largest(scope)
            )
            return found.ranking.top(count)
        if found.region is None:
            raise InputError("this method ranks entries but does not say how many: give a budget or a share to keep")
        return found.region


def _largest(scope: Scope) -> int:
    return max(1, int(MOST * scope.size))
