"""Kafka under ``at_least_once`` and ``none``: a participant whose parts are sent, and have no handles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from exactly_once.errors import ExactlyOnceError
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.participant import Participant, PartName, PartWriter, Scope
from exactly_once.participants.kafka.rows import Columns
from exactly_once.participants.kafka.sender import AcknowledgedSender, UnacknowledgedSender
from exactly_once.protocol.records import KAFKA, PreparedTransaction


class KafkaDelivery(Participant[PreparedTransaction]):
    """Kafka without transactions: what a part sends is visible at once."""

    name = KAFKA

    def __init__(self, options: SinkOptions, columns: Columns):
        self._options = options
        self._columns = columns

    def begin(self, part: PartName) -> PartWriter[PreparedTransaction]:
        """Begin to send."""
        return _DeliveredPart(self._options, self._columns, f"sink {part.sink_id!r}, part {part.part}")

    def commit(self, handles: Sequence[PreparedTransaction]) -> Iterable[PreparedTransaction]:
        """Do nothing: there are no handles."""
        return ()

    def abort(self, handles: Sequence[PreparedTransaction]) -> None:
        """Do nothing: there are no handles."""

    def recover_and_abort(self, scope: Scope) -> list[str]:
        """Do nothing: no part is ever left open."""
        return []


class _DeliveredPart(PartWriter[PreparedTransaction]):
    def __init__(self, options: SinkOptions, columns: Columns, name: str):
        self._options = options
        self._columns = columns
        waits = options.guarantee is Guarantee.AT_LEAST_ONCE
        self._sender = AcknowledgedSender(options.connection, options.producer, name) if waits else _lasting(options)

    def write(self, rows: pa.RecordBatch) -> None:
        with _visible_at_once(self._options.guarantee):
            self._columns.send(rows, self._sender)

    def pre_commit(self) -> None:
        with _visible_at_once(self._options.guarantee):
            if isinstance(self._sender, UnacknowledgedSender):
                self._sender.serve()
            else:
                self._sender.flush(self._options.delivery_timeout_s)

    def abort(self) -> None:
        pass


@contextmanager
def _visible_at_once(guarantee: Guarantee) -> Iterator[None]:
    """Raise the errors of the block with what is true without transactions; ``Ticket.java`` says the same."""
    try:
        yield
    except ExactlyOnceError as e:
        told = e.with_safe(
            "Records of this batch that were sent before may be visible: this sink's guarantee is "
            f"{guarantee.value}, and the next start writes the batch again"
        )
        raise told.with_traceback(e.__traceback__) from e.__cause__


_unacknowledged: dict[str, UnacknowledgedSender] = {}


def _lasting(options: SinkOptions) -> UnacknowledgedSender:
    """Return the producer of this worker process, kept over parts: it continues to send after each."""
    key = options.cache_key
    if key not in _unacknowledged:
        name = f"sink {options.sink_id!r}"
        _unacknowledged[key] = UnacknowledgedSender(options.connection, options.producer, name)
    return _unacknowledged[key]
