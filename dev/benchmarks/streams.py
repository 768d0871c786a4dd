"""Measures what one driver holds: several streams in one session, each at a steady rate to a topic of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from benchmarks.common import OURS, SPARKS, Bench, median
from benchmarks.endurance import processes, rss_mib
from exactly_once.deadline import Deadline
from exactly_once.spark.progress import last_ended

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

#: Streams of one session.
SIZES = (1, 2, 5, 10, 20, 50)
SINKS = (SPARKS, OURS)

#: Rows a second of each stream in one part: what its batches cost beside their records is what grows.
ROWS, PARTS = 100, 1

#: A stream asks for a batch each second: a driver that is not overloaded has time to spare.
TRIGGER_S = 1.0

#: Fifty first batches, one after the other on two cores.
STARTED_S = 300.0


@dataclass(frozen=True)
class Streams:
    """Streams of one driver in a time of ``seconds``.

    Attributes
    ----------
    batches_each : float
        Batches of a stream that began and ended in that time, the median of the streams; one a second was asked for.
    batch_ms, slowest_ms : float
        The duration of a batch: the median of all, and the median of the slowest stream.
    cores : float
        Processor seconds a second, of the driver: its JVM, and this process, its Python.
    started_s : float
        From the first ``start()`` until each stream had ended two batches.
    """

    system: str
    streams: int
    seconds: float
    batches_each: float
    batch_ms: float
    slowest_ms: float
    cores: float
    started_s: float
    driver_rss_mib: float
    python_rss_mib: float
    threads: int


def measure(bench: Bench, seconds: float, sizes: Sequence[int] = SIZES) -> Iterator[Streams]:
    """Run each number of streams for ``seconds``, to Spark's own sink and to ours."""
    for size in sizes:
        for sink in SINKS:
            yield of(bench, sink, size, seconds)


def of(bench: Bench, sink: str, size: int, seconds: float) -> Streams:
    """Run ``size`` streams to ``sink`` for ``seconds``."""
    with ExitStack() as stack:
        began = time.monotonic()
        queries = [stack.enter_context(_Running(bench, sink, n)).query for n in range(size)]
        for query in queries:
            _wait(query, 1)
        started = time.monotonic() - began
        before, since = _spent(), time.time()
        time.sleep(seconds)
        until, spent = time.time(), _spent() - before
        found = processes()
        driver_mib, python_mib = round(rss_mib(found.driver)), round(rss_mib(found.python))
        threads = found.driver.num_threads()
    done = [_within(q, since, until) for q in queries]
    return Streams(
        system=sink,
        streams=size,
        seconds=round(until - since, 1),
        batches_each=median(len(some) for some in done),
        batch_ms=round(median(ms for some in done for ms in some), 1),
        slowest_ms=round(max(median(some) for some in done if some), 1),
        cores=round(spent / (until - since), 2),
        started_s=round(started, 1),
        driver_rss_mib=driver_mib,
        python_rss_mib=python_mib,
        threads=threads,
    )


class _Running:
    """One stream, stopped when the block ends."""

    def __init__(self, bench: Bench, sink: str, number: int):
        rows = bench.spark.readStream.format("rate").option("rowsPerSecond", ROWS).option("numPartitions", PARTS).load()
        rows = rows.selectExpr("cast(value as string) key", "concat('row-', value) value")
        writer = bench.writer(sink, rows, bench.topic(f"streams-{number}", PARTS))
        self.query: StreamingQuery = writer.trigger(processingTime=f"{TRIGGER_S} seconds").start()

    def __enter__(self) -> _Running:
        return self

    def __exit__(self, *error: object) -> None:
        self.query.stop()


def _wait(query: StreamingQuery, batch: int) -> None:
    for _ in Deadline(STARTED_S).tries():
        if not query.isActive:
            raise RuntimeError(f"a query ended: {query.exception()}")
        if _last(query) >= batch:
            return
    raise TimeoutError(f"no batch {batch} within {STARTED_S:.0f} s")


def _last(query: StreamingQuery) -> int:
    last = query.lastProgress
    return last_ended(last) if last else -1


def _within(query: StreamingQuery, since: float, until: float) -> list[float]:
    """Return the durations, in ms, of the batches with rows that began and ended between two times of the clock.

    For a query that has ended: PySpark fetches each progress by itself, through the interpreter that the coordinators
    of running queries need, too.
    """
    found = []
    for progress in query.recentProgress:  # the newest hundred
        took = progress["durationMs"]["triggerExecution"]
        began = datetime.fromisoformat(progress["timestamp"]).timestamp()
        if progress["numInputRows"] and since <= began and began + took / 1000 <= until:
            found.append(took)
    return found


def _spent() -> float:
    """Return the processor seconds so far of the driver's JVM and of this process, its Python."""
    found = processes()
    times = [process.cpu_times() for process in (found.driver, found.python)]
    return float(sum(t.user + t.system for t in times))
