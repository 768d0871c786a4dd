"""The end of an execution as its tasks and its driver see it, on a real broker and without Spark: tasks that come too
late, attempts that nobody counted, batches that take too long.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException

from exactly_once.commitlog import log_writer
from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator import micro_batch as sink
from exactly_once.coordinator.batch_write import WriteCoordinator
from exactly_once.coordinator.micro_batch import Coordinator
from exactly_once.coordinator.recover import recover
from exactly_once.errors import BatchTooLong, DecisionTooLarge, Expiring
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.options import SinkOptions
from exactly_once.participant import PartName
from exactly_once.participants.kafka import transactions
from exactly_once.protocol.names import commit_log_id, commit_log_topic
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.ticket import Part, Ticket
from exactly_once.txn.coordinators import Listing, describe, end_one, end_txn_version
from exactly_once.txn.scan import LogBatch, batches
from testkit import oracle
from testkit.broker import create_topic, fresh_name
from testkit.kafka_part import KafkaPart, PartTransaction
from testkit.part_ids import part_id
from testkit.processes import until


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
        monkeypatch.setattr(sink, "batch_in_flight", lambda *_: self.batch)

    def plan(self, batch_id: int = 0) -> Ticket:
        """Where Spark plans an execution of a batch."""
        self.batch = Batch("q", batch_id, f"digest of {batch_id}")
        return self.coordinator.plan()

    def begin(self, ticket: Ticket, part: int = 0, attempt: str = "0.0") -> KafkaPart:
        """A task that has sent its first row."""
        name = PartName(self.sink_id, ticket.token, ticket.batch.batch_id, part, attempt)
        writer = KafkaPart(self.connection, self.topic, name, {}, ticket.timeout_ms)
        writer.write(pa.RecordBatch.from_pydict({"value": [f"b{ticket.batch.batch_id}-p{part}"]}))
        return writer

    def part(self, ticket: Ticket, part: int = 0, attempt: str = "0.0", again: bool = False) -> Part:
        """A task that has prepared; ``again``: not the first one of its part."""
        return self.prepared(ticket, self.begin(ticket, part, attempt), part, again)

    def prepared(self, ticket: Ticket, writer: KafkaPart, part: int = 0, again: bool = False) -> Part:
        handle = writer.pre_commit()
        assert handle is not None
        return Part(ticket.execution, "", part, again, ticket.plan, (handle,))

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
def test_the_end_of_an_execution_stands_in_the_log_before_what_is_open_is_swept(ends: str, stream: Stream) -> None:
    """Guards against readers that wait for a transaction which was opened after the last sweep: its task sees by the
    end of the log that it is too late (Java's half: test_a_task_in_java_is_told_why_it_is_too_late).
    """
    ticket = stream.plan()
    part = stream.part(ticket)
    stream.begin(ticket, part=1)
    if ends == "abort":
        stream.coordinator.abort(0, [part, None])
    elif ends == "commit":
        stream.commit(ticket, part)
    else:
        recover(stream.connection, stream.sink_id)
    assert_late(stream.connection, stream.sink_id, ticket)
    until("the sweep", lambda: stream.open_parts() == 0, 10)


def assert_late(connection: Connection, sink_id: str, ticket: Ticket) -> None:
    with Admin(connection) as admin:  # a marker alone is of a transaction without a record
        assert any(b.marker is None for b in new_batches(admin, sink_id, ticket))


def new_batches(admin: Admin, sink_id: str, ticket: Ticket) -> list[LogBatch]:
    """What the commit log has got since the plan."""
    log = commit_log_topic(sink_id)
    end = admin.renew(10.0).high_watermark(log, 0)
    return list(batches(admin, (log, 0), ticket.log_end, end, end))


def test_a_decision_that_was_sent_beside_a_confirmation_that_fails_is_not_made(stream: Stream) -> None:
    """Guards against a loss: a part is gone, and its batch would be decided all the same by the next commit of the
    log, here that of the abort's record.
    """
    ticket = stream.plan()
    stream.commit(ticket, stream.part(ticket))
    ticket = stream.plan(1)
    parts = [stream.part(ticket, part=n) for n in range(2)]
    with Admin(stream.connection) as admin:
        [gone] = parts[1].handles
        end_one(admin, gone.transactional_id, gone.producer_id, gone.epoch, False, end_txn_version(admin))
        with pytest.raises(Expiring):
            stream.commit(ticket, *parts)
        stream.coordinator.abort(1, parts)
        rolled_back = [b for b in new_batches(admin, stream.sink_id, ticket) if b.marker is False]
    assert rolled_back, "no decision was sent: the test shows nothing"
    assert [d.batch_id for d in read_log(stream.connection, stream.sink_id).decisions] == [0]
    assert stream.visible() == ["b0-p0"]
    ticket = stream.plan(1)
    stream.commit(ticket, *(stream.part(ticket, part=n) for n in range(2)))
    assert stream.visible() == ["b0-p0", "b1-p0", "b1-p1"]


def test_the_transaction_of_a_decision_begins_with_the_group_however_long_ago_that_was_asked(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against two waits more for each batch of a stream that is triggered every ten seconds."""
    source = create_topic(stream.connection.bootstrap_servers)
    monkeypatch.setattr(sink, "kafka_offsets", lambda sources: {source: {0: 0}})
    log = stream.coordinator._session.log
    for batch_id in range(2):
        ticket = stream.plan(batch_id)
        stream.commit(ticket, stream.part(ticket))
    stream.coordinator._await_mark()
    log._offsets._answered = float("-inf")  # as after a pause
    ticket = stream.plan(2)
    name = commit_log_id(stream.sink_id)
    with Admin(stream.connection) as admin:

        def begun_with() -> set[str]:
            return {topic for topic, _ in describe(admin.renew(10.0), [name])[name].partitions}

        until("its partitions", lambda: begun_with() == {commit_log_topic(stream.sink_id), "__consumer_offsets"}, 20)
    stream.commit(ticket, stream.part(ticket))
    assert stream.visible() == ["b0-p0", "b1-p0", "b2-p0"]


def test_a_decision_that_is_too_large_to_be_sent_is_refused_by_its_code(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a client's bare error, which names neither the log nor the way out."""
    ticket = stream.plan()
    stream.commit(ticket, stream.part(ticket))
    ticket = stream.plan(1)
    part = stream.part(ticket)
    monkeypatch.setattr(log_writer, "LARGEST_RECORD_BYTES", 100)
    with pytest.raises(DecisionTooLarge):
        stream.commit(ticket, part)


def test_a_task_that_may_be_killed_before_it_looks_again_can_begin_nothing_after_the_abort(stream: Stream) -> None:
    """Guards against the process that Spark kills between a task's first record, which comes after the sweep, and its
    second look at the log: nobody would end its transaction.
    """
    ticket = stream.plan()
    with Admin(stream.connection) as admin:
        name = part_id(stream.sink_id, ticket.token, 1, "0.0")
        transaction = PartTransaction(stream.connection, {}, name, ticket.timeout_ms, admin)
        stream.coordinator.abort(0, [stream.part(ticket), None])
        transaction.send(stream.topic, None, b"never")
        with pytest.raises((KafkaException, SystemError)):
            transaction.flush(20.0)
    assert stream.open_parts() == 0
    ticket = stream.plan()
    stream.commit(ticket, stream.part(ticket), stream.part(ticket, part=1))
    assert stream.visible() == ["b0-p0", "b0-p1"]


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
    """Guards against a transaction of a stage that was run again: its attempts count from 0 again, so the part says
    that there was one; and after the last batch of a run nobody looks.
    """
    first = stream.plan(0)
    stream.commit(first, stream.part(first))
    second = stream.plan(1)
    stream.begin(second, part=0, attempt="0.1")  # the stage's first run; its executor is gone
    stream.commit(second, stream.part(second, part=0, attempt="0.2", again=True))
    until("the sweep beside the mark", lambda: stream.open_parts() == 0, 10)
    assert stream.visible() == ["b0-p0", "b1-p0"]


def test_only_batches_with_something_to_sweep_list_transactions(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a question that each broker answers by looking at every transactional id of the cluster, whosever
    they are: of all streams for each of their batches, that is the square of their number.
    """
    looked: list[int] = []
    listed = transactions.list_transactions

    def list_transactions(*asked: Any) -> list[Listing]:
        looked.append(ticket.batch.batch_id)
        return listed(*asked)

    ticket = stream.plan(0)  # what the claim looks for is another matter
    monkeypatch.setattr(transactions, "list_transactions", list_transactions)
    for batch in range(5):
        stream.commit(ticket, stream.part(ticket, again=batch == 2))
        ticket = stream.plan(batch + 1)  # waits for what is done behind the batch
    assert looked == [0, 2, 3], "behind the claim, with an attempt that was given up, and behind that batch"


@pytest.mark.long
def test_a_batch_that_is_too_long_is_a_persons_affair_the_second_time(stream: Stream) -> None:
    """Guards against restarts forever: Spark runs the same batch again, which is as long as before. A batch that is in
    time again is written.
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
    prepared = stream.part(ticket)
    wait(4.0)
    with pytest.raises(BatchTooLong, match="2 times") as stopped:
        stream.commit(ticket, prepared)
    assert f"checkpoint repair /data/c --sink {stream.sink_id}" in stopped.value.way_out
    stream.coordinator.abort(0, [prepared])
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
    assert_late(connection, sink_id, ticket)


def wait(seconds: float) -> None:
    """Until that much of a transaction's time is used up: its age is what the test is about."""
    end = time.monotonic() + seconds
    until(f"{seconds:g} s", lambda: time.monotonic() > end, seconds + 5)
