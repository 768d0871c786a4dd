"""Record batches on their way to the leaders of their partitions: the Produce requests of one producer.

Each partition has one batch on its way at a time, and each leader one request, which carries the first waiting batch of
every partition that it leads. So batches arrive in the order of their sequence numbers, and one that is sent again
after a silence is recognised by the broker (KIP-98): it answers with the offset, or DUPLICATE_SEQUENCE_NUMBER.

The requests run on the admin client's own thread; :meth:`Outbox.put` and :meth:`Outbox.flush` belong to one other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import KafkaError as Code
from kafka.errors import (
    DuplicateSequenceNumberError,
    KafkaError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
    for_code,
)

from exactly_once.errors import ExactlyOnceError, PrepareFailed
from exactly_once.failpoints import reach
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.errors import check, of_delivery
from exactly_once.kafka.produce.requests import Producer, add_partitions_request, produce_request

#: Between two tries, as retry.backoff.ms of the Java client.
BACKOFF_S = 0.1

#: So long may a topic or a partition be unknown to the brokers: one that was just created, or whose leader has just
#: learnt of it (librdkafka's topic.metadata.propagation.max.ms).
PROPAGATION_S = 30.0


@dataclass(frozen=True)
class Limits:
    """The limits of a producer, under Kafka's names.

    Attributes
    ----------
    request_bytes : int
        max.request.size: a request ends before the batch that would exceed it, but has at least one.
    waiting_bytes : int
        buffer.memory: :meth:`Outbox.put` waits while more is unacknowledged.
    request_ms, delivery_s
        request.timeout.ms; delivery.timeout.ms, in seconds.
    """

    request_bytes: int
    waiting_bytes: int
    request_ms: int
    delivery_s: float


class Sealed(NamedTuple):
    """A record batch, ready to be sent.

    Attributes
    ----------
    size : int
        Its bytes without compression, which count against ``waiting_bytes``: the rows stay until it is acknowledged.
    record : callable
        Finds a record to name in an error, by its index in the batch; None: the largest. Its key, and its value's size.
    """

    data: bytes
    size: int
    record: Callable[[int | None], tuple[object, int]]


@dataclass
class _Queue:
    """What waits for one partition; ``since``: when its first batch became the first."""

    batches: deque[Sealed]
    since: float
    leader: int = -1
    on_its_way: bool = False
    added: bool = False


class Outbox:
    """Sends sealed batches of one producer, and keeps those that are not acknowledged.

    Attributes
    ----------
    offsets : dict
        By partition, the offset of its first batch, as its leader answered; -1 when a retry's answer did not tell.
    """

    def __init__(self, admin: Admin, producer: Producer, limits: Limits, name: str):
        self._admin = admin
        self._producer = producer
        self._limits = limits
        self._name = name
        self._queues: dict[Partition, _Queue] = {}
        self._busy: set[int] = set()
        self._waiting = 0
        self._closed = False
        self._failure: ExactlyOnceError | None = None
        self._changed = threading.Condition()
        self.offsets: dict[Partition, int] = {}

    # -- for the sending thread -----------------------------------------------------------------------------------

    def put(self, partition: Partition, leader: int, batch: Sealed) -> None:
        """Queue the next batch of ``partition`` for :meth:`start`; waits while too much is unacknowledged.

        Parameters
        ----------
        leader : int
            The partition's leader as far as the caller knows.

        Raises
        ------
        PrepareFailed, InvalidRecord, NotAuthorized
            Of any batch before.
        """
        size = batch.size
        with self._changed:
            if self._waiting + size > self._limits.waiting_bytes:
                self.start()
            self._wait(lambda: not self._waiting or self._waiting + size <= self._limits.waiting_bytes)
            queue = self._queues.get(partition)
            if queue is None:
                queue = self._queues[partition] = _Queue(deque(), 0.0, leader)
            if not queue.batches:
                queue.since = time.monotonic()
            queue.batches.append(batch)
            self._waiting += size

    def start(self) -> None:
        """Send what is queued: a request carries batches of all partitions that a broker leads."""
        with self._changed:
            self._wake(q.leader for q in self._queues.values() if q.batches)

    def flush(self, timeout_s: float) -> None:
        """Wait until every batch is acknowledged.

        Raises
        ------
        PrepareFailed, InvalidRecord, NotAuthorized
        """
        with self._changed:
            self.start()
            self._wait(lambda: not self._waiting, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Send nothing more, and wait for the answers that are due: an abort must not overtake what it aborts."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._busy, timeout_s)

    def _wait(self, condition: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Wait for ``condition``, or a failure. Deliveries have a timeout of their own, which ends every wait."""
        timeout_s = self._limits.delivery_s + self._limits.request_ms / 1000 if timeout_s is None else timeout_s
        done = self._changed.wait_for(lambda: self._failure is not None or condition(), timeout_s)
        if self._failure is not None:
            raise self._failure
        if not done:
            raise self._late(timeout_s)

    # -- on the admin client's thread -----------------------------------------------------------------------------

    def _wake(self, leaders: Iterable[int]) -> None:
        for leader in {*leaders} - self._busy:
            self._busy.add(leader)
            self._admin.begin(lambda leader=leader: self._drain(leader))  # type: ignore[misc]

    async def _drain(self, leader: int) -> None:
        """Send what waits for one leader, a request at a time, until nothing is left."""
        try:
            while partitions := self._take(leader):
                failure = await self._send(leader, partitions)
                if failure is not None:
                    await self._look_again(failure)
        except ExactlyOnceError as e:
            self._fail(e, leader)
        except Exception as e:
            self._fail(self._named(e, ("", -1)), leader)

    def _take(self, leader: int) -> list[Partition]:
        """The partitions whose next batches go into one request; none: nothing waits for this leader."""
        with self._changed:
            taken: list[Partition] = []
            room = self._limits.request_bytes
            for partition, queue in self._queues.items() if not (self._closed or self._failure) else ():
                if queue.leader != leader or queue.on_its_way or not queue.batches:
                    continue
                room -= len(queue.batches[0].data)
                if taken and room < 0:
                    break
                queue.on_its_way = True
                taken.append(partition)
            if not taken:
                self._busy.discard(leader)
                self._changed.notify_all()
            return taken

    async def _send(self, leader: int, partitions: Sequence[Partition]) -> KafkaError | None:
        """Send the first batch of each of ``partitions``; return what may pass by itself, if something failed."""
        try:
            if leader < 0:
                return UnknownTopicOrPartitionError(f"{partitions[0][0]}-{partitions[0][1]}")
            await self._add(partitions)
            batches = {p: self._queues[p].batches[0].data for p in partitions}
            request = produce_request(self._producer, batches, self._limits.request_ms)
            answer = await self._admin.send(request, leader, self._limits.request_ms)
            failures = [
                self._read((topic.name, p.index), p) for topic in answer.responses for p in topic.partition_responses
            ]
            return next((f for f in failures if f is not None), None)
        except KafkaError as e:
            if not _passes(e):
                raise self._named(e, partitions[0]) from e
            return e
        finally:
            with self._changed:
                sent = [self._queues[p] for p in partitions]
                for queue in sent:
                    queue.on_its_way = False
                self._wake(q.leader for q in sent if q.batches)  # another leader's turn, if one was found meanwhile

    async def _add(self, partitions: Sequence[Partition]) -> None:
        """Add partitions to the transaction, before the first batch to each; not where Produce does it."""
        producer = self._producer
        new = [p for p in partitions if not self._queues[p].added]
        if producer.transactional_id is None or producer.implicit or not new:
            return
        request = add_partitions_request(producer, new)
        node = (await self._admin.coordinators([producer.transactional_id]))[producer.transactional_id]
        try:
            answer = await self._admin.send(request, node)
            for topic in answer.results_by_topic_v3_and_below:
                for p in topic.results_by_partition:
                    check(p.partition_error_code, f"AddPartitionsToTxn of {topic.name}-{p.partition_index}")
        except KafkaError:
            self._admin.forget_coordinator(producer.transactional_id)
            raise
        for partition in new:
            self._queues[partition].added = True

    def _read(self, partition: Partition, answer: Any) -> KafkaError | None:
        """Take the answer for one partition; return an error after which the same batch is sent again."""
        if answer.error_code not in (0, DuplicateSequenceNumberError.errno):
            error: KafkaError = for_code(answer.error_code)(f"Produce to {partition[0]}-{partition[1]}")
            if not error.retriable:
                raise self._refused(answer, partition)
            return error
        with self._changed:
            queue = self._queues[partition]
            self._waiting -= queue.batches.popleft().size
            queue.since = time.monotonic()
            self.offsets.setdefault(partition, int(answer.base_offset))
            self._changed.notify_all()
        reach("some-sent")
        return None

    async def _look_again(self, failure: KafkaError) -> None:
        """Before the next try: time for what may pass, and a fresh look at who leads."""
        self._check_time(failure)
        await self._admin.pause(BACKOFF_S)
        with self._changed:
            waiting = {p: q for p, q in self._queues.items() if q.batches}
        try:
            await self._admin.brokers()
            led = await self._admin.leaders(sorted({topic for topic, _ in waiting}))
        except KafkaError as e:
            if not _passes(e):
                raise self._named(e, next(iter(waiting))) from e
            return
        now = {partition: node for node, partitions in led.items() for partition in partitions}
        with self._changed:
            for partition, queue in waiting.items():
                queue.leader = now.get(partition, -1)
            self._wake(q.leader for q in waiting.values())

    def _check_time(self, failure: KafkaError) -> None:
        """Give up a batch that has waited for too long."""
        now = time.monotonic()
        with self._changed:
            for partition, queue in self._queues.items():
                waited_s = now - queue.since if queue.batches else 0.0
                if isinstance(failure, UnknownTopicOrPartitionError) and waited_s > PROPAGATION_S:
                    raise self._named(failure, partition)
                if waited_s > self._limits.delivery_s:
                    raise self._late(self._limits.delivery_s, failure)

    def _late(self, seconds: float, failure: KafkaError | None = None) -> PrepareFailed:
        why = f" ({failure})" if failure is not None else ""
        return PrepareFailed(
            f"{self._name}: {self._waiting} bytes of records were not acknowledged within {seconds:g} s{why}",
            "Check the brokers' health, or raise kafka.delivery.timeout.ms",
        )

    def _named(self, e: Exception, partition: Partition) -> ExactlyOnceError:
        """Our name for the failure of the first batch of ``partition``, the same as librdkafka's failures have."""
        code = getattr(e, "errno", None)
        if not isinstance(code, int) or not isinstance(e, KafkaError):
            return PrepareFailed(f"{self._name}: {e!r}", "Start the stream again once the brokers are healthy")
        return self._of(Code(code), partition)

    def _refused(self, answer: Any, partition: Partition) -> ExactlyOnceError:
        """The same for an answer, which may name the record, and say what is wrong with it (KIP-467)."""
        named = next(iter(answer.record_errors or ()), None)
        said = (named and named.batch_index_error_message) or answer.error_message
        return self._of(Code(answer.error_code, said), partition, named.batch_index if named else None)

    def _of(self, error: Code, partition: Partition, index: int | None = None) -> ExactlyOnceError:
        queue = self._queues.get(partition)
        key, size = queue.batches[0].record(index) if queue is not None and queue.batches else (None, 0)
        return of_delivery(error, self._name, f"{partition[0]}-{partition[1]}", key, size)

    def _fail(self, failure: ExactlyOnceError, leader: int) -> None:
        with self._changed:
            self._failure = self._failure or failure
            self._busy.discard(leader)
            self._changed.notify_all()


def _passes(e: KafkaError) -> bool:
    """Whether the next try may go better. A broker that has just joined is unknown until the client looks again."""
    return bool(e.retriable) or isinstance(e, UnknownBrokerIdError)
