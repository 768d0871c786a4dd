"""An independent reader: kafka-python's consumer, which the data path of neither Spark nor the sink uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, UnsupportedCodecError

from dagster_exactly_once.declare.origin import Record
from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.connection import Connection

#: By partition, the first offset and the one after the last.
Slice = Mapping[int, tuple[int, int]]


def read_committed(
    connection: Connection, topic: str, on_read: Callable[[int], None] = lambda n: None, only: Slice | None = None
) -> Iterator[Record]:
    """Yield every record of ``topic`` that a read_committed reader sees now, each partition in offset order.

    Parameters
    ----------
    on_read : callable
        Called now and then with the number of records read so far.
    only : mapping, optional
        Read these partitions, and of each only these offsets (up to the last stable one).

    Raises
    ------
    BrokerUnreachable
    """
    try:
        yield from _records(connection, topic, on_read, only)
    except UnsupportedCodecError as e:
        raise BrokerUnreachable(
            f"topic {topic} is compressed with a codec that kafka-python cannot read here ({e})",
            "Install the package of the codec (lz4, zstandard or python-snappy)",
        ) from e
    except KafkaError as e:
        raise BrokerUnreachable(f"topic {topic} could not be read ({e})", "Check the brokers, then try again") from e


def _records(
    connection: Connection, topic: str, on_read: Callable[[int], None], only: Slice | None
) -> Iterator[Record]:
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
        wanted = (consumer.partitions_for_topic(topic) or ()) if only is None else only
        partitions = [TopicPartition(topic, p) for p in sorted(wanted)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        if only is None:
            consumer.seek_to_beginning(*partitions)
        else:
            ends = {tp: min(end, only[tp.partition][1]) for tp, end in ends.items()}
            for tp in partitions:
                consumer.seek(tp, only[tp.partition][0])
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
