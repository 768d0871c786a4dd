"""The work of a Spark task on its part: begin, write and pre-commit in every participant, or drain."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from exactly_once.failpoints import reach
from exactly_once.participant import Participant, PartName, PartWriter
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.replay import stands_for_lost
from exactly_once.protocol.ticket import Part, Ticket
from exactly_once.spark.modes import check_planned, check_task

log = logging.getLogger(__name__)

#: Rows and bytes after which there is nothing to gain by more.
ROWS, BYTES = 8_000, 4_000_000

#: Pause after which rows do not wait for others: what is written to watches the time of the batch.
WAIT_S = 0.1


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
    """Write one part to all participants, and pre-commit it. A part of a decided batch goes only to those that lost
    parts; it is rolled back at once if none of the lost ones had its rows.

    Raises PrepareFailed or InvalidRecord.
    """
    context = _task()
    attempt = f"{context.attemptNumber()}.{context.taskAttemptId()}"
    number = context.partitionId()
    part = PartName(sink_id, ticket.token, ticket.batch.batch_id, number, attempt, ticket.incarnation)
    writes = [p for p in participants if ticket.plan is Plan.WRITE or p.name in ticket.replay]
    handles = _prepare(part, writes, ticket, rows)
    run_id = context.getLocalProperty("spark.jobGroup.id") or ""
    return Part(ticket.execution, run_id, part.part, attempt, ticket.plan, tuple(handles))


def together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put Spark's small Arrow batches together, for each costs as much as hundreds of rows: yield their rows in order,
    the first batch at once, then some :data:`ROWS` rows or :data:`BYTES` bytes at a time. Batches without rows are left
    out.
    """
    some: list[pa.RecordBatch] = []
    rows = size = 0
    last = float("-inf")
    for batch in batches:
        if not batch.num_rows:
            continue
        some.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS or size >= BYTES or time.monotonic() - last >= WAIT_S:
            yield _one(some)
            some, rows, size = [], 0, 0
            last = time.monotonic()
    if some:
        yield _one(some)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    [one] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return one


def _prepare(
    part: PartName,
    participants: Sequence[Participant[Any]],
    ticket: Ticket,
    rows: Iterator[pa.RecordBatch],
) -> list[Any]:
    writers: list[tuple[Participant[Any], PartWriter[Any]]] = []
    prepared: list[tuple[Participant[Any], Any]] = []
    try:
        for batch in together(rows):  # all rows, even if nothing is written: state stores commit with the last one
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
                # either the earlier part is there, or the driver says that its rows did not come again
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
