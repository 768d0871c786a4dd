"""An independent reader: librdkafka's consumer, where Kafka's Java producer wrote the records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from dagster_exactly_once import Record
from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.connection import Connection
from platform_assets.consumer import committed_reader, is_record

#: Seconds without an answer after which the reader gives up.
PATIENCE_S = 30.0

#: The records of one call: enough that the call does not count.
_TOGETHER = 10_000


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
    except KafkaException as e:
        raise BrokerUnreachable(
            f"topic {topic} could not be read ({e.args[0].str()})",
            "Run exactly-once doctor to see which broker does not answer, and why; then start again",
        ) from e


def _records(connection: Connection, topic: str, on_read: Callable[[int], None]) -> Iterator[Record]:
    consumer = committed_reader(connection.librdkafka(), "report")
    try:
        reading = set(consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in reading])
        count, answered = 0, time.monotonic()
        while reading:
            for message in consumer.consume(_TOGETHER, 0.5):
                answered = time.monotonic()
                if is_record(message, reading):
                    count += 1
                    place, headers = (message.partition() or 0, message.offset() or 0), tuple(message.headers() or ())
                    yield Record(*place, message.key(), message.value(), headers)  # type: ignore[arg-type]
            if time.monotonic() - answered > PATIENCE_S:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            on_read(count)
    finally:
        consumer.close()
