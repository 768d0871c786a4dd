"""The partitions in which open transactions hold the readers of the outputs back, and since when."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from dagster_exactly_once.checks.judgements import Block
from exactly_once.deadline import Deadline
from exactly_once.errors import UnknownTopic
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection

#: For each query of the brokers.
READ_BUDGET_S = 20.0

#: For reading one record.
RECORD_BUDGET_S = 5.0


def held_back(connection: Connection, topics: Sequence[str]) -> tuple[list[Block], int]:
    """Return the partitions that hold readers back now, and the number of all partitions."""
    marks = []
    with Admin(connection, READ_BUDGET_S) as admin:
        for topic in topics:
            with suppress(UnknownTopic):  # the first start makes it
                marks += [(topic, p, w) for p, w in admin.watermarks(topic).items()]
    return [
        Block(topic, p, w.last_stable, w.high, _record_time_ms(connection, topic, p, w.last_stable))
        for topic, p, w in marks
        if w.last_stable < w.high
    ], len(marks)


def _record_time_ms(connection: Connection, topic: str, partition: int, offset: int) -> int | None:
    """Return the time stamp of the first record from ``offset`` on, committed or not; None if it could not be read."""
    consumer = KafkaConsumer(
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
        check_crcs=False,  # in pure Python it takes 0.1 s for a large batch, of which one time stamp is wanted
        **connection.kafka_python(),
    )
    try:
        tp = TopicPartition(topic, partition)
        consumer.assign([tp])
        consumer.seek(tp, offset)
        deadline = Deadline(RECORD_BUDGET_S)
        while not deadline.over:
            for records in consumer.poll(200, max_records=1).values():
                return int(records[0].timestamp)
        return None
    except KafkaError:  # the check takes an unknown age for too old
        return None
    finally:
        consumer.close(autocommit=False)
