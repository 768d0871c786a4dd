"""The input's offsets as a consumer group's, for lag tools: a convenience, which never holds a decision up for long."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.connection import Connection, librdkafka_log
from exactly_once.protocol.names import offsets_group

log = logging.getLogger(__name__)

#: Topic -> partition -> the next offset to read.
Offsets = Mapping[str, Mapping[int, int]]

#: What the brokers answer when it stays so: no READ on the group or the topic, or an input that is on another cluster.
_FOR_EVER = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)

#: After any other refusal the offsets are left out for a while, so that not every decision waits for them.
_AGAIN_S = 60.0

#: The share of a write's budget that they may take.
_SHARE = 0.2


class OffsetsRefused(Exception):
    """The offsets could not be added to the transaction, so it cannot be committed."""


class InputOffsets:
    """How far a sink's input is read, told to the consumer group :func:`~exactly_once.protocol.names.offsets_group`."""

    def __init__(self, connection: Connection, sink_id: str):
        self._connection = connection
        self._sink_id = sink_id
        self._group: Consumer | None = None
        self._not_before = 0.0

    def may_be_sent(self, offsets: Offsets, deadline: Deadline) -> bool:
        """Whether the group's coordinator answers.

        A transaction with a coordinator that is away could not even be aborted, and would hold the log for as long.
        """
        if time.monotonic() < self._not_before:
            return False
        topic, ends = next(iter(offsets.items()))
        try:
            if self._group is None:
                config = {"group.id": offsets_group(self._sink_id), "isolation.level": "read_uncommitted"}
                self._group = Consumer({**self._connection.librdkafka(), **config, "logger": librdkafka_log})
            asked = [TopicPartition(topic, next(iter(ends)))]
            [found] = self._group.committed(asked, timeout=deadline.seconds * _SHARE)
            if found.error is not None:
                raise KafkaException(found.error)
        except KafkaException as e:
            self._refused(e.args[0])
            return False
        except ExactlyOnceError as e:  # no token to log in with
            self._refused(KafkaError(KafkaError._AUTHENTICATION, e.what))
            return False
        return True

    def send(self, producer: Producer, offsets: Offsets, deadline: Deadline) -> None:
        """Add them to the producer's transaction.

        Raises
        ------
        OffsetsRefused
        """
        assert self._group is not None, "send() comes after may_be_sent()"
        positions = [TopicPartition(t, p, o) for t, ends in offsets.items() for p, o in ends.items()]
        timeout_s = min(deadline.left, deadline.seconds * _SHARE)
        try:
            producer.send_offsets_to_transaction(positions, self._group.consumer_group_metadata(), timeout_s)
        except KafkaException as e:
            self._refused(e.args[0])
            raise OffsetsRefused(str(e)) from e

    def close(self) -> None:
        """Close the connection."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _refused(self, why: KafkaError) -> None:
        again = why.code() not in _FOR_EVER
        self._not_before = time.monotonic() + _AGAIN_S if again else float("inf")
        log.warning(
            "sink %s: EO-WARN-GROUP the input's offsets cannot be committed to the consumer group %s (%s), so lag "
            "tools %s; nothing else is affected",
            self._sink_id,
            offsets_group(self._sink_id),
            why.str(),
            f"see an old position for the next {_AGAIN_S:g} s at least" if again else "will not see the stream",
        )
