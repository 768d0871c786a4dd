"""Measures what distance costs a batch: the sinks in turn, behind a line that delays every byte."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import Producer

from benchmarks.common import AT_LEAST_ONCE, OURS, SPARKS, Bench, bench, median, where_time_goes
from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.spark.progress import last_ended
from testkit.far import FarBroker

SINKS = (SPARKS, OURS, AT_LEAST_ONCE)

#: Between client and broker and back: one machine, three zones, two regions.
ROUND_TRIPS_MS = (0.0, 2.0, 10.0)

#: Partitions of the input and of the output: parts of a batch.
PARTS = 2

#: Records a second, of 100 bytes: batches are small, so that what they cost is what they wait.
RATE = 2_000

#: Batches before the measured ones: the first of a query claims the sink, and the JVM compiles.
WARM_UP = 20

#: Measured of each run.
BATCHES = 60

#: A query may take this long for its batches.
RUN_S = 300.0

#: Questions of one round trip, to see how long one really is.
PROBES = 20


@dataclass(frozen=True)
class FarRun:
    """One run of one sink: medians of its batches in ms, at a round trip of ``round_trip_ms`` as measured."""

    system: str
    round: int
    asked_ms: float
    round_trip_ms: float
    batches: int
    trigger_ms: float
    add_batch_ms: float
    steps_ms: dict[str, float]


def measure(folder: Path, rounds: int, batches: int) -> Iterator[FarRun]:
    """Run all sinks at each distance, one after the other, ``rounds`` times."""
    broker = FarBroker(folder / "far" / "broker", apart=True)
    with bench(folder / "bench", "local[2]", broker) as near:
        far = replace(near, connection=Connection(broker.far_servers))
        for number in range(1, rounds + 1):
            for asked_ms in ROUND_TRIPS_MS:
                broker.be_far(asked_ms / 1000)
                took_ms = probed_ms(far.connection, near.topic("probe", 1))
                for sink in SINKS:
                    yield _one(near, far, sink, number, asked_ms, took_ms, batches)
        broker.be_far(0)


def probed_ms(connection: Connection, topic: str) -> float:
    """Return how long one question takes, the median."""
    with Admin(connection) as admin:
        admin.high_watermark(topic, 0)
        found = []
        for _ in range(PROBES):
            began = time.perf_counter()
            admin.high_watermark(topic, 0)
            found.append((time.perf_counter() - began) * 1000)
    return median(found)


def _one(
    near: Bench, far: Bench, sink: str, number: int, asked_ms: float, round_trip_ms: float, batches: int
) -> FarRun:
    source, out = near.topic("far-in", PARTS), near.topic("far-out", PARTS)
    frame = far.spark.readStream.format("kafka").options(**far.connection.spark(), subscribe=source).load()
    writer = far.writer(sink, frame.select("key", "value"), out)
    if sink == SPARKS:  # for throughput it has 20 ms, which a small batch waits
        writer = writer.option("kafka.linger.ms", "0")
    with _load(near.connection, source):
        query = writer.start()
        try:
            for _ in Deadline(RUN_S).tries():
                if not query.isActive:
                    raise RuntimeError(f"{sink}: {query.exception()}")
                last = query.lastProgress
                if last and last_ended(last) >= WARM_UP + batches:
                    break
            progress = [p for p in query.recentProgress if p["numInputRows"] and p["batchId"] > WARM_UP]
        finally:
            query.stop()
    steps = where_time_goes(progress)
    return FarRun(
        sink, number, asked_ms, round_trip_ms, len(progress), steps["triggerExecution"], steps["addBatch"], steps
    )


@contextmanager
def _load(connection: Connection, topic: str) -> Iterator[None]:
    """Send :data:`RATE` records a second from nearby, a few at a time."""
    stop, each_s = threading.Event(), 0.02

    def send() -> None:
        producer, sent = Producer({**connection.librdkafka(), "linger.ms": 5}), 0
        while not stop.wait(each_s):
            for _ in range(int(RATE * each_s)):
                producer.produce(topic, b"x" * 100, b"k%d" % (sent % 97))
                sent += 1
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def ratios(runs: Sequence[FarRun], sink: str, asked_ms: float) -> list[float]:
    """Return, round by round, how long a batch of ``sink`` takes in terms of Spark's own sink's at this distance."""
    at = {(r.system, r.round): r.trigger_ms for r in runs if r.asked_ms == asked_ms}
    return [ms / at[SPARKS, n] for (system, n), ms in sorted(at.items()) if system == sink and (SPARKS, n) in at]


def round_trips(runs: Sequence[FarRun], sink: str) -> list[float]:
    """Return, round by round, how many round trips ``addBatch`` waits: the slope over the round trips as measured."""
    found = []
    for number in sorted({r.round for r in runs}):
        mine = [r for r in runs if (r.system, r.round) == (sink, number)]
        if len({r.asked_ms for r in mine}) > 1:
            slope, _ = statistics.linear_regression([r.round_trip_ms for r in mine], [r.add_batch_ms for r in mine])
            found.append(slope)
    return found
