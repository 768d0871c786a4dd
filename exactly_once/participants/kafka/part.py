"""One part of a batch in Kafka: a transaction that begins with the part's first row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pyarrow as pa

from exactly_once.errors import ExactlyOnceError, PrepareFailed
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS, SinkOptions
from exactly_once.participant import PartName, PartWriter
from exactly_once.participants.kafka.late import LateCheck
from exactly_once.participants.kafka.part_transaction import PartTransaction
from exactly_once.participants.kafka.rows import Columns
from exactly_once.protocol.batch_headers import pair_of
from exactly_once.protocol.names import attempt_of, part_id
from exactly_once.protocol.records import PreparedTransaction
from exactly_once.protocol.ticket import Ticket
from exactly_once.protocol.too_long import limit_ms, too_long_error


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
        """Send the rows."""
        if rows.num_rows:
            transaction = self._transaction = self._transaction or self._begin()
            with self._in_time(transaction):
                self._columns.send(rows, transaction)

    def pre_commit(self) -> PreparedTransaction | None:
        """Flush, verify every delivery, and leave the transaction open for the driver."""
        if self._transaction is None:
            return None
        with self._in_time(self._transaction):
            return self._transaction.prepare(self._part.part, self._options.delivery_timeout_s)

    def abort(self) -> None:
        """Abort at once, so that readers are not blocked until a sweep."""
        if self._transaction is not None:
            self._transaction.abort()

    def _begin(self) -> PartTransaction:
        """Begin the transaction, not before the first row.

        It is a write of its coordinator, and most parts of a shuffle may be empty.
        """
        connection, settings = self._options.connection, within(self._options, self._timeout_ms)
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


def within(options: SinkOptions, timeout_ms: int) -> dict[str, str]:
    """Return the user's producer settings, with a delivery timeout that is not above the transaction's.

    librdkafka refuses a longer one.
    """
    return {**options.producer, "delivery.timeout.ms": str(min(int(options.delivery_timeout_s * 1000), timeout_ms))}


def _id_of(part: PartName) -> str:
    """Return the transactional id of a part: bounded in number, so it tells less than the name."""
    task_attempt, _, task_attempt_id = part.attempt.partition(".")
    return part_id(part.sink_id, part.token, part.part, attempt_of(int(task_attempt), int(task_attempt_id)))


@lru_cache(maxsize=4)
def _admin(connection: Connection) -> Admin:
    """Return the connections of this worker process, kept over batches."""
    return Admin(connection)
