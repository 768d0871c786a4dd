"""A part of the real input, fed as a test likes it, and the judge of what came out for it."""

from __future__ import annotations

import threading
from itertools import islice
from typing import Self

from dagster_exactly_once.declare.origin import Record
from dagster_exactly_once.resources.checkpoints import CheckpointReader, lag
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.deadline import Deadline
from exactly_once.errors import PrepareFailed
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once_local.duel.departures import events
from platform_assets.constants import EVENT_TIME_TOPIC, FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS, PARTITIONS
from platform_assets.flights.expected import expected_delays
from platform_assets.flights.names import SINK_ID
from platform_assets.report.reconcile import Findings, Reconciler
from testkit import oracle
from testkit.oracle import Message
from testkit.processes import until

OUTPUTS = (FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED)


class Feed:
    """The departures from the first one on: so many at once, or a trickle that keeps a stream at work.

    Attributes
    ----------
    sent : int
        How many are in the topic.
    """

    def __init__(self, bootstrap_servers: str):
        factory = KafkaTransactionalProducerFactory(bootstrap_servers=bootstrap_servers)
        factory.create_topics({FLIGHTS: PARTITIONS}, EVENT_TIME_TOPIC)
        self.sent = 0
        self._events = events()
        self._opened = factory.producer("test-feed")
        self._producer = self._opened.__enter__()
        self._enough = threading.Event()
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.pause()
        self._opened.__exit__(None, None, None)

    def send(self, count: int) -> None:
        """Send the next ``count`` departures, in one transaction.

        It is repeated when brokers that are away abort it.
        """
        some = list(islice(self._events, count))
        for _ in Deadline(60).tries():
            try:
                with self._producer.transaction():
                    for event in some:
                        self._producer.send(FLIGHTS, event.value, event.key, timestamp_ms=event.timestamp_ms)
            except PrepareFailed as e:
                failure = e
            else:
                self.sent += count
                return
        raise failure

    def trickle(self, count: int = 20, every_s: float = 0.3) -> None:
        """Send ``count`` now and then, until :meth:`pause`. Few, as each has to be read back in the end."""

        def run() -> None:
            try:
                while not self._enough.wait(every_s):
                    self.send(count)
            except Exception as e:  # for the thread of the test: see check()
                self._failure = e

        if self._thread is None:
            self._enough.clear()
            self._thread = threading.Thread(target=run, daemon=True)
            self._thread.start()

    def check(self) -> None:
        """Raise what ended the trickle: a test that waits for what follows from it would wait in vain."""
        if self._failure is not None:
            raise self._failure

    def pause(self) -> None:
        """End the trickle; what it sent is committed when this returns."""
        self.check()
        if self._thread is not None:
            self._enough.set()
            self._thread.join(30)
            self._thread = None


def await_caught_up(connection: Connection, checkpoint: str, timeout_s: float = 60.0) -> None:
    """Wait until the stream has committed all that is in ``flights``."""

    def caught_up() -> bool:
        with Admin(connection) as admin:
            marks = admin.watermarks(FLIGHTS)
        committed = CheckpointReader(root="").committed_offsets(checkpoint)
        return bool(committed) and lag(committed, FLIGHTS, marks) == 0

    until("the stream to catch up", caught_up, timeout_s, every_s=0.3)


def findings(connection: Connection, sent: int) -> Findings:
    """Input and outputs as a reader sees them now, compared by place and by content."""
    r = Reconciler((e.value for e in islice(events(), sent)), islice(expected_delays(), sent))
    for topic, add in zip((FLIGHTS, *OUTPUTS), (r.add_input, r.add_output, r.add_rejected), strict=True):
        for message in oracle.read(connection, [topic]):
            add(_record(message))
    return r.findings()


def assert_exactly_once(connection: Connection, sent: int, missing: int = 0, backfilled: bool = False) -> None:
    """Each of the first ``sent`` departures came out once, as the package says, and nothing is under way.

    Parameters
    ----------
    missing : int
        So many are in the share of a backfill that was not launched.
    backfilled : bool
        Days were filled later: the order of the departures of an aircraft then holds within each part only.
    """
    oracle.assert_settled(connection, SINK_ID, OUTPUTS)
    found = findings(connection, sent)
    faults = found.faults
    assert faults.pop("lost", 0) == missing, found.examples
    if backfilled:
        faults.pop("out_of_order", None)
    assert faults == {}, found.examples
    assert found.records_in == sent


def _record(m: Message) -> Record:
    key, value = (None if t is None else t.encode() for t in (m.key, m.value))
    return Record(m.partition, m.offset, key, value, tuple((k, v or b"") for k, v in m.headers))
