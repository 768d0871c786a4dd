"""Measures the time until a new record is visible to a read_committed reader, at a fixed rate (open loop)."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

from benchmarks.common import SINKS, Bench, where_time_goes
from exactly_once.deadline import Deadline
from exactly_once.kafka.connection import Connection
from resources.spark import kafka_source_options

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

PARTITIONS = 4
TICK_S = 0.01


@dataclass(frozen=True)
class Run:
    """One run: percentiles of the visibility latency in ms, and the numbers of records seen and sent."""

    sink: str
    p50: float
    p95: float
    p99: float
    seen: int
    batches: int
    steps_ms: dict[str, float]


def measure(bench: Bench, rate: int, seconds: float, warm_up_s: float, repeats: int) -> list[Run]:
    """Run both sinks in turn, ``repeats`` times."""
    return [_run(bench, sink, rate, seconds, warm_up_s) for _ in range(repeats) for sink in SINKS]


def _run(bench: Bench, sink: str, rate: int, seconds: float, warm_up_s: float) -> Run:
    source, out = bench.topic("latency-in", PARTITIONS), bench.topic("latency-out", PARTITIONS)
    context = multiprocessing.get_context("spawn")
    stop, results = context.Event(), context.SimpleQueue()
    load = context.Process(target=_load, args=(bench.connection, source, rate, stop), daemon=True)
    reader = context.Process(target=_read, args=(bench.connection, out, stop, results), daemon=True)
    frame = (
        bench.spark.readStream.format("kafka")
        .options(**kafka_source_options(bench.connection, source))
        .load()
        .select("key", "value")
    )
    reader.start()
    load.start()
    query = bench.writer(sink, frame, out).start()
    try:
        _wait_for_output(query)
        time.sleep(warm_up_s)  # an open loop is measured in time, there is no condition to wait for
        from_ns = time.time_ns()
        time.sleep(seconds)
        until_ns = time.time_ns() - 2_000_000_000  # the newest records may not be visible yet
        progress = [p for p in query.recentProgress if p["numInputRows"]][-50:]
    finally:
        stop.set()
        seen: Sequence[tuple[int, int]] = results.get()
        load.join(10)
        reader.join(10)
        query.stop()
    ms = sorted((at - created) / 1e6 for created, at in seen if from_ns <= created <= until_ns)
    if not ms:
        raise RuntimeError(f"{sink}: no record became visible; the query says {query.exception()}")
    p50, p95, p99 = (ms[int(len(ms) * q)] for q in (0.5, 0.95, 0.99))
    return Run(sink, p50, p95, p99, len(ms), len(progress), where_time_goes(progress))


def _wait_for_output(query: StreamingQuery) -> None:
    deadline = Deadline(120)
    for _ in deadline.tries():
        if any(p["numInputRows"] for p in query.recentProgress) or not query.isActive:
            return


def _load(connection: Connection, topic: str, rate: int, stop: Event) -> None:
    producer = Producer({**connection.librdkafka(), "linger.ms": 5, "compression.type": "lz4"})
    padding, sent, started = b"x" * 84, 0, time.monotonic()
    while not stop.is_set():
        due = int((time.monotonic() - started) * rate)
        created = b"%020d" % time.time_ns()
        for i in range(sent, due):
            producer.produce(topic, created + padding, b"%08d" % (i % 10_000))
        sent = due
        producer.poll(0)
        time.sleep(TICK_S)
    producer.flush(10)


def _read(connection: Connection, topic: str, stop: Event, results: SimpleQueue[list[tuple[int, int]]]) -> None:
    consumer = Consumer(
        {
            **connection.librdkafka(),
            "group.id": f"reader-{topic}",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_END) for p in range(PARTITIONS)])
    seen: list[tuple[int, int]] = []
    while not stop.is_set():
        message = consumer.poll(0.05)
        if message is not None and not message.error() and len(seen) < 5_000_000:
            seen.append((int((message.value() or b"")[:20]), time.time_ns()))
    results.put(seen[:: max(1, len(seen) // 200_000)])
    consumer.close()
