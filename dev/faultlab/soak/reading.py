"""Reading hundreds of thousands of records as a read_committed reader does, on librdkafka: the sink's rows do not go
through it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from exactly_once.kafka.connection import Connection
from faultlab.soak.results import Offsets

#: Of one call; more are not faster.
_AT_ONCE = 10_000

#: For everything.
READ_S = 120.0


class SoakRecord(NamedTuple):
    """The place of a record, and its content."""

    partition: int
    offset: int
    key: str
    value: str


def read_from(connection: Connection, topic: str, partitions: int, begin: Offsets) -> tuple[list[SoakRecord], Offsets]:
    """Read every partition from ``begin`` (or its first record) to its last stable offset.

    Returns
    -------
    tuple
        The records, partition by partition in order of offset; and where each partition ended.

    Raises
    ------
    TimeoutError
        The end was not reached in two minutes.
    """
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False}
    reset = {"group.id": f"judge-{topic}", "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({**connection.librdkafka(), **settings, **reset})
    consumer.assign([TopicPartition(topic, p, begin.get(p, 0)) for p in range(partitions)])
    found: list[list[SoakRecord]] = [[] for _ in range(partitions)]
    ends: Offsets = {}
    limit = time.monotonic() + READ_S
    try:
        while len(ends) < partitions:
            if time.monotonic() > limit:
                raise TimeoutError(f"the end of {topic} was not reached in {READ_S:.0f} s")
            for message in consumer.consume(_AT_ONCE, 1.0):
                _take(message, found, ends)
    finally:
        consumer.close()
    return [place for some in found for place in some], ends


def _take(message, found: list[list[SoakRecord]], ends: Offsets) -> None:  # type: ignore[no-untyped-def]
    error = message.error()
    if error is None:
        key, value = message.key() or b"", message.value() or b""
        found[message.partition()].append(
            SoakRecord(message.partition(), message.offset(), key.decode(), value.decode())
        )
    elif error.code() == KafkaError._PARTITION_EOF:
        ends[message.partition()] = message.offset()
    elif not error.retriable():
        raise KafkaException(error)


def rows(places: list[SoakRecord], value: Callable[[SoakRecord], str]) -> list[tuple[str | None, str | None]]:
    """Keys and values, in the order of ``places``."""
    return [(p.key, value(p)) for p in places]
