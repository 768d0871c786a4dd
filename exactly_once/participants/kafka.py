"""Kafka as a participant: one transaction for each part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Protocol

import pyarrow as pa

from exactly_once.errors import ExactlyOnceError, PrepareFailed
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.late import LateCheck
from exactly_once.kafka.sender import ACKNOWLEDGED, UNACKNOWLEDGED, Sender, check_settings
from exactly_once.kafka.transaction import PartTransaction, fixed_settings
from exactly_once.kafka.transactions import end_all, end_txn_version
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS, Guarantee, SinkOptions
from exactly_once.participant import Participant, PartName, PartWriter, Scope
from exactly_once.participants.kafka_transactions import commit_transactions, open_of, sweep
from exactly_once.protocol.names import SLOTS, attempt_of, namespace, older_slots, part_id, slot_of
from exactly_once.protocol.records import KAFKA, Decision, PreparedTransaction
from exactly_once.protocol.ticket import Ticket
from exactly_once.protocol.too_long import limit_ms, too_long_error

#: For ending the transactions of one batch, and for finding those that were left.
BUDGET_S = 60.0


class Rows(Protocol):
    """Rows as records (:class:`exactly_once.spark.columns.Columns`)."""

    def send(self, batch: pa.RecordBatch, sender: Sender, topics: set[str]) -> None:
        """Send every row of ``batch``; adds the topics that were written to ``topics``."""


class KafkaParticipant(Participant[PreparedTransaction]):
    """Kafka, under the options of a sink.

    The engine itself completes and sweeps Kafka's transactions with connections that it keeps
    (:mod:`exactly_once.coordinator.complete`); the methods here do the same with connections of their own.
    """

    name = KAFKA

    def __init__(self, options: SinkOptions, rows: Rows, ticket: Ticket | None = None):
        self._options = options
        self._rows = rows
        self._ticket = ticket

    def begin(self, part: PartName) -> KafkaPart:
        """Begin with the first row: a transaction without records cannot be committed."""
        return KafkaPart(self._options, self._rows, self._ticket, part)

    def gone(self, handles: Sequence[PreparedTransaction]) -> Iterable[PreparedTransaction]:
        """Those that are not open any more, by their coordinators' word."""
        with Admin(self._options.connection, BUDGET_S) as control:
            found = {d.transactional_id for d in open_of(handles, control)}
        return [h for h in handles if h.transactional_id not in found]

    def commit(self, handles: Sequence[PreparedTransaction]) -> Iterable[PreparedTransaction]:
        """EndTxn for each, and evidence from the output where its answer tells nothing."""
        with Admin(self._options.connection, BUDGET_S) as control:
            decision = Decision("", 0, 0, tuple(handles), "", end_txn_version(control), 0)
            name = f"a batch of sink {self._options.sink_id!r}"
            return commit_transactions(self._options.sink_id, name, decision, control, BUDGET_S)

    def abort(self, handles: Sequence[PreparedTransaction]) -> None:
        """Abort exactly these, as far as they are open."""
        with Admin(self._options.connection, BUDGET_S) as control:
            end_all(control, [d.end for d in open_of(handles, control)], False, end_txn_version(control))

    def recover_and_abort(self, scope: Scope) -> list[str]:
        """The slots of older claims; see :func:`exactly_once.participants.kafka_transactions.sweep`."""
        spare = scope.spare | {_id_of(part) for name in scope.spare if (part := PartName.parse(name)) is not None}
        slots = older_slots(scope.before, SLOTS) | ({slot_of(scope.own)} if scope.own is not None else set())
        with Admin(self._options.connection, BUDGET_S) as control:
            swept = sweep(
                scope.sink_id,
                control,
                end_txn_version(control),
                lambda p: p.slot in slots and part_id(*p) not in spare,
            )
        return [d.transactional_id for d in swept]


class KafkaPart(PartWriter[PreparedTransaction]):
    """One part: a transaction that begins with its first row. ``topics`` are those that were written.

    With a ``ticket``, a part that is too late or too slow for its batch gives up.
    """

    def __init__(self, options: SinkOptions, rows: Rows, ticket: Ticket | None, part: PartName):
        self._options = options
        self._rows = rows
        self._ticket = ticket
        self._timeout_ms = ticket.timeout_ms if ticket else DEFAULT_TRANSACTION_TIMEOUT_MS
        self._part = part
        self._transaction: PartTransaction | None = None
        self.topics: set[str] = set()

    def write(self, rows: pa.RecordBatch) -> None:
        """Send the rows."""
        if rows.num_rows:
            transaction = self._transaction = self._transaction or self._begin()
            with self._in_time(transaction):
                self._rows.send(rows, transaction, self.topics)

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
        return PartTransaction(
            self._options.connection,
            _within(self._options, self._timeout_ms),
            _id_of(self._part),
            self._timeout_ms,
            _control(self._options.connection),
            LateCheck(self._options.connection, self._part.sink_id, self._ticket) if self._ticket else None,
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
        transaction.describe()  # a driver that was paused may have been superseded: that is the error to report then
        return too_long_error(
            self._part.sink_id,
            self._options.checkpoint,
            ticket.batch,
            f"its part {self._part.part} has been writing for {took_ms / 1000:.1f} s",
            took_ms,
            ticket.timeout_ms,
            ticket.too_long,
            transaction.longest_timeout_ms(),
        )


def check_producer(options: SinkOptions, timeout_ms: int) -> None:
    """Make sure that librdkafka takes the user's settings beside those that the guarantee fixes.

    Raises
    ------
    InvalidOption
    """
    settings, fixed = options.producer, ACKNOWLEDGED
    if options.guarantee is Guarantee.EXACTLY_ONCE:
        settings = _within(options, timeout_ms)
        fixed = fixed_settings(f"{namespace(options.sink_id)}check", timeout_ms)  # never initialised
    elif options.guarantee is Guarantee.NONE:
        fixed = UNACKNOWLEDGED
    check_settings(options.connection, settings, fixed)


def _within(options: SinkOptions, timeout_ms: int) -> dict[str, str]:
    """The user's settings, but librdkafka refuses a delivery timeout above the transaction's."""
    return {**options.producer, "delivery.timeout.ms": str(min(int(options.delivery_timeout_s * 1000), timeout_ms))}


def _id_of(part: PartName) -> str:
    """The transactional id of a part: bounded in number, so it tells less than the name."""
    task_attempt, _, task_attempt_id = part.attempt.partition(".")
    return part_id(part.sink_id, part.token, part.part, attempt_of(int(task_attempt), int(task_attempt_id)))


@lru_cache(maxsize=4)
def _control(connection: Connection) -> Admin:
    """The control connection of this worker process, kept over batches."""
    return Admin(connection)
