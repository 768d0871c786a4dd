"""Measures several streams in one driver: ``python -m benchmarks.streams``."""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.common import SINKS, Bench, bench, median

#: Streams at the same time in one driver.
STREAMS = (1, 2, 4, 8)

#: Each stream writes so many rows a second in so many parts: batches matter here, not records.
ROWS, PARTS = 100, 2

#: The default of a stream that nobody tunes has no pause between batches; one second is what several streams get.
TRIGGER = "1 second"

#: Of all streams together, before the measurement: their starts share two cores.
WARM_UP_S = 30.0
MEASURED_S = 30.0

_MIB = 1024 * 1024


@dataclass(frozen=True)
class Run:
    """The median duration of a batch in ms; the driver's Python processes and their resident MiB; the JVM's threads."""

    sink: str
    streams: int
    batch_ms: float
    workers: int
    workers_mib: float
    threads: int


def main() -> None:
    """Print a line for each number of streams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(".run/streams"))
    args = parser.parse_args()
    for sink in SINKS:
        for streams in STREAMS:
            with bench(args.folder.absolute(), "local[2]") as b:
                r = _run(b, sink, streams)
            print(
                f"{r.sink}, {r.streams} streams: batch {r.batch_ms:.0f} ms, {r.workers} Python processes with "
                f"{r.workers_mib:,.0f} MiB, {r.threads} threads in the JVM",
                flush=True,
            )


def _run(bench: Bench, sink: str, streams: int) -> Run:
    rows = (
        bench.spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", PARTS)
        .load()
        .selectExpr("cast(value as string) key", "concat('row-', value) value")
    )
    queries = [
        bench.writer(sink, rows, bench.topic("streams", 4)).trigger(processingTime=TRIGGER).start()
        for _ in range(streams)
    ]
    time.sleep(WARM_UP_S)  # a load in time: there is no condition to wait for
    first = [len(q.recentProgress) for q in queries]
    time.sleep(MEASURED_S)
    took = [
        p["durationMs"]["triggerExecution"] for q, n in zip(queries, first, strict=True) for p in q.recentProgress[n:]
    ]
    driver = next(p for p in psutil.Process(os.getpid()).children() if "SparkSubmit" in " ".join(p.cmdline()))
    workers = [p for p in driver.children(recursive=True) if "python" in p.name()]
    run = Run(
        sink,
        streams,
        median(took),
        len(workers),
        sum(p.memory_info().rss for p in workers) / _MIB,
        driver.num_threads(),
    )
    for q in queries:
        q.stop()
    return run


if __name__ == "__main__":
    main()
