"""The weaker guarantees, ``at_least_once`` and ``none``: no claim, no decision, no transaction.

Batches that the sink decided under ``exactly_once`` before are still completed: a driver that starts with a weaker
guarantee claims the sink once if it has a commit log, so nothing decided is lost on the way down.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from exactly_once.checkpoint import batch_in_flight
from exactly_once.coordinator.claim import CLAIM_BUDGET_S, claim_for_stream
from exactly_once.coordinator.driver_state import DriverState, Store
from exactly_once.coordinator.micro_batch import Part
from exactly_once.deadline import now_ms
from exactly_once.errors import Lost, ProtocolViolation, UnsupportedMode
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.commit_log import read_log
from exactly_once.kafka.produce.sender import ArrowSender, Settings, acknowledged
from exactly_once.kafka.sender import AcknowledgedSender, UnacknowledgedSender
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.participant import Participant, PartName, PartWriter, Scope
from exactly_once.participants.kafka import CONTACT_BUDGET_S
from exactly_once.participants.kafka_checks import check_cluster
from exactly_once.participants.kafka_part import Rows, routes
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import KAFKA, PreparedTransaction
from exactly_once.protocol.ticket import Ticket


def plan_delivery(options: SinkOptions, store: Store) -> Ticket:
    """Plan the batch in flight under a weaker guarantee.

    A batch that was decided under exactly_once is drained.

    Raises
    ------
    Lost
        When parts of a decided batch are lost, which only exactly_once can make good.
    ExactlyOnceError
        Whatever has to be refused at start; nothing is written then.
    """
    batch = batch_in_flight(options.checkpoint, options.sink_id)
    state = store.load()
    if state is None or not state.finished or state.query_id != batch.query_id:
        state = _settled(options, batch)
    decided = (state.last_batch, state.last_digest) == (batch.batch_id, batch.offsets_digest)
    execution = uuid.uuid4().hex
    store.save(state.planned(execution, batch, now_ms(), {}))
    plan = Plan.DRAIN if decided else Plan.WRITE
    return Ticket(replace(batch, sources=(), offsets=""), plan, state.token, execution, state.timeout_ms)


def _settled(options: SinkOptions, batch: Batch) -> DriverState:
    """Return the state of a driver whose earlier decisions are all completed."""
    if read_log(options.connection, options.sink_id, CONTACT_BUDGET_S).owner is None:
        with Admin(options.connection, CONTACT_BUDGET_S) as admin:
            version, timeout_ms = check_cluster(options, admin.renew(CLAIM_BUDGET_S))
        return DriverState(0, batch.query_id, version, timeout_ms, 0)
    state = claim_for_stream(options, batch, adopts_all=True)
    if state.replay:
        raise Lost(
            f"batch {batch.batch_id} of sink {options.sink_id!r} is decided, but some of its parts are lost",
            "Start the stream once with sink.guarantee=exactly_once, which writes exactly these parts again; then "
            f"change the guarantee to {options.guarantee.value}",
        )
    return state


class DeliveryCommitter:
    """The driver's side of a batch that needs no decision.

    As :class:`exactly_once.coordinator.micro_batch.Committer`.
    """

    def __init__(self, store: Store):
        self._store = store

    def commit(self, parts: Sequence[Part | None], batch_id: int) -> None:
        """Do nothing but check: the tasks have already sent everything that the guarantee requires.

        Raises
        ------
        UnsupportedMode
            When a task has no result: it has sent nothing.
        """
        if any(part is None for part in parts):
            raise UnsupportedMode(
                "Spark asked to commit a batch without results from its tasks, as it does in continuous mode",
                "Use trigger(processingTime=...) or trigger(availableNow=True)",
            )
        state = self._store.load()
        if state is None:
            raise ProtocolViolation("this driver has planned no batch", "Start the stream again")
        self._store.save(replace(state, finished=True))

    def abort(self, batch_id: int, parts: Sequence[Part | None] = ()) -> None:
        """Do nothing: sent records cannot be rolled back."""


class KafkaDelivery(Participant[PreparedTransaction]):
    """Kafka without transactions: what a part sends is visible at once."""

    name = KAFKA

    def __init__(self, options: SinkOptions, rows: Rows):
        self._options = options
        self._rows = rows

    def begin(self, part: PartName) -> PartWriter[PreparedTransaction]:
        """Begin to send."""
        return _DeliveredPart(self._options, self._rows, f"sink {part.sink_id!r}, part {part.part}")

    def commit(self, handles: Sequence[PreparedTransaction]) -> Iterable[PreparedTransaction]:
        """There are no handles."""
        return ()

    def abort(self, handles: Sequence[PreparedTransaction]) -> None:
        """There are no handles."""

    def recover_and_abort(self, scope: Scope) -> list[str]:
        """Nothing is ever left open."""
        return []


class _DeliveredPart(PartWriter[PreparedTransaction]):
    def __init__(self, options: SinkOptions, rows: Rows, name: str):
        self._options = options
        self._rows = rows
        waits = options.guarantee is Guarantee.AT_LEAST_ONCE
        self._sender = _acknowledged(options, name) if waits else _lasting(options)
        self._topics: set[str] = set()

    def write(self, rows: pa.RecordBatch) -> None:
        self._rows.send(rows, self._sender, self._topics)

    def pre_commit(self) -> None:
        if isinstance(self._sender, UnacknowledgedSender):
            self._sender.serve()
        else:
            self._sender.flush(self._options.delivery_timeout_s)

    def abort(self) -> None:
        pass


def _acknowledged(options: SinkOptions, name: str) -> AcknowledgedSender | ArrowSender:
    if options.librdkafka:
        return AcknowledgedSender(options.connection, options.producer, name)
    return acknowledged(routes(options.connection), Settings.of(options.producer, options.delivery_timeout_s), name)


_unacknowledged: dict[str, UnacknowledgedSender] = {}


def _lasting(options: SinkOptions) -> UnacknowledgedSender:
    """The producer of this worker process, kept over parts: it goes on sending after each."""
    key = options.cache_key
    if key not in _unacknowledged:
        name = f"sink {options.sink_id!r}"
        _unacknowledged[key] = UnacknowledgedSender(options.connection, options.producer, name)
    return _unacknowledged[key]
