"""A reader of what is committed, by librdkafka's consumer: for the feed's position, and for the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message


def committed_reader(client: Mapping[str, Any], group: str, **more: Any) -> Consumer:
    """Make a consumer that says where each partition ends for a read_committed reader.

    Parameters
    ----------
    client : mapping
        How librdkafka connects.
    group : str
        Its group, which the client wants; nothing joins or commits it.
    more
        Further settings, ``_`` for ``.``.
    """
    return Consumer(
        {
            **client,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 2,
            **{name.replace("_", "."): value for name, value in more.items()},
        }
    )


def is_record(message: Message, reading: set[int]) -> bool:
    """Return whether a message is a record; one that says where its partition ends takes it out of ``reading``.

    Raises KafkaException for an error that will not pass.
    """
    error = message.error()
    if error is None:
        return True
    if error.code() == KafkaError._PARTITION_EOF:
        reading.discard(message.partition() or 0)
    elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
        raise KafkaException(error)
    return False
