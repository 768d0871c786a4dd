"""The work of a Spark task in Python, for outputs other than Kafka: begin, write and pre-commit, or drain."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from exactly_once.failpoints import reach
from exactly_once.participant import Participant, PartName, PartWriter
from exactly_once.protocol.planning import Plan
from exactly_once.protocol.replay import stands_for_lost
from exactly_once.protocol.ticket import Part, Ticket

log = logging.getLogger(__name__)

#: Rows and bytes after which there is nothing to gain by more.
ROWS, BYTES = 8_000, 4_000_000

#: Pause after which rows do not wait for others: what is written to watches the time of the batch.
WAIT_S = 0.1


class PartOutputs:
    """The outputs of one task, but for Kafka's: it writes rows to them, and pre-commits. Of a decided batch, it writes
    only to outputs that lost parts: a part whose rows none of the lost ones had is rolled back at once.
    """

    def __init__(self, sink_id: str, ticket: Ticket, participants: Sequence[Participant[Any]]):
        context = TaskContext.get()
        assert context is not None
        attempt = f"{context.attemptNumber()}.{context.taskAttemptId()}"
        number = context.partitionId()
        self._ticket, self._again = ticket, context.attemptNumber() > 0
        self._part = PartName(sink_id, ticket.token, ticket.batch.batch_id, number, attempt, ticket.incarnation)
        self._writes = [p for p in participants if ticket.plan is Plan.WRITE or p.name in ticket.replay]
        self._run_id = context.getLocalProperty("spark.jobGroup.id") or ""
        self._handles: list[Any] = []

    def write(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows, pre-commit behind the last one, and yield them. Raise PrepareFailed or InvalidRecord; then,
        and where nobody takes all of them, everything is rolled back.
        """
        self._handles = yield from _prepare(self._part, self._writes, self._ticket, rows)

    @property
    def handles(self) -> tuple[Any, ...]:
        """The handles, once all rows are written."""
        return tuple(self._handles)

    @property
    def part(self) -> Part:
        """The result of the task, where Kafka has none."""
        ticket, name = self._ticket, self._part
        return Part(ticket.execution, self._run_id, name.part, self._again, ticket.plan, self.handles)


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
) -> Generator[pa.RecordBatch, None, list[Any]]:
    writers: list[tuple[Participant[Any], PartWriter[Any]]] = []
    prepared: list[tuple[Participant[Any], Any]] = []
    try:
        for batch in together(rows):  # to the end, even if nothing is written: state stores commit with the last row
            if participants and not writers:
                for p in participants:
                    writers.append((p, p.begin(part._replace(participant=p.name))))
            for _, writer in writers:
                writer.write(batch)
            if writers:
                reach("mid-write")
            yield batch
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
