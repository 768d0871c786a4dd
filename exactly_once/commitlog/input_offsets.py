"""The input's offsets as a consumer group's, for lag tools: a convenience, which never holds a decision up for long."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.connection import Connection, librdkafka_log
from exactly_once.protocol.names import offsets_group

log = logging.getLogger(__name__)

#: Topic -> partition -> the next offset to read.
Offsets = Mapping[str, Mapping[int, int]]

#: Answers of the brokers that stay as they are: no READ on the group or the topic, or an input on another cluster.
_FOR_EVER = (
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
)

#: Time for which the offsets are left out after any other refusal, so that not every decision waits for them.
_AGAIN_S = 60.0

#: The share of a write's budget that they may take.
_SHARE = 0.2

#: Longest time that they take when the group's coordinator has just answered: two requests, of milliseconds each.
_LONGEST_S = 2.0

#: Age of an answer up to which its coordinator counts as alive: a broker that dies needs longer until its successor has
#: loaded its groups.
_ANSWERS_S = 5.0

#: Time that librdkafka may take beyond its time-out before it counts as one that does not come back.
_LATE_S = 1.0


class OffsetsRefused(Exception):
    """The offsets could not be added to the transaction, so it cannot be committed.

    ``again`` asks for one more try with a new producer, which does not know the coordinator of before.
    """

    def __init__(self, why: str, again: bool = False):
        super().__init__(why)
        self.again = again


class InputOffsets:
    """The sink's progress in its input, committed to the group :func:`~exactly_once.protocol.names.offsets_group`."""

    def __init__(self, connection: Connection, sink_id: str):
        self._connection = connection
        self._sink_id = sink_id
        self._group: Consumer | None = None
        self._not_before = 0.0
        self._answered = float("-inf")
        self._late = False
        self._asking = threading.Lock()

    def may_be_sent(self, offsets: Offsets, deadline: Deadline) -> bool:
        """Return whether the group's coordinator answers, or has just answered.

        A transaction with a coordinator that is away could not even be aborted, and would hold the log for as long.
        """
        with self._asking:
            if time.monotonic() < self._not_before:
                return False
            if time.monotonic() - self._answered < _ANSWERS_S:
                return True
            if self._answers(offsets, deadline):
                self._answered = time.monotonic()
                return True
            return False

    def _answers(self, offsets: Offsets, deadline: Deadline) -> bool:
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

    def send(self, producer: Producer, offsets: Offsets, word: str, deadline: Deadline) -> None:
        """Add ``offsets`` to the producer's transaction, each with ``word``, which names the batch: by it, a start
        recognises a log that has lost the decision. After OffsetsRefused nobody may use the producer any more: its
        request may still be under way.
        """
        assert self._group is not None, "send() comes after may_be_sent()"
        positions = [TopicPartition(t, p, o, word) for t, ends in offsets.items() for p, o in ends.items()]
        timeout_s = min(deadline.left, deadline.seconds * _SHARE, _LONGEST_S)
        group = self._group.consumer_group_metadata()
        try:
            _bounded(lambda: producer.send_offsets_to_transaction(positions, group, timeout_s), timeout_s)
        except KafkaException as e:
            self._answered = float("-inf")
            if not self._late and e.args[0].code() == KafkaError._TIMED_OUT:
                self._late = True
                raise OffsetsRefused(str(e), again=True) from e
            self._late = False
            self._refused(e.args[0])
            raise OffsetsRefused(str(e)) from e
        self._late = False

    def close(self) -> None:
        """Close the connection."""
        with self._asking:
            if self._group is not None:
                self._group.close()
                self._group = None

    def _refused(self, why: KafkaError) -> None:
        again = why.code() not in _FOR_EVER
        self._not_before = time.monotonic() + _AGAIN_S if again else float("inf")
        log.warning(
            "sink %s: EO-WARN-GROUP the input's offsets cannot be committed to the consumer group %s (%s), so lag "
            "tools %s. Records are not affected, but a start cannot notice if the commit log loses a decision",
            self._sink_id,
            offsets_group(self._sink_id),
            why.str(),
            f"see an old position for the next {_AGAIN_S:g} s at least" if again else "will not see the stream",
        )


def _bounded(act: Callable[[], None], timeout_s: float) -> None:
    """Do ``act`` in a thread of its own, and leave it there when it does not come back: then raise its time-out.

    librdkafka never looks at the time-out of this call: with a coordinator in its cache whose broker went away, it
    waits until some broker changes its state (confluentinc/librdkafka#5456, #5511).
    """
    ended: SimpleQueue[BaseException | None] = SimpleQueue()

    def run() -> None:
        try:
            act()
            ended.put(None)
        except BaseException as e:  # the caller's thread raises it
            ended.put(e)

    threading.Thread(target=run, name="input-offsets", daemon=True).start()
    try:
        failure = ended.get(timeout=timeout_s + _LATE_S)
    except Empty:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the client did not come back")) from None
    if failure is not None:
        raise failure
