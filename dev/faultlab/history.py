"""The events of a run: one line for each, printed and kept."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Event(NamedTuple):
    """An event of a run: its moment by :func:`time.monotonic`, its name, and the fault, if it is one's."""

    at: float
    name: str
    fault: str


class LabHistory:
    """The events of a run, from any thread.

    Parameters
    ----------
    path : Path
        The file that keeps them.
    show : callable, optional
        Gets each line; by default nothing is shown.
    """

    def __init__(self, path: Path, show: Callable[[str], None] = lambda line: None):
        self.path, self._show = path, show
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self.events: list[Event] = []
        self.done: Counter[str] = Counter()  #: faults that were done, by name
        self.seen: Counter[str] = Counter()  #: ends of the stream, by their error's code

    def begin(self) -> None:
        """Count the time from here."""
        self._began = time.monotonic()

    @property
    def now_s(self) -> float:
        """Seconds since :meth:`begin`."""
        return self.seconds(time.monotonic())

    def seconds(self, at: float) -> float:
        """Seconds from :meth:`begin` to a moment."""
        return at - self._began

    def add(self, event: str, fault: str = "", target: str = "") -> None:
        """Keep an event: ``do``, ``undo``, ``start``, ``ended`` and so on, the fault, and what it struck."""
        at = time.monotonic()
        line = f"{self.seconds(at):8.2f} s  {event:<10} {fault:<20} {target}".rstrip()
        with self._lock:
            self.events.append(Event(at, event, fault))
            if event == "do":
                self.done[fault] += 1
            with self.path.open("a") as file:
                file.write(line + "\n")
            self._show(line)

    def ended(self, why: str) -> None:
        """Keep an end of the stream; ``why`` begins with an error's code, where there is one."""
        self.seen[why.partition(":")[0]] += 1
        self.add("ended", target=why)
