"""Find the limits of one driver: raise streams, output partitions, or transactional ids until something breaks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks import streams
from benchmarks.common import OURS, Bench, median
from benchmarks.endurance import heap_mib, processes, rss_mib
from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.names import namespace
from exactly_once.spark.progress import last_ended, of_batches
from exactly_once.txn.coordinators import list_transactions

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

#: What is raised, and how far: the last sizes are those at which something broke, or was of no use any more.
SIZES = {
    "streams": (50, 100, 200),
    "partitions": (1_000, 4_000, 10_000),
    "ids": (100, 1_000, 4_000, 10_000),
}

#: Of the query whose output partitions are counted: enough rows that each part writes to each of ten thousand.
PARTS, ROWS = 2, 200_000

#: Where the parts are counted: a record for each, in so many output partitions.
OUTPUT = 4

#: Batches after the first, whose code is cold.
BATCHES = 3

#: A batch that takes longer is of no use to anybody.
USELESS_S = 240.0

#: Each stream is looked at for so long.
STREAMS_S = 15.0


@dataclass(frozen=True)
class Held:
    """A driver with ``size`` of ``what``. Memory in MiB, heaps after a full collection.

    Attributes
    ----------
    first_s : float
        From the start of the query to the end of its first batch; of streams, until each had ended two.
    batch_ms : float
        The median of the batches after it.
    ids : int
        Transactional ids of the sink.
    failed : str
        What broke; then the figures are those of that moment, or 0.
    """

    what: str
    size: int
    first_s: float = 0.0
    batch_ms: float = 0.0
    ids: int = 0
    driver_rss: float = 0.0
    driver_heap: float = 0.0
    python_rss: float = 0.0
    broker_rss: float = 0.0
    broker_heap: float = 0.0
    broker_files: int = 0
    failed: str = ""


def measure(bench: Bench, what: str, sizes: Sequence[int] = ()) -> Iterator[Held]:
    """Raise ``what`` (see :data:`SIZES`) until it breaks; the last line says what broke, if anything did."""
    for size in sizes or SIZES[what]:
        try:
            yield _streams(bench, size) if what == "streams" else _batches(bench, what, size)
        except Exception as e:  # that something breaks is the result
            yield Held(what, size, failed=f"{type(e).__name__}: {' '.join(str(e).split())[:400]}")
            return


def _streams(bench: Bench, size: int) -> Held:
    found = streams.of(bench, OURS, size, STREAMS_S)
    memory = _memory() | {"driver_rss": found.driver_rss_mib, "python_rss": found.python_rss_mib}
    return Held("streams", size, found.started_s, found.batch_ms, **memory)


def _batches(bench: Bench, what: str, size: int) -> Held:
    """Run one query whose batches have ``size`` parts, or write to ``size`` partitions."""
    parts, partitions, rows = (size, OUTPUT, size) if what == "ids" else (PARTS, size, ROWS)
    topic = bench.topic(f"limit-{what}", partitions)
    made = bench.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    frame = made.option("numPartitions", parts).load().selectExpr("cast(value as string) key", "'row' value")
    began = time.monotonic()
    query = bench.writer(OURS, frame, topic).start()
    try:
        _await(query, 0)
        first = time.monotonic() - began
        _await(query, BATCHES)
        progress = [p for p in of_batches(query.recentProgress) if p["batchId"] > 0]
        newest = max((bench.folder / "checkpoints").iterdir(), key=lambda p: p.stat().st_ctime)
        sink_id = f"bench-{newest.name}"
        with Admin(bench.connection, 60) as admin:
            ids = len(list_transactions(admin, namespace(sink_id), ()))
        return Held(
            what,
            size,
            round(first, 1),
            round(median(p["durationMs"]["triggerExecution"] for p in progress)),
            ids,
            **_memory(),
        )
    finally:
        query.stop()


def _await(query: StreamingQuery, batch: int) -> None:
    for _ in Deadline(USELESS_S).tries():
        if (failure := query.exception()) is not None:
            raise RuntimeError(str(failure))
        last = query.lastProgress
        if last is not None and last_ended(last) >= batch:
            return
    raise TimeoutError(f"batch {batch} did not end within {USELESS_S:.0f} s")


def _memory() -> dict[str, Any]:
    found = processes()
    return {
        "driver_rss": round(rss_mib(found.driver)),
        "driver_heap": round(heap_mib(found.driver.pid)),
        "python_rss": round(rss_mib(found.python)),
        "broker_rss": round(rss_mib(found.broker)),
        "broker_heap": round(heap_mib(found.broker.pid)),
        "broker_files": found.broker.num_fds(),
    }
