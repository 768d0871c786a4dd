"""One time budget for a whole step, in place of a timeout for each call; and the time of day."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


class Deadline:
    """A point in time, ``seconds`` from now, that several calls share."""

    def __init__(self, seconds: float):
        self._end = time.monotonic() + seconds
        self.seconds = seconds

    @property
    def left(self) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self._end - time.monotonic())

    @property
    def over(self) -> bool:
        """True when the budget is spent."""
        return self.left <= 0

    def tries(self, first_pause_s: float = 0.02, longest_pause_s: float = 0.5) -> Iterator[int]:
        """Yield 0, 1, 2, ... with growing pauses between, until the budget is spent; at least once."""
        pause, n = first_pause_s, 0
        while True:
            yield n
            if self.left <= pause:
                return
            time.sleep(pause)
            pause, n = min(pause * 2, longest_pause_s), n + 1

    def repeat(self, act: Callable[[], T], *passing: type[Exception], first_pause_s: float = 0.02) -> T:
        """Return what ``act`` returns; repeat it after the errors in ``passing``, the last of which is raised."""
        failure: Exception | None = None
        for _ in self.tries(first_pause_s):
            try:
                return act()
            except passing as e:
                failure = e
        assert failure is not None
        raise failure


def now_ms() -> int:
    """Return this machine's clock in ms since the epoch: for people, never for decisions."""
    return int(time.time() * 1000)
