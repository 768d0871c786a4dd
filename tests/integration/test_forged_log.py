"""A commit log that somebody else writes to: nothing foreign is ended, and what is forged is refused."""

from __future__ import annotations

import contextlib
import io
import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from exactly_once.commitlog import log_reader
from exactly_once.commitlog.commit_log import CommitLog, read_log
from exactly_once.coordinator.recover import recover
from exactly_once.deadline import Deadline
from exactly_once.errors import CheckpointRewound, CommitLogDamaged, ExactlyOnceError, Fenced, SinkOwned
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.encoding import encode
from exactly_once.protocol.names import commit_log_topic
from exactly_once.protocol.planning import Batch, Plan, plan_batch
from exactly_once.protocol.records import Claim, Decision, PreparedPart, PreparedTransaction, Tally, key_of
from exactly_once.protocol.takeover import check_binding
from exactly_once.tools import cli
from exactly_once.tools.operation.log_records import UNDO, UndoParameters, log_records
from exactly_once.tools.operation.model import OperationContext
from exactly_once.tools.operation.rules import Refused
from exactly_once.txn.coordinators import describe
from testkit import broker as brokers
from testkit.dead_sink import DeadSink


@pytest.fixture
def sink(connection: Connection, topic: str) -> Iterator[DeadSink]:
    """A sink with two open parts and no decision; its log ends with the test."""
    sink = DeadSink(connection, topic)
    sink.open_part(0)
    yield sink
    brokers.delete_topic(connection.bootstrap_servers, commit_log_topic(sink.sink_id))


def forge(connection: Connection, sink_id: str, *records: tuple[str, bytes]) -> None:
    """Write to the commit log as anybody may who has WRITE on it."""
    producer = Producer({**connection.librdkafka(), "linger.ms": 5, "message.max.bytes": 16 * 1024 * 1024})
    for key, value in records:
        producer.produce(commit_log_topic(sink_id), value, key, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0


@pytest.fixture
def foreign(connection: Connection, topic: str) -> Iterator[tuple[str, PreparedTransaction]]:
    """Another application's open transaction."""
    name = brokers.fresh_name("payments")
    producer = brokers.open_transaction(connection, name)
    producer.produce(topic, "not yours")
    producer.flush(30)
    with Admin(connection) as admin:
        d = describe(admin, [name])[name]
        yield name, PreparedTransaction(name, d.producer_id, d.producer_epoch, 0, 1)
    producer.abort_transaction(30)


def test_a_forged_decision_cannot_end_another_applications_transaction(
    connection: Connection, sink: DeadSink, foreign: tuple[str, PreparedTransaction]
) -> None:
    """Corruption: who may write to one sink's log commits the half-written transaction of any application on the
    cluster, with the rights of the sink's recovery.
    """
    name, handle = foreign
    forged = Decision("q", 0, 1, (handle,), "digest", 5, 1, topics=(sink.topic,))
    forge(connection, sink.sink_id, (key_of(forged), encode(forged)))
    with pytest.raises(CommitLogDamaged, match=rf"EO-LOG: .*'{name}' is not part 0 of sink '{sink.sink_id}'"):
        recover(connection, sink.sink_id)
    with Admin(connection) as admin:
        assert describe(admin, [name])[name].state == "Ongoing"
    assert sink.visible() == []


def test_a_forged_decision_cannot_name_another_sinks_part(connection: Connection, sink: DeadSink) -> None:
    """Corruption: files, and the prepared transactions of a database, are ended by their names alone."""
    part = PreparedPart("files", "eo:other:aaaaaaaaaa:1:0:0:0.0:files", 0, 1, "d", {"file": "x"})
    forged = Decision("q", 0, 1, (part,), "digest", 5, 1)
    forge(connection, sink.sink_id, (key_of(forged), encode(forged)))
    with pytest.raises(CommitLogDamaged, match=f"is not part 0 of sink '{sink.sink_id}'"):
        read_log(connection, sink.sink_id)


def test_a_record_under_the_key_of_another_one_is_refused(connection: Connection, sink: DeadSink) -> None:
    """Loss: compaction would drop the decision whose key it has."""
    forge(connection, sink.sink_id, ("decision/7", encode(Tally(1))))
    with pytest.raises(CommitLogDamaged, match=r"belongs under the key 'tally'.*under the key 'decision/7'"):
        read_log(connection, sink.sink_id)


def test_deep_and_large_records_are_refused_at_once(connection: Connection, sink: DeadSink) -> None:
    """Outage: every start, sensor and dashboard of a sink dies of one record, or waits for it forever."""
    for value in (b"[" * 1_000_000, b'{"format":5,"kind":"' + b"x" * 7_000_000 + b'"}'):
        forge(connection, sink.sink_id, ("tally", value))
        began = time.monotonic()
        with pytest.raises(CommitLogDamaged) as refused:
            read_log(connection, sink.sink_id)
        assert time.monotonic() - began < 5 and len(str(refused.value)) < 2_000


@pytest.mark.long
def test_a_flood_of_one_key_takes_the_memory_of_one_record(connection: Connection, sink: DeadSink) -> None:
    """Outage: a log that is not compacted (a cleaner that died, a loop that writes) fills the driver's memory."""
    flood = replace(Tally(1), completed=7)
    forge(connection, sink.sink_id, *[("tally", encode(replace(flood, drained=n))) for n in range(100_000)])
    assert read_log(connection, sink.sink_id, 30).tally == replace(flood, drained=99_999)


def test_a_flood_of_foreign_keys_is_refused_before_its_end(
    connection: Connection, sink: DeadSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outage: as above, by a program that mistakes the log for its own topic."""
    monkeypatch.setattr(log_reader, "_MANY_FOREIGN", 1_000)
    forge(connection, sink.sink_id, *[(f"order-{n}", b"{}") for n in range(5_000)])
    with pytest.raises(CommitLogDamaged, match=r"more than 1,000 keys .*under the key 'order-") as e:
        read_log(connection, sink.sink_id, 30)
    assert "brokers have compacted" in e.value.way_out


def do_what_it_says(e: ExactlyOnceError, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the one command of the way out."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", connection.bootstrap_servers)
    [command] = re.findall(r"exactly-once (log \S+ --\S+(?: \d+)?)", e.way_out)
    assert cli.main(command.split()) == 0


def test_what_a_program_wrote_here_by_mistake_is_dropped_by_the_command_in_the_message(
    connection: Connection, sink: DeadSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead sink id: the message named one key of thousands, and a tombstone that no command writes."""
    real = Decision("q", 7, 1, (), "digest of 7", 5, 0)
    sink.log.append(real, Deadline(20))
    forge(connection, sink.sink_id, *[(f"order-{n}", b"{}") for n in range(2_000)])
    not_text = Producer(connection.librdkafka())
    not_text.produce(commit_log_topic(sink.sink_id), b"x", b"\xff\xfe", partition=0)
    assert not_text.flush(30) == 0
    with pytest.raises(CommitLogDamaged, match=r" 2,001 keys .*the first b'{}' at offset") as e:
        read_log(connection, sink.sink_id)
    do_what_it_says(e.value, connection, monkeypatch)
    assert read_log(connection, sink.sink_id, whole=True).last_decision("q") == real
    assert cli.main(["log", sink.sink_id]) == 0


@pytest.mark.parametrize(
    "value", [b"not a record", b'{"format": 99, "kind": "tally"}', encode(Tally(1))[:-1]], ids=["text", "newer", "cut"]
)
def test_what_is_no_record_under_a_key_of_the_sink_is_undone_by_the_command_in_the_message(
    value: bytes, connection: Connection, sink: DeadSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead sink id: a way out that was never tried."""
    before = read_log(connection, sink.sink_id)
    forge(connection, sink.sink_id, ("tally", value))
    with pytest.raises(CommitLogDamaged) as e:
        read_log(connection, sink.sink_id)
    if "--undo" in e.value.way_out:
        do_what_it_says(e.value, connection, monkeypatch)
    else:  # a newer version is to be upgraded to, unless the record is a stranger's
        assert f"exactly-once log {sink.sink_id} to see" in e.value.way_out
        assert undone_as_shown(connection, sink.sink_id, monkeypatch)
    assert read_log(connection, sink.sink_id, whole=True) == before


def undone_as_shown(connection: Connection, sink_id: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Undo the one foreign record that ``exactly-once log`` shows."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", connection.bootstrap_servers)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert cli.main(["log", sink_id]) == 1
    [command] = re.findall(r"exactly-once (log \S+ --undo \d+)", shown.getvalue())
    return cli.main(command.split()) == 0


def test_a_forged_claim_is_named_by_the_command_in_the_refusal_and_undone(
    connection: Connection, sink: DeadSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost sink: the owner that EO-SINK-OWNED and EO-FENCED name exists nowhere, and "another sink.id" is the only
    way that they know.
    """
    mine = read_log(connection, sink.sink_id).owner
    assert mine is not None
    forged = Claim(mine.token + 1, "nobody", 1, "stream", "nowhere", 1, "/c")
    forge(connection, sink.sink_id, (key_of(forged), encode(forged)))
    with pytest.raises(SinkOwned, match=f"exactly-once log {sink.sink_id} to see"):
        check_binding(sink.sink_id, read_log(connection, sink.sink_id).owner, "q", "/c", None)
    with pytest.raises(Fenced, match=f"exactly-once log {sink.sink_id} to see"):
        CommitLog(connection, sink.sink_id).own(mine.token, Deadline(20))
    assert undone_as_shown(connection, sink.sink_id, monkeypatch)
    assert read_log(connection, sink.sink_id, whole=True).owner == mine  # its end marker may come behind the answer


def test_a_forged_decision_is_named_with_its_writer_and_undone_and_the_sink_goes_on(
    connection: Connection, sink: DeadSink, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dead sink id: one record of a far batch refuses every start, and no message leads back. The decision whose key
    the forged one took is in force again: without it its batch would be written twice.
    """
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", connection.bootstrap_servers)
    real = Decision("q", 7, 1, (), "digest of 7", 5, 0)
    sink.log.append(real, Deadline(20))
    far = Decision("q", 7 + 64 * 10**6, 1, (), "x", 5, 0)
    forge(connection, sink.sink_id, (key_of(far), encode(far)))
    with pytest.raises(CheckpointRewound, match=f"run exactly-once log {sink.sink_id}"):
        plan_batch(sink.sink_id, Batch("q", 8, "digest of 8"), sink.read().last_decision("q"), False)

    assert cli.main(["log", sink.sink_id]) == 1
    shown = capsys.readouterr().out
    way_out = re.search(r"exactly-once (log \S+ --undo \d+)", shown)
    assert way_out is not None and f"batch {far.batch_id}" in shown and "not written by" in shown, shown
    assert cli.main(way_out[1].split()) == 0
    assert "decision of batch 7 of q" in capsys.readouterr().out

    last = sink.read().last_decision("q")
    assert last == real
    assert plan_batch(sink.sink_id, Batch("q", 8, "digest of 8"), last, False) is Plan.WRITE
    assert cli.main(["log", sink.sink_id]) == 0


def test_a_record_of_the_sink_s_own_is_undone_only_by_its_consequence(connection: Connection, sink: DeadSink) -> None:
    """Duplicate: a decision that is forgotten by a mistyped offset, so that its batch is written again."""
    sink.log.append(Decision("q", 0, 1, (), "digest", 5, 0), Deadline(20))
    last, context = log_records(connection, sink.sink_id)[-1], OperationContext(connection)
    with pytest.raises(Refused, match="the sink's own producer") as refused:
        UNDO.apply(context, UndoParameters(sink_id=sink.sink_id, offset=last.offset))
    assert sink.read().last_decision("q") is not None
    assert refused.value.phrase == f"forget decision of batch 0 of q at offset {last.offset}"
    wanted = UndoParameters(sink_id=sink.sink_id, offset=last.offset, force=refused.value.phrase or "")
    assert UNDO.apply(context, wanted).document["restored"] is None
    assert sink.read().last_decision("q") is None
