"""Watches a run from outside, in the same way for every system: what a reader can see, processor time and memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

import psutil
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from benchmarks.processors import BROKER, JVM
from exactly_once.kafka.connection import Connection

#: Between two looks at a few partitions; a look takes about 5 ms. A thousand partitions take longer: then a pause is so
#: many times as long as a look, which leaves the machine to what is measured.
EVERY_S, REST = 0.1, 10

#: A new process is found within this time: to list all of them takes longer than to look at a few.
FIND_EVERY_S = 1.0

#: The steady part of a run begins when this share of the output is visible: start and first compilation are over. Just
#: below two of five batches, so that it has three whole batches with the pauses between them, also of a sink that shows
#: rows as they come.
STARTED = 0.39

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Sample:
    """One look: seconds since the start, offsets that a read_committed reader can see, processor seconds by group so
    far, resident MiB by group now.
    """

    at: float
    visible: int
    cpu_s: Mapping[str, float]
    rss_mib: Mapping[str, float]


@dataclass(frozen=True)
class Steady:
    """The part of a run after its start: its share of the output, its seconds, its processor seconds by group."""

    share: float
    seconds: float
    cpu_s: dict[str, float]


def end_of(samples: Sequence[Sample]) -> Sample | None:
    """Return the first look that saw the whole output; None without output."""
    most = samples[-1].visible
    return next(s for s in samples if s.visible == most) if most else None


def steady(samples: Sequence[Sample]) -> Steady | None:
    """Return the steady stretch of a run.

    It goes from the look that first saw at least :data:`STARTED` of the output to the one that first saw all of it.

    None when it became visible in one step.
    """
    end = end_of(samples)
    if end is None:
        return None
    begin = next(s for s in samples if s.visible >= STARTED * end.visible)
    if begin.visible == end.visible:
        return None
    return Steady(1 - begin.visible / end.visible, end.at - begin.at, spent(begin, end))


def spent(begin: Sample, end: Sample) -> dict[str, float]:
    """Processor seconds between two looks, by group."""
    return {group: s - begin.cpu_s.get(group, 0.0) for group, s in end.cpu_s.items()}


def spark_group(words: Sequence[str]) -> str | None:
    """Return the group of a process that this one started, by its command line."""
    return JVM if words and "java" in words[0] else None


class Monitor:
    """Looks at one output topic and at processes about every :data:`EVERY_S` seconds, from entry to exit.

    Parameters
    ----------
    topic : str
        The output.
    partitions : int
        Of the topic.
    broker_folder : str
        Stands in the command line of the broker's process.
    group : callable
        From the command line of a process below this one to its group, None for one that does not belong to the run.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        partitions: int,
        broker_folder: str,
        group: Callable[[Sequence[str]], str | None] = spark_group,
    ):
        self._admin = AdminClient(connection.librdkafka())
        self._query = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}
        self._broker_folder, self._group = broker_folder, group
        self._processes: dict[psutil.Process, str | None] = {}
        self._first_cpu: dict[psutil.Process, float] = {}
        self._last_cpu: dict[psutil.Process, float] = {}
        self._found_at = float("-inf")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> Monitor:
        self._began = time.monotonic()
        self.samples.append(self._sample(first=True))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            self.samples.append(self._sample())

    def peak_mib(self) -> dict[str, float]:
        """Return the largest resident memory of each group; pages that its processes share count for each."""
        groups = {group for s in self.samples for group in s.rss_mib}
        return {g: round(max(s.rss_mib.get(g, 0.0) for s in self.samples), 1) for g in sorted(groups)}

    def _watch(self) -> None:
        took = 0.0
        while not self._stop.wait(max(EVERY_S, REST * took)):
            began = time.monotonic()
            self.samples.append(self._sample())
            took = time.monotonic() - began

    def _sample(self, first: bool = False) -> Sample:
        if time.monotonic() - self._found_at > FIND_EVERY_S:
            self._find()
        rss: dict[str, float] = {}
        for process, group in self._processes.items():
            if group is None:
                continue
            with suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                self._last_cpu[process] = times.user + times.system
                rss[group] = rss.get(group, 0.0) + process.memory_info().rss / _MIB
                if first:
                    self._first_cpu[process] = self._last_cpu[process]
        cpu: dict[str, float] = {}
        for process, seconds in self._last_cpu.items():  # with those that have ended
            group = self._processes[process] or ""
            cpu[group] = cpu.get(group, 0.0) + seconds - self._first_cpu.get(process, 0.0)
        return Sample(time.monotonic() - self._began, self._visible(), cpu, rss)

    def _visible(self) -> int:
        found = self._admin.list_offsets(self._query, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=30)
        try:
            return sum(future.result().offset for future in found.values())
        except KafkaException:  # a topic that was just made has no leaders for a moment
            return self.samples[-1].visible if self.samples else 0

    def _find(self) -> None:
        """Note new processes below this one, and their groups."""
        for process in psutil.Process().children(recursive=True):
            if process not in self._processes:
                with suppress(psutil.Error):
                    words = process.cmdline()
                    broker = any(self._broker_folder in word for word in words) and "java" in words[0]
                    self._processes[process] = BROKER if broker else self._group(words)
        self._found_at = time.monotonic()
