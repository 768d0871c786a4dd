"""A commit log that somebody else writes to: nothing foreign is ended, and what is forged is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from exactly_once.coordinator.recover import recover
from exactly_once.errors import CommitLogDamaged
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.commit_log import read_log
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.transactions import describe
from exactly_once.protocol.encoding import encode
from exactly_once.protocol.names import commit_log_topic
from exactly_once.protocol.records import Decision, PreparedPart, PreparedTransaction, Tally, key_of
from tests.support import broker as brokers
from tests.support.dead_sink import DeadSink


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
    producer = Producer({**connection.librdkafka(), "transactional.id": name, "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
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
    with pytest.raises(CommitLogDamaged, match=rf"EO-LOG: .*'{name}' is no part 0 of sink '{sink.sink_id}'"):
        recover(connection, sink.sink_id)
    with Admin(connection) as admin:
        assert describe(admin, [name])[name].state == "Ongoing"
    assert sink.visible() == []


def test_a_forged_decision_cannot_name_another_sinks_part(connection: Connection, sink: DeadSink) -> None:
    """Corruption: files, and the prepared transactions of a database, are ended by their names alone."""
    part = PreparedPart("files", "eo:other:aaaaaaaaaa:1:0:0:0.0:files", 0, 1, "d", {"file": "x"})
    forged = Decision("q", 0, 1, (part,), "digest", 5, 1)
    forge(connection, sink.sink_id, (key_of(forged), encode(forged)))
    with pytest.raises(CommitLogDamaged, match=f"is no part 0 of sink '{sink.sink_id}'"):
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


def test_a_flood_of_one_key_takes_the_memory_of_one_record(connection: Connection, sink: DeadSink) -> None:
    """Outage: a log that is not compacted (a cleaner that died, a loop that writes) fills the driver's memory."""
    flood = replace(Tally(1), completed=7)
    forge(connection, sink.sink_id, *[("tally", encode(replace(flood, drained=n))) for n in range(100_000)])
    assert read_log(connection, sink.sink_id, 30).tally == replace(flood, drained=99_999)


def test_a_flood_of_foreign_keys_is_refused_before_its_end(connection: Connection, sink: DeadSink) -> None:
    """Outage: as above, by a program that mistakes the log for its own topic."""
    forge(connection, sink.sink_id, *[(f"order-{n}", b"{}") for n in range(50_000)])
    with pytest.raises(CommitLogDamaged, match=r"more than 1,000 strange records.*under the key 'order-"):
        read_log(connection, sink.sink_id, 30)
