"""The plan of kills: each comes while both queries are in the middle of a batch, some time after both work. Pure."""

from __future__ import annotations

import random

#: Bounds of the pause between both queries' return to work and the search for a moment, which varies the step of the
#: batch that a kill meets.
SHORTEST_S, LONGEST_S = 0.2, 3.0

#: Time for a moment to come: a second or two on a quiet machine, since both run one batch after the other.
MOMENT_S = 60.0

#: Attempts at each kill that must strike: the processes may finish a batch between the look and the kill.
TRIES = 3


class InBatch:
    """Tells from looks at Spark's own sink whether records of the batch in flight are in the topic.

    Only what was written after the batch was seen for the first time counts, so that records of the batch before it
    are never taken for its own.
    """

    def __init__(self) -> None:
        self._batch = -1
        self._before = 0

    def seen(self, planned: int, committed: int, high: int) -> bool:
        """Take a look: the last batch of ``offsets/`` and of ``commits/``, and the topic's high watermarks in sum."""
        if planned == committed or planned != self._batch:
            self._batch, self._before = planned, high
            return False
        return high > self._before


class Kills:
    """Counts the kills, and says when to look for a moment for the next one.

    Attributes
    ----------
    done, struck : int
        All kills, and those that struck both queries in the middle of a batch.
    just_struck : bool
        Whether the last one did.
    gave_up : str
        Why fewer struck than wanted; "" as long as that is open.
    """

    def __init__(self, seed: int, wanted: int):
        self.wanted, self.done, self.struck, self.gave_up = wanted, 0, 0, ""
        self.just_struck = False
        self._dice = random.Random(seed)
        self._from: float | None = None

    @property
    def over(self) -> bool:
        """True when no further kill will come."""
        return self.struck >= self.wanted or bool(self.gave_up)

    def aim(self, now: float, both_at_work: bool) -> bool:
        """Return whether to kill as soon as both are in the middle of a batch.

        Parameters
        ----------
        both_at_work : bool
            Each query has committed a batch since the last start.
        """
        if self.over or (self._from is None and not both_at_work):
            return False
        if self._from is None:
            self._from = now + self._dice.uniform(SHORTEST_S, LONGEST_S)
        if now > self._from + MOMENT_S:
            self.gave_up = f"no moment came within {MOMENT_S:.0f} s when both were in the middle of a batch"
            return False
        return now >= self._from

    def killed(self, struck: bool) -> None:
        """Count a kill; ``struck`` says whether it struck both in the middle of a batch, by what was left behind."""
        self.done += 1
        self.just_struck = struck
        self.struck += struck
        self._from = None
        if not self.over and self.done >= TRIES * self.wanted:
            self.gave_up = f"{self.done} kills came too late for the batch that they were meant for"
