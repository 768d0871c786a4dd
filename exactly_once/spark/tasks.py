"""The work of a Spark task on its part: begin, write and pre-commit in every participant, or drain."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from exactly_once.errors import PrepareFailed, ProtocolViolation
from exactly_once.failpoints import reach
from exactly_once.options import Guarantee, SinkOptions
from exactly_once.participant import Participant, PartName, PartWriter
from exactly_once.participants.kafka.delivery import KafkaDelivery
from exactly_once.participants.kafka.participant import KafkaParticipant
from exactly_once.participants.kafka.rows import Columns
from exactly_once.protocol.part import Part
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.replay import stands_for_lost
from exactly_once.protocol.ticket import Ticket
from exactly_once.spark.coalesce import together
from exactly_once.spark.modes import check_task

log = logging.getLogger(__name__)


def check_batch(ticket: Ticket, strict: bool) -> None:
    """Make sure that Spark runs the planned batch; if ``strict``, also that its settings allow exactly-once output.

    Raises
    ------
    ProtocolViolation, UnsupportedMode
    PrepareFailed
        When another driver has written to the checkpoint since this one read it.
    """
    task = _task()
    if strict:
        check_task(task.getLocalProperty)
    query_id = task.getLocalProperty("sql.streaming.queryId")
    if query_id != ticket.batch.query_id:
        raise ProtocolViolation(
            f"Spark runs query {query_id}, but the checkpoint in the sink's options is of query "
            f"{ticket.batch.query_id}",
            "Give the query the same checkpointLocation as the sink's options",
        )
    batch_id = task.getLocalProperty("streaming.sql.batchId")
    if batch_id is not None and batch_id.isdigit() and int(batch_id) < ticket.batch.batch_id:
        raise PrepareFailed(
            f"Spark runs batch {batch_id}, but the checkpoint names batch {ticket.batch.batch_id}: another driver has "
            "written to it since this one read it",
            "Start the stream again; it resumes after that driver's batches. If this happens again, stop the other "
            "driver",
        )
    if batch_id != str(ticket.batch.batch_id):
        raise ProtocolViolation(
            f"Spark runs batch {batch_id}, but the checkpoint names batch {ticket.batch.batch_id}",
            "Use trigger(processingTime=...) or trigger(availableNow=True); other modes are not supported",
        )


def kafka_output(options: SinkOptions, columns: Columns, ticket: Ticket) -> Participant[Any]:
    """Return the Kafka participant for the guarantee of the options."""
    if options.guarantee is Guarantee.EXACTLY_ONCE:
        return KafkaParticipant.of(options, columns, ticket)
    return KafkaDelivery(options, columns)


def write_part(
    sink_id: str, ticket: Ticket, participants: Sequence[Participant[Any]], rows: Iterator[pa.RecordBatch]
) -> Part:
    """Write one part to all participants, and pre-commit it. Of a decided batch, only to those that lost parts: a part
    whose rows none of the lost ones had is rolled back at once.

    Raises
    ------
    PrepareFailed, InvalidRecord
    """
    context = _task()
    attempt = f"{context.attemptNumber()}.{context.taskAttemptId()}"
    number = context.partitionId()
    part = PartName(sink_id, ticket.token, ticket.batch.batch_id, number, attempt, ticket.incarnation)
    handles = _prepare(part, [p for p in participants if _writes(ticket, p.name)], ticket, rows)
    run_id = context.getLocalProperty("spark.jobGroup.id") or ""
    return Part(ticket.execution, run_id, part.part, attempt, ticket.plan, tuple(handles))


def _writes(ticket: Ticket, participant: str) -> bool:
    return ticket.plan is Plan.WRITE or participant in ticket.replay


def _prepare(
    part: PartName,
    participants: Sequence[Participant[Any]],
    ticket: Ticket,
    rows: Iterator[pa.RecordBatch],
) -> list[Any]:
    writers: list[tuple[Participant[Any], PartWriter[Any]]] = []
    prepared: list[tuple[Participant[Any], Any]] = []
    try:
        for batch in together(rows):  # to the end, even if nothing is written: state stores commit with the last row
            if not participants:
                continue
            if not writers:
                for p in participants:
                    writers.append((p, p.begin(part._replace(participant=p.name))))
            for _, writer in writers:
                writer.write(batch)
            reach("mid-write")
        while writers:  # a part without rows has no writers
            p, writer = writers[0]
            reach(f"pre-commit-{p.name}")
            handle = writer.pre_commit()
            del writers[0]  # from here on the handle stands for its rows
            if handle is not None and ticket.plan is Plan.REPLAY and not stands_for_lost(handle, ticket.replay):
                # the part of before is there, or the driver says that its rows did not come again
                _roll_back(p, handle)
            elif handle is not None:
                prepared.append((p, handle))
        return [handle for _, handle in prepared]
    except BaseException:
        for p, handle in prepared:
            _roll_back(p, handle)
        for _, writer in writers:
            writer.abort()
        raise


def _roll_back(participant: Participant[Any], handle: Any) -> None:
    try:
        participant.abort([handle])
    except Exception as e:  # the sweep finds it; the first error is the one to report
        log.warning("%s is left for the sweep to abort: %s", handle.name, e)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
