"""A part of a batch in Kafka, written by this process in place of a Java task, for tests of what follows in the driver.

The producer is librdkafka's, which shares no code with the sink. It is never closed after a prepare: close() aborts
(confluent-kafka >= 2.16). Dropping the last reference leaves the transaction open, for the driver to end.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from exactly_once.digest import RowDigest
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS
from exactly_once.participant import PartName, PartWriter
from exactly_once.participants.kafka.digest_scope import CHOOSE, PARTITION, ROW, place_of
from exactly_once.participants.kafka.participant import KafkaParticipant
from exactly_once.protocol.records import OffsetRange, Place, PreparedTransaction
from exactly_once.txn.coordinators import describe
from testkit.part_ids import attempt_of, part_id


class PartTransaction:
    """An open transaction; ``config`` has more settings of librdkafka. Raise KafkaException as librdkafka does."""

    def __init__(
        self, connection: Connection, config: Mapping[str, str], transactional_id: str, timeout_ms: int, admin: Admin
    ):
        self.name, self.records, self.bytes = transactional_id, 0, 0
        self._digest, self._scope = RowDigest(), ""
        self._first_offsets: dict[tuple[str, int], int] = {}
        self._acknowledged: dict[tuple[str, int], int] = {}
        settings = {
            **config,
            **connection.librdkafka(),
            "enable.sparse.connections": False,
            "partitioner": "murmur2_random",  # Java's: a key goes where the sink puts it
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "on_delivery": self._on_delivery,
        }
        self._producer: Producer | None = Producer(settings)
        self._producer.init_transactions(30)
        seen = describe(admin.renew(10), [transactional_id])[transactional_id]
        self.producer_id, self.epoch = seen.producer_id, seen.producer_epoch
        self._producer.begin_transaction()

    def send(self, topic: str, key: bytes | None, value: bytes | None, partition: int = CHOOSE) -> None:
        """Queue one record; :data:`CHOOSE` leaves the partition to the partitioner."""
        assert self._producer is not None
        self._producer.produce(topic, value, key, partition)
        self.records += 1
        self.bytes += len(key or b"") + len(value or b"")
        self._digest.add(topic.encode(), key, value, place_of(partition, None, None))
        self._scope = ROW if partition == CHOOSE else f"{ROW}{PARTITION}"

    def flush(self, timeout_s: float) -> None:
        """Wait until every record is acknowledged."""
        assert self._producer is not None
        assert self._producer.flush(timeout_s) == 0

    def prepare(self, part: int, timeout_s: float) -> PreparedTransaction:
        """Flush and return the handle, as a task does; the transaction stays open on the broker."""
        self.flush(timeout_s)
        self._producer = None
        written = {p: OffsetRange(max(-1, first), self._acknowledged[p]) for p, first in self._first_offsets.items()}
        return PreparedTransaction(
            self.name,
            self.producer_id,
            self.epoch,
            part,
            self.records,
            self.bytes,
            self._digest.text,
            place=min((Place(*p, e.first_offset) for p, e in written.items() if e.first_offset >= 0), default=None),
            written=written,
            form=self._scope,
        )

    def abort(self) -> None:
        """End it, unless it is prepared or broken."""
        producer, self._producer = self._producer, None
        with suppress(KafkaException):
            if producer is not None:
                producer.abort_transaction(5.0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Note a delivery; reports of one partition come in order. A batch that was sent again may have no offset:
        -1001.
        """
        if error is not None:
            raise KafkaException(error)
        where = message.topic() or "", message.partition() or 0
        self._first_offsets.setdefault(where, message.offset() or 0)
        self._acknowledged[where] = self._acknowledged.get(where, 0) + 1


class KafkaPart(PartWriter[PreparedTransaction]):
    """A part, whose transaction begins with its first row. Its rows have a ``value``, and may have a ``key`` and a
    ``partition``.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        part: PartName,
        config: Mapping[str, str],
        timeout_ms: int = DEFAULT_TRANSACTION_TIMEOUT_MS,
    ):
        self._connection, self._topic, self._part = connection, topic, part
        self._config, self._timeout_ms = config, timeout_ms
        self.transaction: PartTransaction | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            key, value = (None if (cell := row.get(name)) is None else cell.encode() for name in ("key", "value"))
            transaction = self.transaction = self.transaction or self._begin()
            transaction.send(self._topic, key, value, row.get("partition", CHOOSE))

    def _begin(self) -> PartTransaction:
        admin = _admin(self._connection)
        return PartTransaction(self._connection, self._config, id_of(self._part), self._timeout_ms, admin)

    def pre_commit(self) -> PreparedTransaction | None:
        return None if self.transaction is None else self.transaction.prepare(self._part.part, 60.0)

    def abort(self) -> None:
        if self.transaction is not None:
            self.transaction.abort()


def id_of(part: PartName) -> str:
    """Return the transactional id of a part: bounded in number, so it tells less than the name."""
    task_attempt, _, task_attempt_id = part.attempt.partition(".")
    return part_id(part.sink_id, part.token, part.part, attempt_of(int(task_attempt), int(task_attempt_id)))


@lru_cache(maxsize=4)
def _admin(connection: Connection) -> Admin:
    """Return the connections of this process."""
    return Admin(connection)


class PythonKafka(KafkaParticipant):
    """Kafka's participant, whose parts this process writes, so that the suite of all participants can try it."""

    def __init__(self, connection: Connection, sink_id: str, topic: str):
        super().__init__(connection, sink_id)
        self._topic = topic

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admin": None}  # connections stay where they were opened

    def begin(self, part: PartName) -> KafkaPart:
        return KafkaPart(self._connection, self._topic, part, {})
