"""Records on their way to the brokers, column by column; :mod:`exactly_once.kafka.sender` is librdkafka's way.

Rows are gathered, parted by partition, encoded as record batches (:mod:`.record_batches`) and handed to an
:class:`~exactly_once.kafka.produce.outbox.Outbox`, all without a Python object for each of them.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np
import pyarrow.compute as pc
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException

from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable, ExactlyOnceError, PrepareFailed
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.errors import of_delivery, of_sender
from exactly_once.kafka.open_transaction import OPEN_BUDGET_S
from exactly_once.kafka.produce.compression import Codec
from exactly_once.kafka.produce.murmur2 import partitions_of
from exactly_once.kafka.produce.outbox import PROPAGATION_S, Limits, Outbox, Sealed
from exactly_once.kafka.produce.partitioning import spread
from exactly_once.kafka.produce.record_batches import Batch, encode_by_partition, seal
from exactly_once.kafka.produce.records import CHOOSE, NOW, Ints, Records, join
from exactly_once.kafka.produce.requests import Producer
from exactly_once.kafka.transactions import initialise

#: The uncompressed size of a batch, librdkafka's own default: brokers work for each batch, not for each record.
_BATCH_BYTES = 1_000_000

#: kafka.batch.size counts what is sent; compressed, JSON and the like are a quarter of what they were.
_RATIO = 4

#: Rows are gathered up to this size before they are encoded: four full batches. Spark hands over some 10,000 at a time.
_GATHERED_BYTES = 4_000_000

#: A topic's leaders are asked for again after this long, and new partitions found: the Java client's default.
_METADATA_AGE_MS = 300_000

#: Of a sequence number, after which comes 0.
_LAST_SEQUENCE = (1 << 31) - 1


@dataclass(frozen=True)
class Settings:
    """A producer's settings."""

    codec: Codec
    batch_bytes: int
    record_bytes: int
    limits: Limits
    metadata_age_s: float

    @classmethod
    def of(cls, producer: Mapping[str, str], delivery_s: float) -> Self:
        """From librdkafka's names, as :class:`~exactly_once.options.SinkOptions` has them."""
        level = producer.get("compression.level")
        codec = Codec(producer.get("compression.type", "none"), int(level) if level is not None else None)
        largest = int(producer.get("message.max.bytes", 1_048_576))
        batch = int(producer.get("batch.size", _BATCH_BYTES)) * (1 if codec.name == "none" else _RATIO)
        return cls(
            codec,
            min(batch, largest),
            largest,
            Limits(
                largest,
                int(producer.get("queue.buffering.max.kbytes", 32 * 1024)) * 1024,
                int(producer.get("request.timeout.ms", 30_000)),
                delivery_s,
            ),
            int(producer.get("metadata.max.age.ms", _METADATA_AGE_MS)) / 1000,
        )


class Routes:
    """Who leads the partitions of a topic, remembered for the tasks of one process."""

    def __init__(self, admin: Admin):
        self.admin = admin
        self._known: dict[str, tuple[list[int], float]] = {}

    def leaders(self, topic: str, age_s: float) -> list[int]:
        """The leader of each partition of ``topic``, as a broker said at most ``age_s`` ago; [] when no broker knows
        the topic for long enough.

        Raises
        ------
        PrepareFailed, NotAuthorized
        """
        leaders, asked = self._known.get(topic, ([], -math.inf))
        if time.monotonic() - asked < age_s:
            return leaders
        for _ in Deadline(PROPAGATION_S).tries():
            try:
                led = self.admin.renew(PROPAGATION_S).ask(lambda: self.admin.leaders([topic]))
            except BrokerUnreachable as e:
                raise PrepareFailed(e.what, e.way_out) from e
            found = {index: node for node, partitions in led.items() for _, index in partitions}
            if found:
                leaders = [found[index] for index in range(len(found))]
                self._known[topic] = leaders, time.monotonic()
                return leaders
        return []

    def forget(self) -> None:
        """Ask anew: something was not where it was."""
        self._known.clear()


class ArrowSender:
    """Sends columns of rows and keeps count of them; see :class:`~exactly_once.kafka.produce.records.ColumnSender`.

    Parameters
    ----------
    name : str
        For errors.
    """

    def __init__(self, routes: Routes, producer: Producer, settings: Settings, name: str):
        self.name = name
        self.records = 0
        self.bytes = 0
        self._routes = routes
        self._producer = producer
        self._settings = settings
        self._outbox = Outbox(routes.admin, producer, settings.limits, name)
        self._gathered: dict[str, list[Records]] = {}
        self._gathered_bytes = 0
        self._sequences: dict[Partition, int] = {}
        self._next = random.randrange(1 << 16)  # where rows without key go first

    def send_columns(self, topic: str, rows: Records) -> None:
        """See :class:`~exactly_once.kafka.produce.records.ColumnSender`."""
        if not len(rows):
            return
        size = rows.bytes
        self.records += len(rows)
        self.bytes += size
        self._gathered.setdefault(topic, []).append(rows)
        self._gathered_bytes += size
        if self._gathered_bytes >= _GATHERED_BYTES:
            self._send_gathered()

    def flush(self, timeout_s: float) -> None:
        """Wait until every record is acknowledged.

        Raises
        ------
        PrepareFailed, InvalidRecord, NotAuthorized
            When one was not.
        """
        try:
            self._send_gathered()
            self._outbox.flush(timeout_s)
        except ExactlyOnceError:
            self._routes.forget()
            raise

    def _send_gathered(self) -> None:
        gathered, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        for topic, parts in gathered.items():
            for rows in _in_portions(join(parts)):
                self._send(topic, rows, self._leaders(topic, rows))

    def _leaders(self, topic: str, rows: Records) -> list[int]:
        """The leader of each partition of ``topic``, of those that ``rows`` name among them."""
        leaders = self._routes.leaders(topic, self._settings.metadata_age_s)
        if not leaders:
            raise of_sender(KafkaException(Code(Code.UNKNOWN_TOPIC_OR_PART)), self.name, topic)
        named = int(rows.partitions.max(initial=CHOOSE)) if rows.partitions is not None else CHOOSE
        if named >= len(leaders):
            self._routes.forget()  # it may be new
            leaders = self._routes.leaders(topic, self._settings.metadata_age_s)
            if named >= len(leaders):
                raise of_delivery(Code(Code.UNKNOWN_TOPIC_OR_PART), self.name, f"{topic}-{named}", None, 0)
        return leaders

    def _send(self, topic: str, rows: Records, leaders: list[int]) -> None:
        now_ms = int(time.time() * 1000)
        if rows.timestamps_ms is not None:
            rows = replace(rows, timestamps_ms=np.where(rows.timestamps_ms == NOW, now_ms, rows.timestamps_ms))
        partitions = self._partitions(rows, len(leaders))
        batches = encode_by_partition(rows, partitions, now_ms, self._settings.codec, self._settings.batch_bytes)
        before: dict[int, int] = {}
        for partition, batch in batches:
            first = before.get(partition, 0)
            before[partition] = first + batch.count
            record = partial(record_of, rows, partitions, partition, first, batch.count)
            if batch.count == 1 and batch.size > self._settings.record_bytes:
                key, size = record(0)
                raise of_sender(KafkaException(Code(Code.MSG_SIZE_TOO_LARGE)), self.name, topic, key, bytes(size))
            self._put((topic, partition), leaders[partition], batch, record)
        self._outbox.start()

    def _put(
        self, partition: Partition, leader: int, batch: Batch, record: Callable[[int | None], tuple[object, int]]
    ) -> None:
        producer = self._producer
        first = self._sequences.get(partition, 0)
        self._sequences[partition] = (first + batch.count) & _LAST_SEQUENCE
        data = seal(batch, producer.producer_id, producer.epoch, first, producer.transactional_id is not None)
        self._outbox.put(partition, leader, Sealed(data, batch.size, record))

    def _partitions(self, rows: Records, count: int) -> Ints:
        """The partition of each row: its own choice, else its key's, else in turn."""
        chosen = rows.partitions
        keyed = partitions_of(rows.keys, count) if rows.keys is not None else np.full(len(rows), CHOOSE)
        found: Ints = keyed if chosen is None else np.where(chosen == CHOOSE, keyed, chosen)
        free = np.flatnonzero(found == CHOOSE)
        if len(free):
            found = found.copy()
            found[free], self._next = spread(len(free), len(free) * rows.bytes // len(rows), count, self._next)
        return found


def _in_portions(rows: Records) -> Iterator[Records]:
    """The rows in portions of about :data:`_GATHERED_BYTES`: Spark hands over up to 64 MB at a time."""
    each = -(-len(rows) // max(1, rows.bytes // _GATHERED_BYTES))
    for start in range(0, len(rows), each):
        yield rows.slice(start, min(each, len(rows) - start))


def acknowledged(routes: Routes, settings: Settings, name: str) -> ArrowSender:
    """A producer for ``at_least_once``: idempotent, without transactions."""
    producer_id, epoch = initialise(routes.admin.renew(OPEN_BUDGET_S), None, 0)
    return ArrowSender(routes, Producer(None, producer_id, epoch), settings, name)


def record_of(
    rows: Records, partitions: Ints, partition: int, first: int, count: int, index: int | None
) -> tuple[object, int]:
    """A record of one batch (``count`` of the rows of ``partition``, from ``first`` on), the one at ``index`` or that
    with the largest value: its key, and the size of its value.
    """
    some = rows.take(np.flatnonzero(partitions == partition)[first : first + count])
    sizes = pc.fill_null(pc.binary_length(some.values), 0)
    index = pc.index(sizes, pc.max(sizes)).as_py() if index is None else index
    return some.keys[index].as_py() if some.keys is not None else None, sizes[index].as_py()
