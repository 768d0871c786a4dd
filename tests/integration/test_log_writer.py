"""The producer of a commit log on a real broker: each of its requests may get lost, or its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from kafka.errors import InvalidProducerEpochError, KafkaConnectionError, KafkaError, ProducerFencedError

from exactly_once.commitlog.log_writer import GroupOffsets, LogRecord, LogWriter, OffsetsFailed, Written
from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.groups import answering_coordinator, published_offsets
from exactly_once.txn.coordinators import describe
from exactly_once.txn.scan import batches
from testkit.broker import create_topic, fresh_name
from testkit.oracle import read
from testkit.processes import until

TIMEOUT_MS = 30_000


@pytest.fixture
def admin(connection: Connection) -> Iterator[Admin]:
    with Admin(connection, 30) as admin:
        yield admin


@pytest.fixture
def topic(connection: Connection) -> str:
    return create_topic(connection.bootstrap_servers)


@pytest.fixture
def name() -> str:
    return fresh_name("log")


def writer_of(admin: Admin, name: str) -> LogWriter:
    return LogWriter(admin.within, name, TIMEOUT_MS, Deadline(30))


def write(writer: LogWriter, topic: str, *texts: str, offsets: GroupOffsets | None = None) -> Written:
    records = [LogRecord(b"k", text.encode()) for text in texts]
    return writer.write({(topic, 0): records}, Deadline(20), offsets)[topic, 0]


def values(connection: Connection, topic: str) -> list[str]:
    """The values that the independent reader sees."""
    return [m.value for m in read(connection, [topic])]


def losing_the_answer(monkeypatch: pytest.MonkeyPatch, writer: LogWriter, step: str) -> list[int]:
    """Have the broker do the step, and the client not hear of it, the first time; return how often it was asked."""
    real: Callable[..., Awaitable[Any]] = getattr(writer, step)
    asked: list[int] = []

    async def lost(*arguments: Any) -> Any:
        answer = await real(*arguments)
        asked.append(1)
        if len(asked) == 1:
            raise KafkaConnectionError("lost")
        return answer

    monkeypatch.setattr(writer, step, lost)
    return asked


@pytest.mark.parametrize("step", ["_add_now", "_produce", "_end"])
def test_a_request_whose_answer_gets_lost_is_asked_again_and_done_once(
    step: str, admin: Admin, topic: str, name: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a decision that is in the log twice, or in none, behind a broken connection."""
    writer = writer_of(admin, name)
    before = write(writer, topic, "a", "b")
    asked = losing_the_answer(monkeypatch, writer, step)
    behind = write(writer, topic, "c")
    assert len(asked) == 2
    assert behind.offset == before.offset + 3  # the records and their marker
    write(writer, topic, "d")
    assert values(connection, topic) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("step", ["_add_now", "_produce", "_commit", "_end"])
def test_what_was_sent_before_it_is_written_is_there_once_whatever_answer_gets_lost(
    step: str, admin: Admin, topic: str, name: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a decision that is in the log twice, or in none, and one without the offsets of its batch."""
    writer, group = writer_of(admin, name), fresh_name("group")
    offsets = GroupOffsets(group, answering_coordinator(admin, group, (topic, 0)), {topic: {0: 7}}, "q/1", 5.0)
    asked = losing_the_answer(monkeypatch, writer, step)
    writer.open([(topic, 0)], group)
    records = {(topic, 0): [LogRecord(b"k", b"a")]}
    assert writer.send(records, offsets) and values(connection, topic) == []
    if step == "_commit":
        with pytest.raises(OffsetsFailed):
            writer.write(records, Deadline(20), offsets)
        return
    assert writer.write(records, Deadline(20), offsets)[topic, 0].offset == 0
    assert len(asked) == 2 and values(connection, topic) == ["a"]
    until("the marker", lambda: published_offsets(admin.renew(10), group) == ({topic: {0: 7}}, {"q": 1}))


def test_nothing_is_sent_in_a_transaction_that_was_begun_without_the_group(admin: Admin, topic: str, name: str) -> None:
    """Guards against offsets in a transaction whose coordinator does not know of them: nobody would end them."""
    writer, group = writer_of(admin, name), fresh_name("group")
    offsets = GroupOffsets(group, answering_coordinator(admin, group, (topic, 0)), {topic: {0: 7}}, "q/1", 5.0)
    writer.open([(topic, 0)])
    assert not writer.send({(topic, 0): [LogRecord(b"k", b"a")]}, offsets)
    write(writer, topic, "a", offsets=offsets)
    until("the marker", lambda: published_offsets(admin.renew(10), group) == ({topic: {0: 7}}, {"q": 1}))


def test_a_commit_without_an_answer_is_the_last_one_of_its_producer(
    admin: Admin, topic: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a commit that arrives late, and ends the next transaction before its decision is made."""
    writer = writer_of(admin, name)
    write(writer, topic, "a")
    assert not writer.spent
    real, sent = admin.client._manager.send, []

    def cut_off(request: Any, **to: Any) -> Any:
        if type(request).__name__ == "EndTxnRequest" and not sent:
            sent.append(request)
            raise KafkaConnectionError("lost")
        return real(request, **to)

    monkeypatch.setattr(admin.client._manager, "send", cut_off)
    write(writer, topic, "b")
    assert writer.spent


def test_a_transaction_that_was_opened_before_is_the_one_that_is_written(
    admin: Admin, topic: str, name: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a wait of each decision, and against an opened transaction that nobody ends."""
    writer = writer_of(admin, name)
    write(writer, topic, "a")
    real, asked = writer._add, list[str]()

    async def counted(*arguments: Any) -> None:
        asked.append("add")
        await real(*arguments)

    monkeypatch.setattr(writer, "_add", counted)
    writer.open([(topic, 0)])
    write(writer, topic, "b")
    assert asked == ["add"]
    assert describe(admin, [name])[name].state in ("PrepareCommit", "CompleteCommit")
    assert values(connection, topic) == ["a", "b"]


def test_an_opened_transaction_holds_no_reader_back_and_ends_with_the_next_producer(
    admin: Admin, topic: str, name: str
) -> None:
    """Guards against an open transaction in the log of a driver that went away between the two."""
    writer = writer_of(admin, name)
    end = write(writer, topic, "a").offset + 2
    writer.open([(topic, 0)])
    write(writer_of(admin, name), topic, "b")
    with pytest.raises((InvalidProducerEpochError, ProducerFencedError)):
        write(writer, topic, "c")
    assert admin.watermarks(topic)[0].last_stable > end


def test_offsets_are_committed_with_the_records_or_neither_is(
    admin: Admin, topic: str, name: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a group that names a batch which the log does not have."""
    writer, group = writer_of(admin, name), fresh_name("group")
    coordinator = answering_coordinator(admin, group, (topic, 0))
    offsets = GroupOffsets(group, coordinator, {topic: {0: 7}}, "q/1", 5.0)
    write(writer, topic, "a", offsets=offsets)
    until("the marker", lambda: published_offsets(admin.renew(10), group) == ({topic: {0: 7}}, {"q": 1}))

    async def refused(*_: object) -> None:
        raise KafkaError("no")

    monkeypatch.setattr(writer, "_commit", refused)
    with pytest.raises(OffsetsFailed):
        write(writer, topic, "b", offsets=offsets._replace(offsets={topic: {0: 8}}, metadata="q/2"))
    write(writer_of(admin, name), topic, "c")
    assert values(connection, topic) == ["a", "c"]
    assert published_offsets(admin.renew(10), group, settled=True).batches == {"q": 1}


def test_large_records_are_compressed_and_every_client_reads_them(
    admin: Admin, topic: str, name: str, connection: Connection
) -> None:
    """Guards against a decision of many parts that the topic refuses, and one that an older driver cannot read."""
    large = "part " * 1_000
    offset = write(writer_of(admin, name), topic, large).offset
    marks = admin.watermarks(topic)[0]
    [batch] = [b for b in batches(admin, (topic, 0), offset, marks.last_stable, marks.high) if b.marker is None]
    assert len(batch.raw) < 500
    assert values(connection, topic) == [large]
