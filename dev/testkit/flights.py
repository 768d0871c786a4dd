"""A part of the real input, fed as a test likes it, and the judge of what came out for it."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Self

from dagster_exactly_once.declare.stream import Record
from dagster_exactly_once.resources.checkpoints import CheckpointReader, lag
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.deadline import Deadline
from exactly_once.errors import PrepareFailed
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once_local.duel.departures import departures, events
from platform_assets.constants import EVENT_TIME_TOPIC, FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS, PARTITIONS
from platform_assets.flights.expected import expected_delays
from platform_assets.flights.names import SINK_ID
from platform_assets.flights.origin import origin
from platform_assets.report.contents import Contents, Findings
from platform_assets.report.reader import read_committed
from testkit import oracle
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


def findings(connection: Connection, sent: int) -> tuple[Findings, dict[str, int], list[str]]:
    """Input and outputs as a reader sees them now, by content and by place: the contents, all faults by kind, and
    examples of them.
    """
    contents = Contents((e.value for e in islice(events(), sent)), islice(expected_delays(), sent))
    places = Places()
    for record in read_committed(connection, FLIGHTS):
        contents.add_input(record)
        places.inputs.add((record.partition, record.offset))
    for topic, add in zip(OUTPUTS, (contents.add_output, contents.add_rejected), strict=True):
        for record in read_committed(connection, topic):
            add(record)
            places.add(topic, record)
    found = contents.findings()
    return found, {**found.faults, **places.faults()}, found.examples + places.examples


class Places:
    """The input records that have an output, counted without the product's own verification."""

    def __init__(self) -> None:
        self.inputs: set[tuple[int, int]] = set()
        self.examples: list[str] = []
        self._seen: Counter[tuple[int, int]] = Counter()
        self._last: dict[tuple[str, bytes], tuple[int, int, int]] = {}  # order holds within a topic
        self._swapped = 0

    def add(self, topic: str, record: Record) -> None:
        """Add an output record; those of a partition in order of offset."""
        place = origin(topic, record)
        if place is None:
            return
        self._seen[place] += 1
        if record.key is not None and self._seen[place] == 1:
            last = self._last.get((topic, record.key))
            if last is not None and (last[0] != record.partition or last[1:] > place):
                self._swapped += 1
                self.examples.append(f"out of order: input {place} after {last[1:]} in {topic}")
            if last is None or last[1:] < place:
                self._last[topic, record.key] = (record.partition, *place)

    def faults(self) -> dict[str, int]:
        """Return the kinds of faults with their counts, those that are there."""
        lost = sorted(self.inputs - self._seen.keys())
        twice = sorted(place for place, count in self._seen.items() if count > 1 and place in self.inputs)
        invented = sorted(self._seen.keys() - self.inputs)
        kinds = {"lost": lost, "duplicated": twice, "invented": invented}
        self.examples += [f"{kind}: {place}" for kind, places in kinds.items() for place in places[:3]]
        counts = {kind: len(places) for kind, places in kinds.items()} | {"out of order": self._swapped}
        return {kind: count for kind, count in counts.items() if count}


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
    found, faults, examples = findings(connection, sent)
    assert faults.pop("lost", 0) == missing, examples
    if backfilled:
        faults.pop("out of order", None)
    assert faults == {}, examples
    assert found.records_in == sent


def expected_hours(count: int, watermark_delay_h: float | None = None) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the records of ``delay_by_hour`` after the first ``count`` departures, by window start and airport.

    Parameters
    ----------
    watermark_delay_h : float, optional
        Only the hours that a watermark so far behind the newest departure has closed; by default all.
    """
    table = departures().iloc[:count]
    delays: dict[tuple[str, str], list[int | None]] = {}
    newest = datetime.min
    columns = ("time_hour", "minute", "origin", "dep_time", "dep_delay")
    for hour, minute, airport, dep_time, dep_delay in zip(*(table[c].tolist() for c in columns), strict=True):
        # time_hour is the full hour of the scheduled departure: the window's start
        delays.setdefault((hour, airport), []).append(None if dep_time is None else dep_delay)
        newest = max(newest, _time(hour) + timedelta(minutes=minute))
    hours = {}
    for (hour, airport), found in sorted(delays.items()):
        end = _time(hour) + timedelta(hours=1)
        if watermark_delay_h is not None and end > newest - timedelta(hours=watermark_delay_h):
            continue
        left = [delay for delay in found if delay is not None]
        hours[hour, airport] = {
            "origin": airport,
            "window_start": hour,
            "window_end": end.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "departures": len(found),
            "cancelled": len(found) - len(left),
            "average_departure_delay_min": sum(left) / len(left) if left else None,
        }
    return hours


def _time(hour: str) -> datetime:
    return datetime.strptime(hour, "%Y-%m-%dT%H:%M:%SZ")
