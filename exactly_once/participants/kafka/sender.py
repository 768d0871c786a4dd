"""Records on their way to the brokers, by librdkafka's producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from exactly_once.deadline import Deadline
from exactly_once.errors import InvalidOption, PrepareFailed
from exactly_once.kafka.connection import FAST_CONNECT, Connection, librdkafka_log
from exactly_once.kafka.errors import of_delivery, of_sender
from exactly_once.participants.kafka.digest_scope import CHOOSE, NOW, Headers
from exactly_once.protocol.batch_headers import Header

#: How long a full send queue may stand still before the task gives up: longer than any leader election.
STALLED_S = 60.0


class _Failed(NamedTuple):
    """A record that was not delivered; ``size`` is its value's."""

    error: KafkaError
    where: str
    key: object
    size: int


def check_settings(connection: Connection, producer_config: Mapping[str, str], fixed: Mapping[str, Any]) -> None:
    """Raise InvalidOption if librdkafka refuses what :class:`Sender` would give it, before a task finds out."""
    try:
        Producer({**producer_config, **connection.librdkafka(), **fixed, "logger": librdkafka_log})
    except KafkaException as e:
        raise InvalidOption(
            f"the Kafka client refuses a setting: {e.args[0].str()}",
            "Correct the kafka.* option that the Kafka client refuses",
        ) from e


class Sender:
    """Sends records and keeps count of them.

    Parameters
    ----------
    producer_config : mapping
        librdkafka settings of the user, without the connection and without what exactly-once fixes.
    fixed : mapping
        What exactly-once fixes.
    name : str
        For errors.
    behind : sequence
        Headers that each record gets, behind its own.
    """

    def __init__(
        self,
        connection: Connection,
        producer_config: Mapping[str, str],
        fixed: Mapping[str, Any],
        name: str,
        behind: Sequence[Header] = (),
    ):
        self.name = name
        self._behind = tuple(behind)
        self.records = 0
        self.bytes = 0
        self._failed: list[_Failed] = []
        self._producer: Producer | None = Producer(
            {
                **producer_config,
                **connection.librdkafka(),
                **FAST_CONNECT,
                "delivery.report.only.error": True,  # a failed delivery is reported; flush() checks that none is left
                **fixed,
                "partitioner": "murmur2_random",  # the Java client's: the same key goes where Spark's sink puts it
                "on_delivery": self._on_delivery,
                "logger": librdkafka_log,
            }
        )

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int = CHOOSE,
        headers: Headers = None,
        timestamp_ms: int | None = NOW,
    ) -> None:
        """Queue one record. :data:`CHOOSE` leaves the partition to the partitioner, :data:`NOW` is the time of sending,
        for which librdkafka takes 0.

        Raises
        ------
        InvalidRecord
            When it is too large, or the topic or partition does not exist.
        PrepareFailed
            When the brokers take nothing any more.
        """
        self._send_slowly(topic, key, value, partition, headers, timestamp_ms)
        self.records += 1
        self.bytes += len(key or b"") + len(value or b"")

    def _send_slowly(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int = CHOOSE,
        headers: Headers = None,
        timestamp_ms: int | None = NOW,
    ) -> None:
        producer = self._producer
        assert producer is not None
        deadline: Deadline | None = None
        all_headers = [*(headers or ()), *self._behind] or None
        while True:
            try:
                producer.produce(topic, value, key, partition, timestamp=timestamp_ms or 0, headers=all_headers)  # type: ignore[arg-type]
                return
            except BufferError:
                deadline = deadline or Deadline(STALLED_S)
                producer.poll(0.05)
                self._raise_failure()
                if deadline.over:
                    raise PrepareFailed(
                        f"{self.name}: the brokers accepted no records for {STALLED_S:g} s",
                        "Check the brokers' health; it is safe to start the stream again at any time",
                    ) from None
            except KafkaException as e:
                raise of_sender(e, self.name, topic, key, value) from e

    def send_many(self, topic: str, keys: Sequence[bytes | None], values: Sequence[bytes | None], size: int) -> None:
        """Queue many records for one topic; ``size`` is the bytes of all keys and values. The plain case, kept free of
        any work for each record beyond librdkafka's own call.
        """
        assert self._producer is not None
        produce = self._producer.produce
        if self._behind:
            produce = partial(produce, headers=[*self._behind])
        for value, key in zip(values, keys, strict=True):
            try:
                produce(topic, value, key)
            except (BufferError, KafkaException):
                self._send_slowly(topic, key, value)  # waits for room, or names the error
        self.records += len(values)
        self.bytes += size

    def flush(self, timeout_s: float) -> None:
        """Wait until every record is acknowledged; raise PrepareFailed, InvalidRecord or NotAuthorized when one was
        not.
        """
        assert self._producer is not None
        left = self._producer.flush(timeout_s)
        self._raise_failure()
        if left:
            raise PrepareFailed(
                f"{self.name}: {left} of {self.records} records were not acknowledged within {timeout_s:g} s",
                "Check the brokers' health, or raise kafka.delivery.timeout.ms",
            )

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            return
        failed = _Failed(error, f"{message.topic()}-{message.partition()}", message.key(), len(message))
        if not self._failed:
            self._failed.append(failed)
        elif error.code() == KafkaError.MSG_SIZE_TOO_LARGE and failed.size > self._failed[0].size:
            self._failed[0] = failed  # a whole request is refused for the largest record in it

    def _raise_failure(self) -> None:
        if self._failed:
            raise of_delivery(self._failed[0].error, self.name, *self._failed[0][1:])
