"""Measure how fast a verification by origin reads, and in how much memory.

``python -m benchmarks.origins --records 20000000``

The input's records are empty; those of the output have a key, 20 bytes and their origin in a header, in the order in
which a stream of micro-batches writes them.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.tools.verify.by_origin.comparison import Question, ReadsElsewhere, compare_origins
from exactly_once.tools.verify.by_origin.origin import Origin
from exactly_once.tools.verify.expected import Expected
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker

INPUT, OUTPUT, PARTITIONS = "origins-in", "origins-out", 4

#: Keys in the output.
KEYS = 100_000

#: Input records of one partition in a micro-batch.
MICRO_BATCH = 80_000


def main() -> None:
    """Fill, and measure in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=20_000_000)
    parser.add_argument("--spark", metavar="MASTER", help="then also by Spark, in a session on this master")
    parser.add_argument("--against", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.against and args.spark:
        from exactly_once.tools.verify.on_spark.origins import (  # the one process does not have its memory
            on_spark,
            session,
        )

        with session(args.spark, "origins") as spark:
            measure(Connection(args.against), args.records, on_spark(spark))
        return
    if args.against:
        measure(Connection(args.against), args.records)
        return
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder)) as broker:
        connection = Connection(broker.bootstrap_servers)
        began = time.monotonic()
        fill(connection, args.records // PARTITIONS)
        print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
        command = [sys.executable, "-m", "benchmarks.origins", "--records", str(args.records)]
        subprocess.run([*command, "--against", broker.bootstrap_servers], check=True)
        if args.spark:
            subprocess.run([*command, "--against", broker.bootstrap_servers, "--spark", args.spark], check=True)


def fill(connection: Connection, each: int) -> None:
    """Write ``each`` records to every partition of the input, and as many to every partition of the output."""
    with Admin(connection, 60) as admin:
        for topic in (INPUT, OUTPUT):
            admin.create_topic(topic, PARTITIONS, 1, {"retention.ms": "-1"})
    producer = Producer(
        {**connection.librdkafka(), "enable.idempotence": True, "queue.buffering.max.messages": 4 * MICRO_BATCH}
    )
    for start in range(0, each, MICRO_BATCH):
        offsets = range(start, min(start + MICRO_BATCH, each))
        for source in range(PARTITIONS):
            for offset in offsets:
                producer.produce(INPUT, b"", partition=source)
                key = (offset * 13 + source) % KEYS
                origin: list[tuple[str, str | bytes | None]] = [("src", f"{INPUT}-{source}-{offset}")]
                producer.produce(OUTPUT, b"x" * 20, b"key-%d" % key, key % PARTITIONS, headers=origin)
            producer.flush(300)


def measure(connection: Connection, records: int, elsewhere: ReadsElsewhere | None = None) -> None:
    """Verify, and print the rate with this process's memory at each fifth."""
    ends = {(INPUT, p): records // PARTITIONS for p in range(PARTITIONS)}
    expected = Expected(dict.fromkeys(ends, 0), ends, ends)
    began, processor, fifths = time.monotonic(), time.process_time(), 0

    def tell(progress: object) -> None:
        nonlocal fifths
        if progress.done * 5 // progress.of > fifths:  # type: ignore[attr-defined]
            fifths = progress.done * 5 // progress.of  # type: ignore[attr-defined]
            print(f"{fifths} of 5: {time.monotonic() - began:.0f} s, {_memory()} MiB", flush=True)

    print(f"before: {_memory()} MiB", flush=True)
    result = compare_origins(
        connection,
        [OUTPUT],
        Question(Origin.parse("header:src")),
        lambda: expected,
        on_progress=tell,
        elsewhere=elsewhere,
    )
    took, processor = time.monotonic() - began, time.process_time() - processor
    assert not result.findings and result.counts["input"] == records, result
    print(
        f"{records:,} records in {took:.1f} s: {records / took:,.0f} a second, {records / processor:,.0f} a second of "
        f"processor; peak {_memory()} MiB; {result.unproven}"
    )


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
