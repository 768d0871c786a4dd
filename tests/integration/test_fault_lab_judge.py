"""The fault lab's judge on a real broker: what no comparison of records shows."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from exactly_once.kafka.connection import Connection
from faultlab import judge
from testkit.broker import fresh_name, open_transaction

SENT = [("a", "in-0-0|w.0"), ("b", "in-0-1|w.1"), ("a", "in-0-2|w.2")]


def write(connection: Connection, topic: str, transactional_id: str, rows: list[tuple[int, str, str]]) -> Producer:
    """Write rows of (partition, key, value) in a transaction, and leave it open."""
    producer = open_transaction(connection, transactional_id)
    for partition, key, value in rows:
        producer.produce(topic, value, key, partition)
    producer.flush(30)
    return producer


def test_an_open_transaction_of_the_sink_is_named_with_what_it_hides(
    connection: Connection, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that leaves readers standing has not come to rest, whatever it has written."""
    monkeypatch.setattr(judge, "SETTLE_S", 1.0)
    sink = fresh_name("lab")
    rows = [(0, key, value) for key, value in SENT]
    write(connection, topic, f"eo:{sink}:1:0:0.0", rows[:2]).commit_transaction(30)
    under_way = write(connection, topic, f"eo:{sink}:1:1:0.0", rows[2:])
    verdict = judge.judge_output(connection, topic, SENT, sink)
    assert verdict.anomalies == {"lost": 1, "stalled": 1, "lingering": 1}
    assert verdict.examples["lingering"] == [f"eo:{sink}:1:1:0.0"]
    under_way.commit_transaction(30)
    assert judge.judge_output(connection, topic, SENT, sink).clean


def test_a_key_that_is_on_two_partitions_is_named(connection: Connection, topic: str) -> None:
    """Each record is there once, and no reader gets the key's records in their order."""
    sink = fresh_name("lab")
    rows = [(n % 2, "a", f"in-0-{n}|w.{n}") for n in range(4)]
    write(connection, topic, f"eo:{sink}:1:0:0.0", rows).commit_transaction(30)
    verdict = judge.judge_output(connection, topic, [(key, value) for _, key, value in rows], sink)
    assert verdict.anomalies["split key"] == 1 and "a on [0, 1]" in str(verdict)


def test_what_was_aborted_is_no_output(connection: Connection, topic: str) -> None:
    """Else each attempt that was given up would count as a duplicate."""
    sink = fresh_name("lab")
    rows = [(0, key, value) for key, value in SENT]
    write(connection, topic, f"eo:{sink}:1:0:0.0", rows).abort_transaction(30)
    write(connection, topic, f"eo:{sink}:1:0:0.0", rows).commit_transaction(30)
    verdict = judge.judge_output(connection, topic, SENT, sink)
    assert verdict.clean and verdict.read == 3
