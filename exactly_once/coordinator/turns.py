"""Turns of a driver's streams: while one of them claims its sink, a few of all that plan or commit a batch work at
once, in the order in which they came.

A step is a dozen short waits. Where fifty streams start on two cores, and the steps of those that run already go on
beside the claims of the others, each waits for all the others behind every wait of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

#: Steps that work at once while a stream claims its sink.
AT_ONCE = 2

#: Time after which a turn does not count any more, so that a step whose brokers are away holds nobody up for longer.
LASTS_S = 1.0


class Turns:
    """The turns of the streams that write to one cluster. ``lasts_s`` as :data:`LASTS_S`."""

    def __init__(self, lasts_s: float = LASTS_S) -> None:
        self._lasts_s = lasts_s
        self._lock = threading.Lock()
        self._waiting: deque[threading.Event] = deque()
        self._begun: dict[threading.Event, float] = {}
        self._claims = 0

    @contextmanager
    def claim(self) -> Iterator[None]:
        """Wait for a turn to claim a sink and to plan its first batch."""
        with self._lock:
            self._claims += 1
        try:
            with self.step():
                yield
        finally:
            with self._lock:
                self._claims -= 1
                self._give()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Wait for a turn to plan or to commit another batch."""
        mine = threading.Event()
        with self._lock:
            self._waiting.append(mine)
            self._give()
        while not mine.wait(self._lasts_s):
            with self._lock:
                self._give()  # turns that have lasted too long
        try:
            yield
        finally:
            with self._lock:
                del self._begun[mine]
                self._give()

    def _give(self) -> None:
        now = time.monotonic()
        while self._waiting and (not self._claims or self._counted(now) < AT_ONCE):
            mine = self._waiting.popleft()
            self._begun[mine] = now
            mine.set()

    def _counted(self, now: float) -> int:
        return sum(now - began < self._lasts_s for began in self._begun.values())


_TURNS: dict[str, Turns] = {}
os.register_at_fork(after_in_child=_TURNS.clear)  # it has none of the threads that have a turn


def turns_of(bootstrap_servers: str) -> Turns:
    """Return the turns of this process's streams to a cluster."""
    return _TURNS.setdefault(bootstrap_servers, Turns())
