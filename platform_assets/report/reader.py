"""An independent reader: kafka-python's consumer, which the data path of neither Spark nor the sink uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from dagster_exactly_once import Record
from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.connection import Connection


def read_committed(
    connection: Connection, topic: str, on_read: Callable[[int], None] = lambda n: None
) -> Iterator[Record]:
    """Yield every record of ``topic`` that a read_committed reader sees now, each partition in offset order.

    Parameters
    ----------
    on_read : callable
        Called now and then with the number of records read so far.

    Raises
    ------
    BrokerUnreachable
    """
    try:
        yield from _records(connection, topic, on_read)
    except KafkaError as e:
        raise BrokerUnreachable(
            f"topic {topic} could not be read ({e})",
            "Run exactly-once doctor to see which broker does not answer, and why; then start again",
        ) from e


def _records(connection: Connection, topic: str, on_read: Callable[[int], None]) -> Iterator[Record]:
    consumer = KafkaConsumer(
        group_id=None,
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="none",
        allow_auto_create_topics=False,
        check_crcs=False,  # in pure Python it takes six times as long as all the rest; the contents are compared anyway
        max_poll_records=20_000,
        max_partition_fetch_bytes=8 * 1024 * 1024,
        fetch_max_bytes=64 * 1024 * 1024,
        **connection.kafka_python(),
    )
    try:
        partitions = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        consumer.seek_to_beginning(*partitions)
        count = 0
        while any(consumer.position(p) < ends[p] for p in partitions):
            for some in consumer.poll(500).values():
                for r in some:
                    if r.offset < ends[TopicPartition(topic, r.partition)]:
                        yield Record(r.partition, r.offset, r.key, r.value, tuple(r.headers or ()))
                count += len(some)
            on_read(count)
    finally:
        consumer.close(autocommit=False)
