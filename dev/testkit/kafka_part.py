"""One part of a batch in Kafka, on the executor: a transaction that begins with the part's first row.

Before a task hands its transaction over, it asks whether it still owns it, and whether it is in time. The producer is
librdkafka's. It is never closed after a successful prepare: close() aborts (confluent-kafka >= 2.16). Dropping the last
reference leaves the transaction open, for the driver to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from kafka.errors import KafkaError as BrokerError

from exactly_once.deadline import Deadline
from exactly_once.digest import RowDigest
from exactly_once.errors import ExactlyOnceError, PrepareFailed
from exactly_once.failpoints import reach
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import FAST_CONNECT, Connection, librdkafka_log
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS, SinkOptions
from exactly_once.participant import PartName, PartWriter
from exactly_once.participants.kafka import digest_scope
from exactly_once.participants.kafka.digest_scope import CHOOSE, NOW, Headers
from exactly_once.participants.kafka.participant import KafkaParticipant
from exactly_once.protocol.batch_headers import Header, pair_of
from exactly_once.protocol.checksum import mismatch, not_whole
from exactly_once.protocol.names import attempt_of, part_id
from exactly_once.protocol.records import Extent, Place, PreparedTransaction
from exactly_once.protocol.ticket import Ticket
from exactly_once.protocol.too_long import limit_ms, too_long_error
from exactly_once.txn.coordinators import Description, describe
from testkit.kafka_rows import Columns
from testkit.late_check import LateCheck

#: Budget for opening a transaction, which is a few round trips; a coordinator that fails over answers again within
#: this.
OPEN_BUDGET_S = 30.0

#: Budget of one question.
_ASK_BUDGET_S = 10.0

#: Longest time that a full send queue may stand still before the task gives up: longer than any leader election.
STALLED_S = 60.0


class _Failed(NamedTuple):
    """A record that was not delivered; ``size`` is its value's."""

    error: KafkaError
    where: str
    key: object
    size: int


def _settings(
    connection: Connection, config: Mapping[str, str], transactional_id: str, timeout_ms: int
) -> dict[str, Any]:
    """Return the producer's settings: the user's ``config``, the connection, and what exactly-once fixes."""
    return {
        **config,
        **connection.librdkafka(),
        **FAST_CONNECT,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        "acks": "all",
        "delivery.report.only.error": False,  # successes are reported, too: the handle says what was written
        "partitioner": "murmur2_random",  # the Java client's partitioner: the same key goes where Spark's sink puts it
        "logger": librdkafka_log,
    }


def describe_beside(admin: Admin, transactional_id: str, topic: str) -> tuple[Description, int]:
    """Return the coordinator's view of one id, and the high watermark of partition 0 of ``topic``, asked at once."""
    asked = admin.begin(lambda: admin.end_of((topic, 0)))
    described = describe(admin, [transactional_id])[transactional_id]
    try:
        return described, admin.run(lambda: asked)
    except BrokerError:
        return described, admin.high_watermark(topic, 0)


class PartTransaction:
    """An open transaction under a transactional id that no other living attempt uses.

    ``producer_config`` has the user's settings of librdkafka alone; the broker aborts what is not ended within
    ``timeout_ms``. ``admin`` is for the broker's own word on the transaction. ``late`` is asked before the transaction
    begins and when it is prepared. ``batch`` has the headers by which each record names its batch; the digest leaves
    them out.

    Raise PrepareFailed when the transaction cannot be opened, Fenced or PrepareFailed when the task is too late.
    """

    def __init__(
        self,
        connection: Connection,
        producer_config: Mapping[str, str],
        transactional_id: str,
        timeout_ms: int,
        admin: Admin,
        late: LateCheck | None = None,
        batch: Sequence[Header] = (),
    ):
        self.name, self._admin, self._late, self._behind = transactional_id, admin, late, tuple(batch)
        self.records = self.bytes = 0
        self._failed: list[_Failed] = []
        self._digest, self._scopes = RowDigest(), set[str]()
        self._first_offsets: dict[tuple[str, int], int] = {}
        self._acknowledged: dict[tuple[str, int], int] = {}
        self._dated, self._oldest = False, dict[tuple[str, int], int]()
        settings = _settings(connection, producer_config, transactional_id, timeout_ms)
        self._producer: Producer | None = Producer({**settings, "on_delivery": self._on_delivery})
        self._open(connection)

    def _open(self, connection: Connection) -> None:
        assert self._producer is not None
        reach("before-begin")
        try:
            self._producer.init_transactions(OPEN_BUDGET_S)
            seen = self._describe()
            self._producer.begin_transaction()
        except KafkaException as e:
            raise PrepareFailed(f"{self.name}: {e}", "Look at the broker") from e
        self.producer_id, self.epoch = seen.producer_id, seen.producer_epoch
        self._began = time.monotonic()

    @property
    def age_ms(self) -> float:
        """Milliseconds that it has been open, by this process's clock; the broker's begins with the first record."""
        return (time.monotonic() - self._began) * 1000

    def check_in_time(self) -> None:
        """Ask the commit log alone; raise Fenced or PrepareFailed when the task is too late."""
        if self._late is not None:
            self._late.judge(self._admin.renew(_ASK_BUDGET_S).high_watermark(self._late.topic, 0))

    def longest_timeout_ms(self) -> int | None:
        """Return the brokers' transaction.max.timeout.ms, if this principal may know it."""
        try:
            return self._admin.renew(5.0).longest_transaction_ms()
        except ExactlyOnceError:
            return None

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int = CHOOSE,
        headers: Headers = None,
        timestamp_ms: int | None = NOW,
    ) -> None:
        """Queue one record; the digest counts all that the row chose. :data:`CHOOSE` leaves the partition to the
        partitioner, :data:`NOW` is the time of sending, for which librdkafka takes 0. Raise InvalidRecord when it is
        too large or has no topic or partition, PrepareFailed when the brokers take nothing any more.
        """
        assert self._producer is not None
        self._dated = self._dated or timestamp_ms is not NOW
        place = {"timestamp": timestamp_ms or 0, "headers": [*(headers or ()), *self._behind] or None}
        self._queue(partial(self._producer.produce, topic, value, key, partition, **place), topic, key, value)  # type: ignore[arg-type]
        self.records += 1
        self.bytes += len(key or b"") + len(value or b"")
        self._digest.add(topic.encode(), key, value, digest_scope.place_of(partition, headers, timestamp_ms))
        self._scopes.add(digest_scope.scope_of(partition, timestamp_ms))

    def send_many(self, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes | None], size: int) -> None:
        """Queue many records for one topic; ``size`` is the bytes of all keys and values, which alone the digest
        counts. The plain case, kept free of any work for each record beyond librdkafka's own call.
        """
        assert self._producer is not None
        produce = self._producer.produce
        if self._behind:
            produce = partial(produce, headers=[*self._behind])
        for value, key in zip(values, keys, strict=True):
            try:
                produce(topic, value, key)
            except (BufferError, KafkaException):  # wait for room, or name the error
                self._queue(partial(produce, topic, value, key), topic, key, value)
        self.records += len(values)
        self.bytes += size
        self._digest.add_pairs(keys, values)
        self._scopes.add(digest_scope.PLAIN)

    def _queue(self, produce: Callable[[], None], topic: str, key: bytes | None, value: bytes | None) -> None:
        deadline: Deadline | None = None
        while True:
            try:
                return produce()
            except BufferError:
                deadline = deadline or Deadline(STALLED_S)
                assert self._producer is not None
                self._producer.poll(0.05)
                self._raise_failure()
                if deadline.over:
                    raise PrepareFailed(
                        f"{self.name}: the brokers accepted no records for {STALLED_S:g} s",
                        "Check the brokers' health; it is safe to start the stream again at any time",
                    ) from None
            except KafkaException as e:
                raise PrepareFailed(f"{self.name}: {topic}: {e}", "Look at the broker") from e

    def flush(self, timeout_s: float) -> None:
        """Wait until every record is acknowledged; raise PrepareFailed, InvalidRecord or NotAuthorized when one was
        not.
        """
        assert self._producer is not None
        try:
            left = self._producer.flush(timeout_s)
        except (KafkaException, SystemError) as e:
            # the client raises a fatal error between two delivery reports, and the second fails in its C code over it
            fatal = e if isinstance(e, KafkaException) else e.__cause__
            if not isinstance(fatal, KafkaException):
                raise
            raise PrepareFailed(f"{self.name}: {fatal}", "Look at the broker") from e
        self._raise_failure()
        if left:
            raise PrepareFailed(
                f"{self.name}: {left} of {self.records} records were not acknowledged within {round(timeout_s, 1):g} s",
                "Check the brokers' health, or raise kafka.delivery.timeout.ms",
            )

    def prepare(self, part: int, timeout_s: float) -> PreparedTransaction:
        """Flush, verify every delivery, and return the handle. The transaction stays open on the broker.

        Raise PrepareFailed when a record was not acknowledged, or the broker does not confirm that this very
        transaction is open; Expiring when it confirms it without a partition that was written, or with another one;
        Fenced or PrepareFailed when the task is too late.
        """
        self.flush(timeout_s)
        written = {
            p: Extent(max(-1, first), self._acknowledged[p], self._oldest.get(p))
            for p, first in self._first_offsets.items()
        }
        reach("after-flush")
        seen = self._describe()
        if seen.state != "Ongoing" or (seen.producer_id, seen.producer_epoch) != (self.producer_id, self.epoch):
            raise PrepareFailed(
                f"{self.name}: the broker reports {seen.state or 'unknown'} at producer epoch "
                f"{seen.producer_epoch}, not Ongoing at {self.epoch}: the transaction was ended by its timeout of "
                f"{seen.timeout_ms} ms or by another client",
                f"Raise kafka.transaction.timeout.ms if batches take longer than {seen.timeout_ms} ms; otherwise find "
                f"out what else uses the transactional id {self.name}",
            )
        if why := mismatch(written, seen.partitions):
            raise not_whole(self.name, part, why)
        self._producer = None
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
            form=self._form,
        )

    @property
    def _form(self) -> str:
        if len(self._scopes) != 1:
            return digest_scope.MIXED if self._scopes else ""
        return f"{next(iter(self._scopes))}{digest_scope.BATCH if self._behind else ''}"

    def _describe(self) -> Description:
        admin = self._admin.renew(_ASK_BUDGET_S)
        if self._late is None:
            return describe(admin, [self.name])[self.name]
        described, high = describe_beside(admin, self.name, self._late.topic)
        self._late.judge(high)
        return described

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Note a delivery; reports of one partition come in order. A batch that was sent again may have no offset:
        -1001.
        """
        if error is not None:
            failed = _Failed(error, f"{message.topic()}-{message.partition()}", message.key(), len(message))
            if not self._failed:
                self._failed.append(failed)
            elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE and failed.size > self._failed[0].size:
                self._failed[0] = failed  # a whole request is refused for the largest record in it
            return
        where = message.topic() or "", message.partition() or 0
        if where not in self._first_offsets:
            self._first_offsets[where] = message.offset() or 0
            reach("some-sent")
        self._acknowledged[where] = self._acknowledged.get(where, 0) + 1
        if self._dated:
            _, ms = message.timestamp()
            self._oldest[where] = min(ms, self._oldest.get(where, ms))

    def _raise_failure(self) -> None:
        if not self._failed:
            return
        error, where, key, size = self._failed[0]
        # the client drops what it holds when a transaction may not go on, and does not say why: perhaps a missing right
        if error.code() in (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT):
            self._admin.renew(10.0).check_rights(where.rpartition("-")[0], ("WRITE",))
        raise PrepareFailed(f"{self.name}: {where}: {key!r}: {size}: {error}", "Look at the broker")

    def abort(self) -> None:
        """Give up: abort at once, so that readers are not blocked until a sweep. Never raises."""
        producer, self._producer = self._producer, None
        with suppress(KafkaException):  # the sweep finds what is left
            if producer is not None:
                producer.abort_transaction(5.0)


class KafkaPart(PartWriter[PreparedTransaction]):
    """A part of Kafka. With a ``ticket``, it gives up when it is too late or too slow for its batch."""

    def __init__(self, options: SinkOptions, columns: Columns, ticket: Ticket | None, part: PartName):
        self._options = options
        self._columns = columns
        self._ticket = ticket
        self._timeout_ms = ticket.timeout_ms if ticket else DEFAULT_TRANSACTION_TIMEOUT_MS
        self._part = part
        self._transaction: PartTransaction | None = None
        self._late = LateCheck(options.connection, part.sink_id, ticket) if ticket else None

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            transaction = self._transaction = self._transaction or self._begin()
            with self._in_time(transaction):
                self._columns.send(rows, transaction)

    def pre_commit(self) -> PreparedTransaction | None:
        if self._transaction is None:
            return None
        with self._in_time(self._transaction):
            return self._transaction.prepare(self._part.part, 120.0)

    def abort(self) -> None:
        if self._transaction is not None:
            self._transaction.abort()

    def _begin(self) -> PartTransaction:
        """Begin the transaction, not before the first row: it is a write of its coordinator, and most parts may be
        empty.
        """
        connection, settings = self._options.connection, dict(self._options.client)
        headers = pair_of(self._part.sink_id, self._part.batch_id) if self._options.batch_headers else ()
        return PartTransaction(
            connection, settings, _id_of(self._part), self._timeout_ms, _admin(connection), self._late, headers
        )

    @contextmanager
    def _in_time(self, transaction: PartTransaction) -> Iterator[None]:
        """Give up a transaction that has become too old to be decided, and say that this is why a step in it failed."""
        if (error := self._too_long(transaction)) is not None:
            raise error
        try:
            yield
        except PrepareFailed as e:
            if (error := self._too_long(transaction)) is not None:
                raise error from e
            raise

    def _too_long(self, transaction: PartTransaction) -> ExactlyOnceError | None:
        ticket, took_ms = self._ticket, transaction.age_ms
        if ticket is None or took_ms <= limit_ms(ticket.timeout_ms):
            return None
        transaction.check_in_time()  # a paused driver may have been superseded: that is the error to report
        return too_long_error(
            self._part.sink_id,
            self._options.checkpoint,
            ticket.batch,
            f"its part {self._part.part} has been writing for {took_ms / 1000:.1f} s",
            took_ms=took_ms,
            timeout_ms=ticket.timeout_ms,
            before=ticket.too_long,
            longest_ms=transaction.longest_timeout_ms(),
        )


def _id_of(part: PartName) -> str:
    """Return the transactional id of a part: bounded in number, so it tells less than the name."""
    task_attempt, _, task_attempt_id = part.attempt.partition(".")
    return part_id(part.sink_id, part.token, part.part, attempt_of(int(task_attempt), int(task_attempt_id)))


@lru_cache(maxsize=4)
def _admin(connection: Connection) -> Admin:
    """Return the connections of this worker process, kept over batches."""
    return Admin(connection)


class PythonKafka(KafkaParticipant):
    """Kafka's participant with the parts of this module: what a task in Python did, for tests of all others' parts."""

    def __init__(self, options: SinkOptions, columns: Columns, ticket: Ticket | None = None):
        super().__init__(options.connection, options.sink_id, options)
        self._sent, self._columns, self._ticket = options, columns, ticket

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_admin": None, "_settings": None}  # connections stay where they were opened

    def begin(self, part: PartName) -> KafkaPart:
        return KafkaPart(self._sent, self._columns, self._ticket, part)
