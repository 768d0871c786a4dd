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

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.participants.kafka.sender import Sender
from exactly_once.verify.by_origin.comparison import Question, compare_origins
from exactly_once.verify.by_origin.origin import Origin
from exactly_once.verify.expected import Expected
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
    parser.add_argument("--against", help=argparse.SUPPRESS)
    args = parser.parse_args()
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


def fill(connection: Connection, each: int) -> None:
    """Write ``each`` records to every partition of the input, and as many to every partition of the output."""
    with Admin(connection, 60) as admin:
        for topic in (INPUT, OUTPUT):
            admin.create_topic(topic, PARTITIONS, 1, {"retention.ms": "-1"})
    sender = Sender(connection, {}, {"enable.idempotence": True}, "the benchmark's input")
    for start in range(0, each, MICRO_BATCH):
        offsets = range(start, min(start + MICRO_BATCH, each))
        for source in range(PARTITIONS):
            for offset in offsets:
                sender.send(INPUT, None, b"", source)
                key = (offset * 13 + source) % KEYS
                origin = [("src", b"%s-%d-%d" % (INPUT.encode(), source, offset))]
                sender.send(OUTPUT, b"key-%d" % key, b"x" * 20, key % PARTITIONS, origin)
    sender.flush(300)


def measure(connection: Connection, records: int) -> None:
    """Verify, and print the rate with the memory at each fifth."""
    ends = {(INPUT, p): records // PARTITIONS for p in range(PARTITIONS)}
    expected = Expected(dict.fromkeys(ends, 0), ends, ends)
    began, fifths = time.monotonic(), 0

    def tell(progress: object) -> None:
        nonlocal fifths
        if progress.done * 5 // progress.of > fifths:  # type: ignore[attr-defined]
            fifths = progress.done * 5 // progress.of  # type: ignore[attr-defined]
            print(f"{fifths} of 5: {time.monotonic() - began:.0f} s, {_memory()} MiB", flush=True)

    print(f"before: {_memory()} MiB", flush=True)
    result = compare_origins(
        connection, [OUTPUT], Question(Origin.parse("header:src")), lambda: expected, on_progress=tell
    )
    took = time.monotonic() - began
    assert not result.findings and result.by_origin["input"] == records, result
    print(
        f"{records:,} records in {took:.1f} s: {records / took:,.0f} a second; peak {_memory()} MiB; {result.unproven}"
    )


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
