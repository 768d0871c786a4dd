"""The records of a commit log one by one, with their writers, and the way back from one that the sink did not write.

Whoever may write to the topic of a commit log can forge a record. After a forged decision of a later batch, for
example, every start is refused. :data:`UNDO` puts the previous record of the same key in force again, and
:data:`DROP_FOREIGN` removes the records under keys that no sink uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from kafka.errors import KafkaError

from exactly_once.commitlog.commit_log import LOG_TRANSACTION_TIMEOUT_MS
from exactly_once.commitlog.log_reader import PARTITION
from exactly_once.commitlog.log_writer import LogRecord, LogWriter
from exactly_once.deadline import Deadline
from exactly_once.errors import CommitLogDamaged, InvalidOption, UnknownTopic
from exactly_once.inspection.words import never_claimed, plural
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import of_commit_log
from exactly_once.protocol.encoding import decode
from exactly_once.protocol.names import check_sink_id, commit_log_id, commit_log_topic, namespace
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
from exactly_once.tools.operation.model import (
    Operation,
    OperationContext,
    OperationOutcome,
    OperationStep,
    force_parameter,
    parameter,
    sink_parameter,
)
from exactly_once.tools.operation.rules import Refused, refusal_of
from exactly_once.txn.coordinators import ids_of
from exactly_once.txn.scan import LogBatch, batches

#: Budget for reading the log, and for writing to it.
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
    headers: tuple[tuple[str, bytes | None], ...] = ()

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

    def as_json(self, sink_id: str) -> dict[str, Any]:
        """Plain values; ``own``: the sink's own producer wrote it."""
        return {
            "offset": self.offset,
            "timestamp_ms": self.timestamp_ms,
            "key": self.key_text,
            "record": self.title,
            "dead_letters": self.dead_letters,
            "producer_id": self.producer_id,
            "writer": self.writer,
            "own": self.is_of(sink_id),
        }


def log_records(connection: Connection, sink_id: str) -> list[Logged]:
    """Read every committed record that the brokers still have of the sink's log, in the order of the log.

    Raises InvalidOption when the sink has no commit log, BrokerUnreachable or NotAuthorized.
    """
    topic = commit_log_topic(check_sink_id(sink_id))
    with Admin(connection, BUDGET_S) as admin:
        try:
            marks = admin.watermarks(topic)[PARTITION]
        except UnknownTopic:
            raise never_claimed(sink_id) from None
        found = [
            b
            for b in batches(admin, (topic, PARTITION), marks.low, marks.last_stable, marks.last_stable)
            if b.marker is None and not b.hidden
        ]
        producers = {b.producer_id for b in found if b.producer_id >= 0}
        writers = ids_of(admin.renew(BUDGET_S), producers) if producers else {}
    return [_logged(batch, record, writers) for batch in found for record in batch.records()]


def _logged(batch: LogBatch, raw: Any, writers: dict[int, str]) -> Logged:
    headers, record = tuple(raw.headers or ()), None
    if raw.value is not None:
        with suppress(CommitLogDamaged):
            record = decode(raw.value, dict(headers))
    of, writer = batch.producer_id, writers.get(batch.producer_id)
    return Logged(raw.offset, raw.timestamp, raw.key or b"", record, of, writer, raw.value, headers)


def in_force(records: list[Logged]) -> list[Logged]:
    """Return the last record of each key, without tombstones, in the order of the log."""
    last = {r.key: r for r in records}
    return [r for r in records if last[r.key] is r and r.value is not None]


@dataclass(frozen=True, kw_only=True)
class UndoParameters:
    """The parameters of ``exactly-once log --undo``: which record of which commit log."""

    sink_id: str = sink_parameter("The sink whose commit log has the record.", "sink")
    offset: int | None = parameter(
        None,
        "Undo this record: put the previous record of the same key in force again, for example after somebody forged "
        "this one.",
        "--undo",
        metavar="OFFSET",
        chooses=True,
    )
    force: str = force_parameter("", "The phrase that overrules a refusal.")


@dataclass(frozen=True, kw_only=True)
class DropForeignParameters:
    """The parameters of ``exactly-once log --drop-foreign``: which commit log."""

    sink_id: str = sink_parameter("The sink in whose commit log others wrote.", "sink")
    drop_foreign: bool = parameter(
        False,
        "Drop every record under a key that no sink uses, for example after another program wrote to this topic by "
        "mistake.",
        "--drop-foreign",
        chooses=True,
    )


def _examine_undo(context: OperationContext, p: UndoParameters) -> OperationOutcome:
    """Find the record to undo; raise InvalidOption when the log has none, or a later one of its key is in force."""
    wrong, before = find(log_records(context.connection, p.sink_id), p.offset, p.sink_id)
    return OperationOutcome(
        p.sink_id,
        f"{wrong.title} at offset {wrong.offset} is in force under {wrong.key_text!r}.",
        document={"undone": wrong.as_json(p.sink_id), "restored": before.as_json(p.sink_id) if before else None},
        refusal=refusal_of(check_undo, p.sink_id, wrong, before, p.force),
        value=(wrong, before),
    )


def _undo(context: OperationContext, p: UndoParameters, found: OperationOutcome) -> OperationOutcome:
    if found.refusal is not None:
        raise found.refusal
    wrong, before = found.value
    _write(context.connection, p.sink_id, [(wrong.key, before)])
    again = f"{before.title} at offset {before.offset} is" if before else "No record is"
    done = f"Undid {wrong.title} at offset {wrong.offset}. {again} in force under {wrong.key_text!r}."
    return replace(found, sentence=done)


def _examine_foreign(context: OperationContext, p: DropForeignParameters) -> OperationOutcome:
    found = [r for r in in_force(log_records(context.connection, p.sink_id)) if not is_own_key(r.key_text)]
    return OperationOutcome(
        p.sink_id,
        f"{plural(len(found), 'record')} in force under keys that no sink uses.",
        document={"dropped": [r.as_json(p.sink_id) for r in found]},
        to_do=bool(found),
        value=[(r.key, None) for r in found],
    )


def _drop(context: OperationContext, p: DropForeignParameters, found: OperationOutcome) -> OperationOutcome:
    if found.value:
        _write(context.connection, p.sink_id, found.value)
    records = plural(len(found.value), "record")
    done = f"Dropped {records} under keys that no sink uses. The sink's own are in force."
    return replace(found, sentence=done)


def _write(connection: Connection, sink_id: str, records: Sequence[tuple[bytes, Logged | None]]) -> None:
    """Write under each key what a record holds, or a tombstone, in one transaction of the log's own producer.

    A driver that is alive goes on: its next write initialises the log's producer again, and reads the log from its
    beginning. Raises BrokerUnreachable, BrokerRefused or NotAuthorized.
    """
    where, deadline = (commit_log_topic(sink_id), PARTITION), Deadline(BUDGET_S)
    written = [
        LogRecord(key, record.value, record.headers) if record else LogRecord(key, None) for key, record in records
    ]
    with Admin(connection, BUDGET_S) as admin:
        try:
            writer = LogWriter(admin.within, commit_log_id(sink_id), LOG_TRANSACTION_TIMEOUT_MS, deadline)
            writer.write({where: written}, deadline)
        except KafkaError as e:
            raise of_commit_log(e, where[0], connection.bootstrap_servers, namespace(sink_id)) from e


UNDO = Operation(
    UndoParameters,
    _examine_undo,
    (OperationStep("undo", "Puts the record of the same key before it in force again.", _undo),),
    verb="log",
)
DROP_FOREIGN = Operation(
    DropForeignParameters,
    _examine_foreign,
    (OperationStep("drop", "Writes a tombstone for each key in force that no sink uses.", _drop),),
    verb="log",
)


def find(records: list[Logged], offset: int | None, sink_id: str) -> tuple[Logged, Logged | None]:
    """Return the record at ``offset``, and the one of its key before it; raise InvalidOption when there is no such
    record, or a later one of its key is in force.
    """
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


def check_undo(sink_id: str, wrong: Logged, before: Logged | None, force: str) -> None:
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
