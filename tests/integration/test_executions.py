"""The end of an execution as its tasks and its driver see it, on a real broker and without Spark: tasks that come too
late, attempts that nobody counted, batches that take too long.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from exactly_once.coordinator import micro_batch as sink
from exactly_once.coordinator.batch_write import WriteCoordinator
from exactly_once.coordinator.micro_batch import Coordinator
from exactly_once.coordinator.recover import recover
from exactly_once.errors import BatchTooLong, ExactlyOnceError, Expiring, Fenced, PrepareFailed
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.options import SinkOptions
from exactly_once.participant import PartName
from exactly_once.protocol.names import commit_log_topic, part_id
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.ticket import Part, Ticket
from testkit import oracle
from testkit.broker import create_topic, fresh_name
from testkit.kafka_part import KafkaPart, PartTransaction, PythonKafka
from testkit.kafka_rows import columns_of
from testkit.late_check import LateCheck
from testkit.processes import until

SCHEMA = StructType().add("value", StringType())


class Stream:
    """A stream whose driver and tasks are this process."""

    def __init__(self, connection: Connection, monkeypatch: pytest.MonkeyPatch):
        self.connection = connection
        self.sink_id = fresh_name("sink")
        self.topic = create_topic(connection.bootstrap_servers, partitions=4)
        self.options = SinkOptions.parse(
            {**connection.spark(), "sink.id": self.sink_id, "topic": self.topic, "checkpointLocation": "/data/c"}
        )
        self.coordinator = Coordinator(self.options)
        self.batch = Batch("q", 0, "digest of 0")
        monkeypatch.setattr(sink, "batch_in_flight", lambda checkpoint, sink_id: self.batch)

    def plan(self, batch_id: int = 0) -> Ticket:
        """Where Spark plans an execution of a batch."""
        self.batch = Batch("q", batch_id, f"digest of {batch_id}")
        return self.coordinator.plan()

    def begin(self, ticket: Ticket, part: int = 0, attempt: str = "0.0") -> KafkaPart:
        """A task that has sent its first row."""
        name = PartName(self.sink_id, ticket.token, ticket.batch.batch_id, part, attempt)
        writer = PythonKafka(self.options, columns_of(SCHEMA, self.topic), ticket).begin(name)
        writer.write(pa.RecordBatch.from_pydict({"value": [f"b{ticket.batch.batch_id}-p{part}"]}))
        return writer

    def part(self, ticket: Ticket, part: int = 0, attempt: str = "0.0") -> Part:
        """A task that has prepared."""
        return self.prepared(ticket, self.begin(ticket, part, attempt), part, attempt)

    def prepared(self, ticket: Ticket, writer: KafkaPart, part: int = 0, attempt: str = "0.0") -> Part:
        handle = writer.pre_commit()
        assert handle is not None
        return Part(ticket.execution, "", part, attempt, ticket.plan, (handle,))

    def commit(self, ticket: Ticket, *parts: Part) -> None:
        self.coordinator.commit(parts, ticket.batch.batch_id)

    def open_parts(self) -> int:
        return oracle.open_parts(self.connection, self.sink_id)

    def visible(self) -> list[str | None]:
        return sorted(m.value or "" for m in oracle.read(self.connection, [self.topic]))


@pytest.fixture
def stream(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Stream:
    return Stream(connection, monkeypatch)


@pytest.mark.parametrize("ends", ["abort", "commit", "claim"])
def test_a_task_that_begins_after_its_execution_has_ended_opens_no_transaction(ends: str, stream: Stream) -> None:
    """Guards against readers that wait for a transaction which was opened after the last sweep."""
    ticket = stream.plan()
    part = stream.part(ticket)
    if ends == "abort":
        stream.coordinator.abort(0, [part, None])
    elif ends == "commit":
        stream.commit(ticket, part)
    else:
        recover(stream.connection, stream.sink_id)
    with pytest.raises(Fenced if ends == "claim" else PrepareFailed):
        stream.begin(ticket, part=1)
    assert stream.open_parts() == 0


@pytest.mark.parametrize("ends", ["abort", "commit", "claim"])
def test_a_task_that_prepares_after_its_execution_has_ended_aborts_its_transaction(ends: str, stream: Stream) -> None:
    """Guards against the gap between a task's look at the log and its first record: what the sweep did not list, the
    task itself finds out about.
    """
    ticket = stream.plan()
    part = stream.part(ticket)
    if ends == "claim":
        late = stream.begin(ticket, part=1)
        recover(stream.connection, stream.sink_id)
    else:
        # as of a task that asked the log just before: it does not know yet what stands there when it begins
        stream.coordinator.abort(0, [part, None]) if ends == "abort" else stream.commit(ticket, part)
        late = stream.begin(replace(ticket, log_end=10**9), part=1)
        late._transaction._late._ticket = ticket  # type: ignore[union-attr]
    with pytest.raises((Fenced, PrepareFailed)) as refused:
        late.pre_commit()
    late.abort()
    assert "too late" in str(refused.value) or "taken the sink" in str(refused.value) or ends == "claim"
    assert stream.open_parts() == 0


def test_a_task_that_may_be_killed_before_it_looks_again_can_begin_nothing_after_the_abort(stream: Stream) -> None:
    """Guards against the process that Spark kills between a task's first record, which comes after the sweep, and its
    second look at the log: nobody would end its transaction.
    """
    ticket = stream.plan()
    with Admin(stream.connection) as admin:
        name = part_id(stream.sink_id, ticket.token, 1, "0.0")
        late = LateCheck(stream.connection, stream.sink_id, ticket)
        transaction = PartTransaction(stream.connection, {}, name, ticket.timeout_ms, admin, late)
        stream.coordinator.abort(0, [stream.part(ticket), None])
        transaction.send(stream.topic, None, b"never")
        with pytest.raises(PrepareFailed):
            transaction.flush(20.0)
    assert stream.open_parts() == 0
    ticket = stream.plan()
    stream.commit(ticket, stream.part(ticket), stream.part(ticket, part=1))
    assert stream.visible() == ["b0-p0", "b0-p1"]


def test_what_somebody_else_writes_to_the_log_stops_no_task(stream: Stream) -> None:
    """Guards against a healthy batch that fails because the tally, or an older execution, moved the log's end."""
    stream.plan()
    stream.coordinator.abort(0, [None])
    ticket = stream.plan()
    part = stream.part(replace(ticket, log_end=0))
    stream.commit(ticket, part)
    assert stream.visible() == ["b0-p0"]


def test_the_tasks_of_a_running_stream_need_not_read_the_log(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a read of the log by each task of each batch: the end that the ticket tells must be the broker's,
    after a claim, after a batch and after an abort.
    """
    log = commit_log_topic(stream.sink_id)
    for n, batch_id in enumerate((0, 1, 2, 2)):
        ticket = stream.plan(batch_id)
        with Admin(stream.connection) as admin:
            # the end marker of the last write may still be on its way, and nothing can come before it
            until("the end of the log", lambda t=ticket, c=admin: c.high_watermark(log, 0) >= t.log_end, 20)
            assert admin.renew(10.0).high_watermark(log, 0) == ticket.log_end
        part = stream.part(ticket)
        if n == 2:
            stream.coordinator.abort(batch_id, [part])
        else:
            stream.commit(ticket, part)
    assert stream.visible() == ["b0-p0", "b1-p0", "b2-p0"]


def test_what_an_attempt_left_that_counts_as_the_first_one_is_swept_with_its_batch(stream: Stream) -> None:
    """Guards against a transaction of a stage that was run again: its attempts count from 0 again, so no number says
    that something was retried, and after the last batch of a run nobody looks.
    """
    first = stream.plan(0)
    stream.commit(first, stream.part(first))
    second = stream.plan(1)
    stream.begin(second, part=0, attempt="0.1")  # the stage's first run; its executor is gone
    stream.commit(second, stream.part(second, part=0, attempt="0.2"))
    until("the sweep beside the mark", lambda: stream.open_parts() == 0, 10)
    assert stream.visible() == ["b0-p0", "b1-p0"]


@pytest.mark.long
def test_a_batch_that_is_too_long_is_a_persons_affair_the_second_time(stream: Stream) -> None:
    """Guards against restarts forever: Spark runs the same batch again, which is as long as before. From the driver
    the first time, from a task the second time; a batch that is in time again is written.
    """
    stream.options = replace(stream.options, timeout_ms=5_000)
    stream.coordinator = Coordinator(stream.options)
    ticket = stream.plan()
    prepared = stream.part(ticket)
    wait(4.0)
    with pytest.raises(Expiring, match=r"raise kafka\.transaction\.timeout\.ms to"):
        stream.commit(ticket, prepared)
    stream.coordinator.abort(0, [prepared])

    ticket = stream.plan()
    writer = stream.begin(ticket)
    until("a part that is too old", lambda: writer._transaction and writer._transaction.age_ms > 3_500, 10)
    with pytest.raises(BatchTooLong, match="2 times") as stopped:
        writer.write(pa.RecordBatch.from_pydict({"value": ["never"]}))
    writer.abort()
    assert f"checkpoint repair /data/c --sink {stream.sink_id}" in stopped.value.way_out
    stream.coordinator.abort(0, [None])
    assert stream.open_parts() == 0 and stream.visible() == []

    ticket = stream.plan()
    assert ticket.too_long == 2
    stream.commit(ticket, stream.part(ticket))
    assert stream.visible() == ["b0-p0"]
    assert stream.plan(1).too_long == 0


def test_a_write_that_is_aborted_tells_its_late_tasks(connection: Connection) -> None:
    """Guards against the late task of a df.write: no sensor starts the write again, so readers would wait."""
    topic, sink_id = create_topic(connection.bootstrap_servers), fresh_name("sink")
    given = {**connection.spark(), "sink.id": sink_id, "topic": topic, "write.id": "day-1"}
    options = SinkOptions.parse(given, batch=True)
    write = WriteCoordinator(options)
    ticket = write.plan()
    write.abort(0, [None])
    name = PartName(sink_id, ticket.token, 0, 0, "0.0")
    with pytest.raises(ExactlyOnceError, match="too late"):
        PythonKafka(options, columns_of(SCHEMA, topic), ticket).begin(name).write(
            pa.RecordBatch.from_pydict({"value": ["never"]})
        )
    assert oracle.open_parts(connection, sink_id) == 0


def wait(seconds: float) -> None:
    """Until that much of a transaction's time is used up: its age is what the test is about."""
    end = time.monotonic() + seconds
    until(f"{seconds:g} s", lambda: time.monotonic() > end, seconds + 5)
