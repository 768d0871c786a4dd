"""The input: real departures, each once, in one topic, at a given rate."""

from __future__ import annotations

import threading
import time
from itertools import islice

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from exactly_once_local.duel.departures import FlightEvent, events
from exactly_once_local.duel.sinks import INPUT, PARTITIONS, SINKS, DuelFailed

#: Time for each answer of the brokers; an embedded one takes milliseconds.
PATIENCE_S = 30.0

#: Interval at which flights are sent, as many at once as the rate asks for.
EVERY_S = 0.05


def make_topics(bootstrap_servers: str) -> None:
    """Make the input topic and one output topic for each sink."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})  # it logs to the terminal
    topics = [NewTopic(name, PARTITIONS, 1) for name in (INPUT, *(sink.topic for sink in SINKS))]
    for made in admin.create_topics(topics, operation_timeout=PATIENCE_S).values():
        made.result(PATIENCE_S)


class DuelFeed:
    """Sends the departures in time order, keyed by tail number, in a thread of its own.

    Parameters
    ----------
    limit : int
        Flights after which it waits to be finished.

    Attributes
    ----------
    sent : int
        Flights that were sent so far.
    rate : float
        Flights a second; may be changed at any time.
    """

    def __init__(self, bootstrap_servers: str, rate: float, limit: int):
        self.sent, self.rate = 0, rate
        self._events = islice(events(), limit)
        settings = {"enable.idempotence": True, "linger.ms": 5, "log_level": 0}  # what it retries is no news
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, **settings})
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def start(self) -> None:
        """Begin; the table of all flights is read here, which takes a few seconds."""
        self.send(1)
        self._thread.start()

    def finish(self) -> int:
        """Send no more; returns how many flights are in the topic.

        Raises
        ------
        DuelFailed
            The broker did not take all of them.
        """
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(2 * PATIENCE_S)
        waiting = self._producer.flush(PATIENCE_S)  # before the look at failures: it finds the last ones
        if self._failure or waiting or self._thread.is_alive():
            raise DuelFailed(f"The flights could not be sent: {self._failure or 'the broker does not take them'}")
        return self.sent

    def _guarded(self) -> None:
        due, looked = 0.0, time.monotonic()
        try:
            while not self._stop.wait(EVERY_S):
                due += (time.monotonic() - looked) * self.rate
                looked = time.monotonic()
                self.send(int(due))
                due -= int(due)
        except BaseException as e:  # finish() raises it
            self._failure = e

    def send(self, flights: int) -> None:
        """Send this many now; the broker has them when the feed is finished."""
        for event in islice(self._events, max(0, flights)):
            self._produce(event)
            self.sent += 1
        self._producer.poll(0)

    def _produce(self, event: FlightEvent) -> None:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._producer.produce(
                    INPUT, event.value, event.key, timestamp=event.timestamp_ms, on_delivery=self._delivered
                )
            except BufferError:  # the broker is slower than the rate
                if time.monotonic() > end:
                    raise
                self._producer.poll(EVERY_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error:
            self._failure = KafkaException(error)
