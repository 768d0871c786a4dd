"""Measures the first batch of a cold Spark application: ``python -m benchmarks.first_batch``.

Each try is a process of its own, with a fresh JVM; one broker serves all of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil

from benchmarks.common import SINKS, Bench, median, ratio
from benchmarks.throughput import fill
from dagster_exactly_once.resources.spark import SparkSessionResource, kafka_source_options
from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker

#: One batch. What is measured is what starts, not what flows.
RECORDS = 20_000

#: A cold start on a machine that does much else.
LIMIT_S = 180.0


def main() -> None:
    """Run both sinks in turn; print seconds to the end of the query, from ``start()`` and from the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(".run/first-batch"))
    parser.add_argument("--one", nargs=3, metavar=("SINK", "BROKERS", "TOPIC"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(_one(args.folder.absolute(), *args.one)))
        return
    found = measure(args.folder.absolute(), args.rounds)
    for title, field in (("from start()", "started_s"), ("from the start of the process", "process_s")):
        seconds = {sink: [run[field] for run in runs] for sink, runs in found.items()}
        print(f"{title}:")
        for sink, each in seconds.items():
            print(f"  {sink}: {', '.join(f'{s:.1f}' for s in each)} s; median {median(each):.1f}")
        ours, theirs = seconds[SINKS[1]], seconds[SINKS[0]]
        apart = [a - b for a, b in zip(ours, theirs, strict=True)]
        least, most = f"{min(apart):.1f}", f"{max(apart):.1f}"
        print(f"  {SINKS[1]} / {SINKS[0]}: {ratio(ours, theirs)}; {median(apart):+.1f} s ({least} to {most})")


def measure(folder: Path, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return, by sink, the seconds of each round until its query ended: ``started_s`` from ``start()``, ``process_s``
    from the start of the process, which is what a restart of Spark's own takes.
    """
    found: dict[str, list[dict[str, float]]] = {sink: [] for sink in SINKS}
    with EmbeddedBroker(folder / "broker") as broker:
        connection = Connection.from_options({"kafka.bootstrap.servers": broker.bootstrap_servers})
        topic = fill(Bench(None, connection, folder), RECORDS)  # type: ignore[arg-type]
        for _ in range(rounds):
            for sink in SINKS:
                command = [sys.executable, "-m", "benchmarks.first_batch", "--folder", str(folder), "--one"]
                done = subprocess.run(
                    [*command, sink, broker.bootstrap_servers, topic],
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                    check=True,
                )
                found[sink].append(json.loads(done.stdout.splitlines()[-1]))
    return found


def _one(folder: Path, sink: str, brokers: str, topic: str) -> dict[str, float]:
    connection = Connection.from_options({"kafka.bootstrap.servers": brokers})
    resource = SparkSessionResource(
        master="local[2]", work_dir=str(folder / uuid.uuid4().hex), conf={"spark.log.level": "OFF"}
    )
    with resource.session() as spark:
        bench = Bench(spark, connection, folder)
        out = bench.topic("bench-first", 4)
        frame = spark.readStream.format("kafka").options(**kafka_source_options(connection, topic, RECORDS)).load()
        started = time.monotonic()
        query = bench.writer(sink, frame.select("key", "value"), out).trigger(availableNow=True).start()
        query.awaitTermination()
        took_s = time.monotonic() - started
        return {"started_s": round(took_s, 2), "process_s": round(time.time() - psutil.Process().create_time(), 2)}


if __name__ == "__main__":
    main()
