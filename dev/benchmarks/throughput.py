"""Measures the pass-through of records of about 100 B, Kafka to Kafka, at full speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import Producer

from benchmarks.common import SINKS, Bench, where_time_goes
from benchmarks.processors import Stopwatch
from dagster_exactly_once.resources.spark import kafka_source_options

PARTITIONS = 4
#: The size of a batch that keeps both sinks busy without filling the memory of a small machine.
BATCH = 800_000


@dataclass(frozen=True)
class ThroughputRun:
    """One run: records a second over the whole query, and without its first batch, which starts and compiles code;
    the processor time of each record in microseconds, by process.
    """

    sink: str
    rate: float
    steady_rate: float
    steps_ms: dict[str, float]
    processor_us: dict[str, float]


def fill(bench: Bench, records: int) -> str:
    """Fill a topic with ``records`` records of about 100 B: a key of 8 and a value of 92 bytes."""
    topic = bench.topic("bench-in", PARTITIONS)
    producer = Producer(
        {**bench.connection.librdkafka(), "linger.ms": 50, "compression.type": "lz4", "partitioner": "murmur2_random"}
    )
    padding = b"x" * 76
    for i in range(records):
        key = b"%08d" % (i % 100_000)
        while True:
            try:
                producer.produce(topic, b"%016d" % i + padding, key)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(60)
    return topic


def measure(bench: Bench, records: int, repeats: int, sinks: Sequence[str] = SINKS) -> list[ThroughputRun]:
    """Run the sinks in turn, ``repeats`` times, after one shorter warm-up of each."""
    warm, topic = fill(bench, min(records, BATCH)), fill(bench, records)
    for sink in sinks:
        _run(bench, sink, warm)
    return [_run(bench, sink, topic) for _ in range(repeats) for sink in sinks]


def _run(bench: Bench, sink: str, topic: str) -> ThroughputRun:
    out = bench.topic("bench-out", PARTITIONS)
    frame = (
        bench.spark.readStream.format("kafka")
        .options(**kafka_source_options(bench.connection, topic, BATCH))
        .load()
        .select("key", "value")
    )
    watch, started = Stopwatch(str(bench.folder / "broker")), time.monotonic()
    query = bench.writer(sink, frame, out).trigger(availableNow=True).start()
    query.awaitTermination()
    seconds = time.monotonic() - started
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    steady = progress[1:] or progress
    steady_s = sum(p["durationMs"]["triggerExecution"] for p in steady) / 1000
    rows = sum(p["numInputRows"] for p in progress)
    steady_rate = sum(p["numInputRows"] for p in steady) / steady_s
    return ThroughputRun(sink, rows / seconds, steady_rate, where_time_goes(steady), watch.per_record_us(rows))
