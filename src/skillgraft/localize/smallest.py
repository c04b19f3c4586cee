"""The smallest budget that keeps enough of a score, without searching the region anew for every probe."""

from __future__ import annotations

from collections.abc import Callable

from skillgraft.errors import InputError


class OutOfReach(InputError):
    """No budget keeps as much as was asked for."""


def smallest_budget(score: Callable[[int], float], *, target: float, most: int, precision: float = 0.05) -> int:
    """The smallest budget up to `most` whose score reaches `target`, to within `precision` of its size.

    Scores rise with the budget but for noise: budgets are doubled until one reaches the target, then the last interval is
    halved. An error says what the largest budget reached.
    """
    low, high = 0, 1
    while score(high) < target:
        if high == most:
            raise OutOfReach(
                f"even {most:,} entries reach only {score(most):.4f} of the {target:.4f} asked for; keep less, or widen the scope"
            )
        low, high = high, min(2 * high, most)
    while high - low > max(1, int(precision * high)):
        middle = (low + high) // 2
        if score(middle) >= target:
            high = middle
        else:
            low = middle
    return high
