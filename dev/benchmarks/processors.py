"""Processor time by process: what noise of other work moves least."""

from __future__ import annotations

import os

import psutil

#: Who works for a query.
JVM, PYTHON, BROKER = "JVM", "driver's Python", "broker"


class Stopwatch:
    """Takes the time of Spark's JVM, of the driver's Python, which is this process, and of the embedded broker, from
    its making on.

    Parameters
    ----------
    folder : str
        Of the broker: it stands in the command line of its process.
    """

    def __init__(self, folder: str):
        self._folder = folder
        self._before = self._spent()

    def per_record_us(self, records: int) -> dict[str, float]:
        """Microseconds spent since, for each of ``records``, and their sum."""
        seconds = {JVM: 0.0, PYTHON: 0.0, BROKER: 0.0}
        for process, (group, total) in self._spent().items():
            seconds[group] += total - self._before.get(process, (group, 0.0))[1]
        each = {group: round(s / records * 1e6, 3) for group, s in seconds.items()}
        return {**each, "all": round(sum(each.values()), 3)}

    def _spent(self) -> dict[tuple[int, float], tuple[str, float]]:
        """Return, by process, its group and its processor time so far."""
        found: dict[tuple[int, float], tuple[str, float]] = {}
        mine = {p.pid for p in psutil.Process(os.getpid()).children(recursive=True)}
        for p in psutil.process_iter(["cmdline", "create_time", "cpu_times"]):
            words = p.info["cmdline"] or []
            group = PYTHON if p.pid == os.getpid() else self._group(words, p.pid in mine)
            if group is not None and p.info["cpu_times"] is not None:
                found[p.pid, p.info["create_time"]] = (group, p.info["cpu_times"].user + p.info["cpu_times"].system)
        return found

    def _group(self, words: list[str], mine: bool) -> str | None:
        if any(self._folder in word for word in words) and "java" in words[0]:
            return BROKER
        return JVM if mine and words and "java" in words[0] else None
