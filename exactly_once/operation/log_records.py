"""The records of a commit log one by one, with their writers, and the way back from one that the sink did not write.

Whoever may write to the topic of a commit log can forge a record. A forged decision of a later batch, for example, has
every start refused. :func:`undo` puts the record of the same key before it in force again, and :func:`drop_foreign`
takes away what is under keys that no sink uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, Producer

from exactly_once.commitlog.log_reader import PARTITION
from exactly_once.errors import CommitLogDamaged, InvalidOption
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import FAST_CONNECT, Connection, librdkafka_log
from exactly_once.kafka.errors import of_commit_log
from exactly_once.operation.rules import Refused
from exactly_once.protocol.encoding import LARGEST_RECORD_BYTES, decode
from exactly_once.protocol.names import commit_log_id, commit_log_topic, namespace
from exactly_once.protocol.records import (
    ACCEPTED,
    Aborted,
    Claim,
    Completed,
    Decision,
    Record,
    Retired,
    is_own_key,
)
from exactly_once.txn.coordinators import ids_of
from exactly_once.txn.scan import LogBatch, batches

#: For looking at the log, and for writing to it.
BUDGET_S = 30.0


@dataclass(frozen=True)
class Logged:
    """A committed record of a commit log.

    Attributes
    ----------
    offset, timestamp_ms
        Its place, and the brokers' time of its write.
    key : bytes
        Its key in compaction; the last record of a key is in force.
    record : Record or None
        None for a tombstone, and for what is no record of a sink.
    producer_id : int
        -1 without an idempotent producer.
    writer : str or None
        The transactional id that has this producer id; None when no coordinator knows it.
    """

    offset: int
    timestamp_ms: int
    key: bytes
    record: Record | None
    producer_id: int
    writer: str | None
    value: bytes | None
    headers: tuple[tuple[str, str | bytes | None], ...] = ()

    @property
    def dead_letters(self) -> int:
        """The number of dead letters among the records of a decision."""
        return self.record.dead_letters if isinstance(self.record, Decision) else 0

    def is_of(self, sink_id: str) -> bool:
        """Return whether the sink's own producer wrote it."""
        return self.writer == commit_log_id(sink_id)

    @property
    def key_text(self) -> str:
        """The key, as far as it is text."""
        return self.key.decode(errors="replace")

    @property
    def title(self) -> str:
        """The name that a person gives it."""
        match self.record:
            case Claim(token=token, purpose=purpose, host=host):
                return f"claim {token} ({purpose} on {host})"
            case Decision() as d:
                return f"decision of {f'write {d.write_id}' if d.write_id else f'batch {d.batch_id} of {d.query_id}'}"
            case Completed() as c:
                given_up = " (lost parts were accepted)" if c.how == ACCEPTED else ""
                return f"completed batch {c.batch_id} of {c.query_id}{given_up}"
            case Aborted() as a:
                return f"abort of batch {a.batch_id} of {a.query_id}"
            case Retired() as r:
                return r.title
            case None:
                return "a tombstone" if self.value is None else "not a record of a sink"
        return type(self.record).__name__.lower()


def log_records(connection: Connection, sink_id: str, budget_s: float = BUDGET_S) -> list[Logged]:
    """Read every committed record that the brokers still have of the sink's log, in the order of the log.

    Raises
    ------
    UnknownTopic
        When the sink has no commit log.
    BrokerUnreachable, NotAuthorized
    """
    topic = commit_log_topic(sink_id)
    with Admin(connection, budget_s) as admin:
        marks = admin.watermarks(topic)[PARTITION]
        found = [
            b
            for b in batches(admin, (topic, PARTITION), marks.low, marks.last_stable, marks.last_stable)
            if b.marker is None and not b.hidden
        ]
        producers = {b.producer_id for b in found if b.producer_id >= 0}
        writers = ids_of(admin.renew(budget_s), producers) if producers else {}
    return [_logged(batch, record, writers) for batch in found for record in batch.records()]


def _logged(batch: LogBatch, raw: Any, writers: dict[int, str]) -> Logged:
    headers = tuple(raw.headers or ())
    record: Record | None = None
    if raw.value is not None:
        try:
            record = decode(raw.value, dict(headers))
        except CommitLogDamaged:
            record = None
    writer = writers.get(batch.producer_id)
    return Logged(
        offset=raw.offset,
        timestamp_ms=raw.timestamp,
        key=raw.key or b"",
        record=record,
        producer_id=batch.producer_id,
        writer=writer,
        value=raw.value,
        headers=headers,
    )


def in_force(records: list[Logged]) -> list[Logged]:
    """Return the last record of each key, without tombstones, in the order of the log."""
    last = {r.key: r for r in records}
    return [r for r in records if last[r.key] is r and r.value is not None]


@dataclass(frozen=True)
class Undone:
    """A record that is no longer in force, and the one that is again; None: its key has no record any more."""

    record: Logged
    restored: Logged | None


def undo(connection: Connection, sink_id: str, offset: int, force: str | None = None) -> Undone:
    """Put the record before the one at ``offset``, of the same key, in force again.

    A driver that is alive goes on: its next write initialises the log's producer again, and reads the log from its
    beginning.

    Parameters
    ----------
    force : str, optional
        The phrase that a refusal asks for.

    Raises
    ------
    InvalidOption
        When the log has no such record, or a later one of its key is in force.
    Refused
        When the sink's own producer wrote the record, or its key has no earlier record left.
    BrokerUnreachable, BrokerRefused, NotAuthorized
    """
    found = log_records(connection, sink_id)
    wrong, before = find(found, offset, sink_id)
    check_undo(sink_id, wrong, before, force)
    _write(connection, sink_id, [(wrong.key, before)])
    return Undone(wrong, before)


def drop_foreign(connection: Connection, sink_id: str) -> list[Logged]:
    """Write a tombstone for each key in force that no sink uses; return the records that are no longer in force. The
    sink's own records stay. A driver that is alive goes on, as after :func:`undo`.

    Raises BrokerUnreachable, BrokerRefused, NotAuthorized or UnknownTopic.
    """
    found = [r for r in in_force(log_records(connection, sink_id)) if not is_own_key(r.key_text)]
    if found:
        _write(connection, sink_id, [(r.key, None) for r in found])
    return found


def find(records: list[Logged], offset: int, sink_id: str) -> tuple[Logged, Logged | None]:
    """Return the record at ``offset``, and the one of its key before it; raises as :func:`undo`."""
    topic = commit_log_topic(sink_id)
    wrong = next((r for r in records if r.offset == offset), None)
    if wrong is None:
        raise InvalidOption(
            f"{topic} has no record at offset {offset}", f"List the records with: exactly-once log {sink_id}"
        )
    same = [r for r in records if r.key == wrong.key]
    if same[-1] is not wrong:
        raise InvalidOption(
            f"the record at offset {offset} of {topic} is not in force: the one at offset {same[-1].offset} has the "
            f"same key {wrong.key_text!r}",
            "To undo the record that is in force, give its offset; otherwise leave the log as it is",
        )
    earlier = [r for r in same[:-1] if r.value is not None]
    return wrong, earlier[-1] if earlier else None


def check_undo(sink_id: str, wrong: Logged, before: Logged | None, force: str | None) -> None:
    """Refuse what may lose a record of the sink's own, unless ``force`` is the phrase that states it. Pure."""
    phrase = f"forget {wrong.title} at offset {wrong.offset}"
    if force == phrase:
        return
    if wrong.is_of(sink_id):
        raise Refused(
            f"{wrong.title} at offset {wrong.offset} was written by the sink's own producer {wrong.writer}",
            "Leave the record in force: without it a decided batch may be lost or written twice",
            phrase=phrase,
        )
    if before is None and wrong.record is not None and not isinstance(wrong.record, Claim):
        raise Refused(
            f"the log has no record under the key {wrong.key_text!r} before {wrong.title} at offset {wrong.offset}: "
            "there was none, or compaction has removed it",
            "First find out, by the rows of the output or by the consumer group of the sink, whether the output "
            "holds a batch that was decided under this key",
            phrase=phrase,
        )


def _write(connection: Connection, sink_id: str, records: list[tuple[bytes, Logged | None]]) -> None:
    """Write under each key what a record holds, or a tombstone, in one transaction of the log's own producer."""
    topic = commit_log_topic(sink_id)
    producer = Producer(
        {
            **connection.librdkafka(),
            **FAST_CONNECT,
            "transactional.id": commit_log_id(sink_id),
            "message.max.bytes": LARGEST_RECORD_BYTES,
            "queue.buffering.max.messages": 2 * len(records) + 1_000,  # all of them may wait at once
            "logger": librdkafka_log,
        }
    )
    try:
        producer.init_transactions(BUDGET_S)
        producer.begin_transaction()
        for key, record in records:
            value, headers = (record.value, list(record.headers)) if record else (None, [])
            producer.produce(topic, value, key, partition=PARTITION, headers=headers)
        producer.commit_transaction(BUDGET_S)
    except KafkaException as e:
        raise of_commit_log(e, topic, connection.bootstrap_servers, namespace(sink_id)) from e
