"""What confluent-kafka and librdkafka do, on which readers lean, and the test kit that writes parts with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.outcomes import Outcome
from exactly_once.txn.coordinators import describe, end_all, end_txn_version
from testkit import oracle
from testkit.broker import create_topic, fresh_name, open_transaction
from testkit.processes import until


@pytest.fixture
def topic(connection: Connection) -> str:
    return create_topic(connection.bootstrap_servers)


def open_producer(connection: Connection, topic: str, *values: str, **settings: Any) -> tuple[str, Producer]:
    name = fresh_name("id")
    producer = open_transaction(connection, name, **settings)
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    return name, producer


def close(producer: Producer) -> None:
    producer.close()


def leave_block(producer: Producer) -> None:
    with producer:
        pass


@pytest.mark.parametrize("end", [close, leave_block])
def test_closing_a_producer_aborts_its_open_transaction(
    end: Callable[[Producer], None], connection: Connection, admin: Admin, topic: str
) -> None:
    """Loss: a task that closed its producer would abort what it has prepared (since 2.16)."""
    name, producer = open_producer(connection, topic, "a")
    end(producer)
    until("its end", lambda: describe(admin, [name])[name].state == "CompleteAbort", 10)
    assert oracle.read(connection, [topic]) == []


def test_dropping_a_producer_leaves_its_transaction_open_and_another_process_can_commit_it(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Loss: a release whose producer aborts when its last reference goes ends what a task has prepared."""
    name, producer = open_producer(connection, topic, "a")
    del producer
    seen = describe(admin, [name])[name]
    assert seen.state == "Ongoing"
    assert end_all(admin, [seen.end], True, end_txn_version(admin)) == {name: Outcome.DONE}
    until("the record", lambda: [m.value for m in oracle.read(connection, [topic])] == ["a"])


def test_a_reader_gets_one_end_of_partition_at_the_last_stable_offset_and_steps_over_markers(
    connection: Connection, topic: str
) -> None:
    """Wedge: a reader that waits for the offset of a marker, or for the high watermark, waits for ever."""
    _, done = open_producer(connection, topic, "a", "b")
    done.commit_transaction(30)
    _, held = open_producer(connection, topic, "c")
    config = {**connection.librdkafka(), "group.id": fresh_name("g"), "isolation.level": "read_committed"}
    reader = Consumer({**config, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
    reader.assign([TopicPartition(topic, 0, 0)])
    try:
        said: list[tuple[str, int | None]] = []

        def look() -> bool:
            message = reader.poll(0.1)
            if message is not None:
                error = message.error()
                assert error is None or error.code() == KafkaError._PARTITION_EOF
                said.append(("end" if error else "record", message.offset()))
            return bool(said) and said[-1][0] == "end"

        until("the end", look)
        assert said == [("record", 0), ("record", 1), ("end", 3)]
        assert reader.position([TopicPartition(topic, 0)])[0].offset == 3
        assert reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 3)  # the high watermark is 4
        held.abort_transaction(30)
        said.clear()
        until("the next end", look)
        assert said == [("end", 5)]
    finally:
        reader.close()


def test_an_admin_lists_the_last_stable_offset_only_when_it_is_asked_for_read_committed(
    connection: Connection, topic: str
) -> None:
    """Mishap: by default the latest offset is the high watermark, behind what readers get."""
    _, held = open_producer(connection, topic, "a", "b")
    admin, place = AdminClient(connection.librdkafka()), TopicPartition(topic, 0)
    levels = {None: 2, IsolationLevel.READ_COMMITTED: 0}
    for level, offset in levels.items():
        how = {} if level is None else {"isolation_level": level}
        found = admin.list_offsets({place: OffsetSpec.latest()}, request_timeout=10, **how)
        assert found[place].result(10).offset == offset
    held.abort_transaction(30)
