"""When to kill: drawn beforehand, with no eye on what either query is doing just then."""

from __future__ import annotations

import random
from collections.abc import Sequence

#: After both queries are at work again, a kill comes within these seconds. They span several batches of either, so that
#: every step of a batch can be hit.
SHORTEST_S, LONGEST_S = 0.5, 5.0


def draw(seed: int, kills: int) -> list[float]:
    """For each kill, how long after both are at work it comes."""
    dice = random.Random(seed)
    return [dice.uniform(SHORTEST_S, LONGEST_S) for _ in range(kills)]


class Kills:
    """Goes through the moments, one after the other."""

    def __init__(self, moments: Sequence[float]):
        self._left = list(moments)
        self._due: float | None = None

    @property
    def over(self) -> bool:
        """Whether no kill is left."""
        return not self._left

    def next(self, now: float, both_at_work: bool) -> float | None:
        """When to kill next, by the clock of ``now``; None while that is open.

        Parameters
        ----------
        both_at_work : bool
            Each query has committed a batch since the last start.
        """
        if self._due is None and self._left and both_at_work:
            self._due = now + self._left[0]
        return self._due

    def done(self) -> None:
        """The kill that was due is done."""
        self._left.pop(0)
        self._due = None
