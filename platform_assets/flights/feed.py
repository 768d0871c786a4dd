"""Feeds the departures to ``flights``, each exactly once, whatever kills the feeder and however often it runs.

The topic itself holds the position: transactions contain events in the order of their sequence numbers, so the position
is the highest committed number. The brokers forget the committed offsets of a consumer group after a week without it,
and the feed would then send everything again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from dagster_exactly_once import TransactionalProducer
from exactly_once.errors import BrokerUnreachable, ExactlyOnceError
from exactly_once_local.duel.departures import FlightEvent
from platform_assets.consumer import committed_reader, is_record

#: Seconds to read the ends of a few partitions in, which takes well under one.
POSITION_BUDGET_S = 30.0

_SEE_WHY = "Run exactly-once doctor to see what the brokers refuse or do not answer; then start again"


class FeedPositionUnknown(ExactlyOnceError):
    """The topic no longer holds the position of the feed."""

    code = "EO-FEED-POSITION"


@dataclass(frozen=True)
class Feed:
    """The result of a feed: it committed the events ``first`` up to, not including, ``end``."""

    first: int
    end: int
    transactions: int
    seconds: float

    @property
    def events(self) -> int:
        """The number of committed events."""
        return self.end - self.first

    @property
    def events_per_second(self) -> float:
        """Committed events per second, 0 without any."""
        return self.events / self.seconds if self.events else 0.0


def feed(
    producer: TransactionalProducer,
    topic: str,
    events: Callable[[int], Iterator[FlightEvent]],
    first: int,
    of: int,
    events_per_transaction: int,
    on_commit: Callable[[Feed], None],
    events_per_second: int = 0,
) -> Feed:
    """Send all of ``events(first)``, in transactions; an exception aborts the open transaction.

    Parameters
    ----------
    first : int
        From :func:`committed_position`, read after ``producer`` was made, which ends all earlier transactions.
    of : int
        The number of all events; with that many in the topic, there is nothing to send.
    on_commit : callable
        Called after each transaction with the result so far.
    events_per_second : int
        An upper limit, kept by pauses between transactions; 0 for none.
    """
    started = time.monotonic()
    done = Feed(first, first, 0, 0.0)
    if first >= of:
        return done
    source = events(first)
    while batch := list(islice(source, events_per_transaction)):
        with producer.transaction():
            for event in batch:
                producer.send(topic, event.value, event.key, timestamp_ms=event.timestamp_ms)
        done = Feed(first, batch[-1].sequence + 1, done.transactions + 1, time.monotonic() - started)
        on_commit(done)
        if events_per_second:
            time.sleep(max(0.0, done.events / events_per_second - (time.monotonic() - started)))
    return done


def committed_position(client: Mapping[str, Any], topic: str) -> int:
    """Return the sequence number after the highest committed one in ``topic``; 0 without a topic or a record.

    Parameters
    ----------
    client : mapping
        How librdkafka connects: ``kafka.connection().librdkafka()``.

    Raises
    ------
    FeedPositionUnknown
        The topic's records were deleted.
    BrokerUnreachable
        The topic could not be read within the budget.
    """
    end = time.monotonic() + POSITION_BUDGET_S
    while True:
        try:
            return _position(client, topic, end)
        except KafkaException as e:
            error = e.args[0]
            refused = "AUTHORIZATION" in error.name() or "AUTHENTICATION" in error.name()
            if refused or time.monotonic() > end:
                raise BrokerUnreachable(f"topic {topic}: {error.str()}", _SEE_WHY) from e
            time.sleep(0.1)  # a topic that was just made has no leader for a moment


def _left(end: float) -> float:
    return max(0.1, end - time.monotonic())


def _position(client: Mapping[str, Any], topic: str, end: float) -> int:
    # the end is asked for, not waited for
    consumer = committed_reader(client, "flights-feed-position", fetch_wait_max_ms=20)
    try:
        partitions = consumer.list_topics(topic, timeout=_left(end)).topics[topic].partitions
        if not partitions:  # the topic does not exist yet
            return 0
        ends = _last_committed(consumer, [TopicPartition(topic, p) for p in partitions], end)
        return max(ends, default=-1) + 1
    finally:
        consumer.close()


def _last_committed(consumer: Consumer, partitions: list[TopicPartition], end: float) -> list[int]:
    """Return the highest committed sequence number of each partition that ever had one.

    The last offsets may be markers, aborted records or foreign records, so it looks back further and further.
    """
    bounds = {p.partition: consumer.get_watermark_offsets(p, timeout=_left(end)) for p in partitions}
    topic = partitions[0].topic
    newest: dict[int, int] = {}
    back = 16
    while missing := [p for p, (low, high) in bounds.items() if p not in newest and high > low]:
        starts = {p: max(bounds[p][0], bounds[p][1] - back) for p in missing}
        newest |= _last_after(consumer, [TopicPartition(topic, p, at) for p, at in starts.items()], end)
        if all(starts[p] == bounds[p][0] for p in missing if p not in newest):
            break
        back *= 16
    deleted = [p for p, (low, _) in bounds.items() if p not in newest and low > 0]
    if deleted:
        raise FeedPositionUnknown(
            f"the records of {topic}, partition {deleted[0]}, were deleted (by retention?)",
            f"Delete topic {topic} to feed it from the beginning, and set retention.ms of the new topic to -1",
        )
    return list(newest.values())


def _last_after(consumer: Consumer, starts: list[TopicPartition], end: float) -> dict[int, int]:
    """Return the highest committed sequence number at or after each start, by partition."""
    consumer.assign(starts)
    last: dict[int, int] = {}
    reading = {p.partition for p in starts}
    while reading:
        if time.monotonic() > end:
            raise BrokerUnreachable(
                f"the end of {starts[0].topic} could not be read within {POSITION_BUDGET_S:g} s",
                _SEE_WHY,
            )
        message = consumer.poll(0.2)
        if message is not None and is_record(message, reading) and (sequence := _sequence(message)) is not None:
            partition = message.partition() or 0
            last[partition] = max(sequence, last.get(partition, -1))
    return last


def _sequence(message: Message) -> int | None:
    """Return the sequence number in a record of this feed; None for a foreign record."""
    try:
        return int(json.loads(message.value() or b"")["sequence"])
    except (ValueError, KeyError, TypeError):
        return None
