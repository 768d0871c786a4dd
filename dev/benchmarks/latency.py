"""Measures the time until a new record is visible to a read_committed reader, at a fixed rate (open loop), and the
highest rate under the same conditions.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Event
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from confluent_kafka import OFFSET_END, Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from benchmarks.common import SINKS, Bench, where_time_goes
from dagster_exactly_once.resources.spark import kafka_source_options
from exactly_once.deadline import Deadline
from exactly_once.kafka.connection import Connection

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

#: A running query of some system.
Q = TypeVar("Q")

PARTITIONS = 4
TICK_S = 0.01

#: Records that the load sends before it looks at the clock and for a stop again.
BURST = 20_000

#: Messages that the reader takes at once; it notes the time of one of so many: to read each one's takes too long.
AT_ONCE, ONE_OF = 1_000, 10

#: More than the load can send: it then sends what it can.
NO_LIMIT = 10_000_000

#: Records a second before the query has written its first batch.
FEW = 1_000

#: All is visible that will be when nothing was added for so long; and how long to wait for that under overload.
QUIET_S, DRAIN_S = 3.0, 60.0


@dataclass(frozen=True)
class LatencyRun:
    """One run: percentiles of the visibility latency in ms, and the numbers of records seen and sent."""

    sink: str
    p50: float
    p95: float
    p99: float
    seen: int
    batches: int
    steps_ms: dict[str, float]


@dataclass(frozen=True)
class Visible:
    """One run of one system under a fixed load: ms until a record was visible, over ``seen`` sampled records."""

    system: str
    round: int
    offered_rate: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    seen: int
    seconds: float
    partitions_out: int


def measure(bench: Bench, rate: int, seconds: float, warm_up_s: float, repeats: int) -> list[LatencyRun]:
    """Run both sinks in turn, ``repeats`` times."""
    return [one(bench, sink, rate, seconds, warm_up_s) for _ in range(repeats) for sink in SINKS]


def one(bench: Bench, sink: str, rate: int, seconds: float, warm_up_s: float) -> LatencyRun:
    """Measure one sink at ``rate`` records a second, after a warm-up."""
    with streaming(bench, sink, rate) as stream:
        progress: list[dict[str, Any]] = []
        query = stream.query
        ms = stream.latencies_ms(
            seconds, warm_up_s, lambda: progress.extend(p for p in query.recentProgress if p["numInputRows"])
        )
        said = query.exception()
    if not ms:
        raise RuntimeError(f"{sink}: no record became visible; the query says {said}")
    p50, p95, p99 = percentiles(ms)
    return LatencyRun(sink, p50, p95, p99, len(ms), len(progress[-50:]), where_time_goes(progress[-50:]))


def percentiles(ms: Sequence[float]) -> tuple[float, float, float]:
    """Return p50, p95 and p99 of sorted times."""
    p50, p95, p99 = (ms[int(len(ms) * q)] for q in (0.5, 0.95, 0.99))
    return p50, p95, p99


def maximum(bench: Bench, sink: str, seconds: float, warm_up_s: float) -> float:
    """Return the records a second that become visible while the load sends all it can: with load, broker, query and
    reader on the same cores, as in the other measurements here.
    """
    with streaming(bench, sink, NO_LIMIT) as stream:
        time.sleep(warm_up_s)
        before, began = stream.visible(), time.monotonic()
        time.sleep(seconds)
        return (stream.visible() - before) / (time.monotonic() - began)


@dataclass
class LatencyStream(Generic[Q]):
    """A running query between a load and a reader."""

    admin: AdminClient
    query: Q
    out: str
    stop_load: Event
    stop_reader: Event
    results: SimpleQueue[list[tuple[int, int]]]

    def latencies_ms(self, seconds: float, warm_up_s: float, then: Callable[[], None] = lambda: None) -> list[float]:
        """Measure for ``seconds`` after a warm-up, call ``then``, and end load and reader; the sorted times until a
        record was visible, in ms.
        """
        time.sleep(warm_up_s)  # an open loop is measured in time, there is no condition to wait for
        from_ns = time.time_ns()
        time.sleep(seconds)
        until_ns = time.time_ns()
        then()
        self.drain()  # slow records count too
        return sorted((at - created) / 1e6 for created, at in self.end() if from_ns <= created <= until_ns)

    def drain(self) -> None:
        """Stop the load, and wait until nothing more becomes visible; a minute at most."""
        self.stop_load.set()
        end, visible, since = time.monotonic() + DRAIN_S, -1, time.monotonic()
        while time.monotonic() < min(end, since + QUIET_S):
            if (now := self.visible()) != visible:
                visible, since = now, time.monotonic()
            time.sleep(0.1)

    def end(self) -> Sequence[tuple[int, int]]:
        """Stop the reader; return when some of the records were made and seen, in ns."""
        self.stop_reader.set()
        return self.results.get()

    def visible(self) -> int:
        """Return the number of offsets that a read_committed reader can see."""
        return sum(self.offsets(self.out).values())

    def offsets(self, topic: str) -> dict[int, int]:
        """Return the last stable offset of each partition."""
        query = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(PARTITIONS)}
        found = self.admin.list_offsets(query, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=30)
        return {tp.partition: future.result().offset for tp, future in found.items()}


@contextmanager
def streaming(
    bench: Bench, sink: str, rate: int, trigger: str | None = None
) -> Iterator[LatencyStream[StreamingQuery]]:
    """Run a pass-through of Spark :func:`under_load`.

    Parameters
    ----------
    trigger : str, optional
        Spark's ``processingTime``; default: batches follow each other.
    """

    @contextmanager
    def query(source: str, out: str) -> Iterator[StreamingQuery]:
        frame = (
            bench.spark.readStream.format("kafka")
            .options(**kafka_source_options(bench.connection, source))
            .load()
            .select("key", "value")
        )
        writer = bench.writer(sink, frame, out)
        query = (writer.trigger(processingTime=trigger) if trigger else writer).start()
        try:
            yield query
        finally:
            query.stop()

    with under_load(bench, rate, query) as stream:
        yield stream


@contextmanager
def under_load(
    bench: Bench, rate: int, start: Callable[[str, str], AbstractContextManager[Q]]
) -> Iterator[LatencyStream[Q]]:
    """Run a query under load, which is full from the first output on; stop everything when the block ends.

    Parameters
    ----------
    rate : int
        Records of 104 bytes a second.
    start : callable
        Of source and output topic: runs the query until its block ends.
    """
    source, out = bench.topic("latency-in", PARTITIONS), bench.topic("latency-out", PARTITIONS)
    context = multiprocessing.get_context("spawn")
    full, stop_load, stop_reader = context.Event(), context.Event(), context.Event()
    results = context.SimpleQueue()
    load = context.Process(target=_load, args=(bench.connection, source, rate, full, stop_load), daemon=True)
    reader = context.Process(target=_read, args=(bench.connection, out, stop_reader, results), daemon=True)
    admin = AdminClient(bench.connection.librdkafka())
    reader.start()
    load.start()
    try:
        with start(source, out) as query:
            stream = LatencyStream(admin, query, out, stop_load, stop_reader, results)
            _wait_for_output(stream)
            full.set()
            yield stream
            stop_load.set()
            stop_reader.set()
            load.join(10)
            reader.join(10)
    finally:
        for process in (load, reader):
            process.kill()
        admin.delete_topics([source, out])[out].result(30)


def _wait_for_output(stream: LatencyStream[Any]) -> None:
    for _ in Deadline(120).tries():
        if stream.visible():
            return
    raise TimeoutError(f"nothing was visible in {stream.out} after 120 s")


def _load(connection: Connection, topic: str, rate: int, full: Event, stop: Event) -> None:
    """Send :data:`FEW` records a second until ``full`` is set, so that nothing piles up before the query works; then
    ``rate``.
    """
    producer = Producer({**connection.librdkafka(), "linger.ms": 5, "compression.type": "lz4"})
    padding, sent, started, now = b"x" * 84, 0, time.monotonic(), min(FEW, rate)
    while not stop.is_set():
        if now != rate and full.is_set():
            now, sent, started = rate, 0, time.monotonic()
        due = min(int((time.monotonic() - started) * now), sent + BURST)
        created = b"%020d" % time.time_ns()
        try:
            while sent < due:
                producer.produce(topic, created + padding, b"%08d" % (sent % 10_000))
                sent += 1
        except BufferError:  # it sends what it can
            producer.poll(TICK_S)
            continue
        producer.poll(0)
        if now < NO_LIMIT:
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
        messages = consumer.consume(AT_ONCE, 0.005)
        at = time.time_ns()
        if len(seen) < 5_000_000:
            some = [m for m in messages if not m.error() and (m.offset() or 0) % ONE_OF == 0]
            seen += [(int((m.value() or b"")[:20]), at) for m in some]
    results.put(seen[:: max(1, len(seen) // 200_000)])
    consumer.close()
