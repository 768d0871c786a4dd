"""The work of a Spark task on its part: begin, write and pre-commit in every participant, or drain."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from exactly_once.failpoints import reach
from exactly_once.participant import Participant, PartName, PartWriter
from exactly_once.protocol.part import Part
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.replay import stands_for_lost
from exactly_once.protocol.ticket import Ticket
from exactly_once.spark.coalesce import together
from exactly_once.spark.modes import check_planned, check_task

log = logging.getLogger(__name__)


def check_batch(ticket: Ticket) -> None:
    """Make sure that Spark runs the planned batch, and that its settings allow exactly-once output; raise as
    :func:`~exactly_once.spark.modes.check_task` and :func:`~exactly_once.spark.modes.check_planned`.
    """
    setting = _task().getLocalProperty
    check_task(setting)
    batch_id = setting("streaming.sql.batchId") or ""
    check_planned(ticket.batch, setting("sql.streaming.queryId") or "", int(batch_id) if batch_id.isdigit() else None)


def write_part(
    sink_id: str, ticket: Ticket, participants: Sequence[Participant[Any]], rows: Iterator[pa.RecordBatch]
) -> Part:
    """Write one part to all participants, and pre-commit it. Of a decided batch, only to those that lost parts: a part
    whose rows none of the lost ones had is rolled back at once.

    Raises PrepareFailed or InvalidRecord.
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
        log.warning("could not abort %s; the driver does, or the next start: %s", handle.name, e)


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
