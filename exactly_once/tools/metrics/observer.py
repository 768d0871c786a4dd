"""The observer: looks at the sinks in rounds, and keeps its figures for the exporters."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.sink import inspect_sink, sinks
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.groups import partition_ends, published_offsets
from exactly_once.protocol.names import offsets_group
from exactly_once.tools.metrics import instruments as i
from exactly_once.tools.metrics.figures import History, Lag, gauges, output_topics
from exactly_once.tools.metrics.instruments import Instrument, Point

log = logging.getLogger(__name__)

#: Budget for one sink, whose reading takes some 50 ms. A restarting broker may answer late, but the next sink waits.
READ_BUDGET_S = 10.0

#: Budget for a sink's lags: a topic without a leader must not use up the budget of the reading.
LAG_BUDGET_S = 3.0

#: Intervals (or rounds, if these take longer) after which figures are no longer shown.
_STALE_AFTER = 4


@dataclass
class _Sink:
    """The observer's knowledge of one sink; ``gauges`` is empty when the last observation failed."""

    history: History
    up: bool = False
    duration_s: float = 0.0
    seen_at: float = 0.0
    gauges: list[Point] = field(default_factory=list)


class Observer:
    """Looks at ``sink_ids`` (empty: all sinks of the cluster) every ``interval_s`` seconds.

    It never raises because of a cluster's answer or silence: :data:`~instruments.UP` and
    :data:`~instruments.CLUSTER_UP` show these, and the log has one line for each change.
    """

    def __init__(self, connection: Connection, sink_ids: Sequence[str], interval_s: float):
        self._connection, self._wanted, self._interval_s = connection, tuple(sink_ids), interval_s
        self._lock = threading.Lock()
        self._cluster_up: bool | None = None
        self._sinks: dict[str, _Sink] = {s: _Sink(History(from_the_beginning=False)) for s in self._wanted}
        self._round_s = 0.0
        self._rounds = 0
        self._troubles: dict[str, str] = {}

    def run(self, record: Callable[[Point], None], stop: threading.Event) -> None:
        """Observe until ``stop`` is set; pass each new point to ``record``."""
        while not stop.is_set():
            began = time.monotonic()
            for point in self.observe(stop):
                record(point)
            stop.wait(max(0.0, self._interval_s - (time.monotonic() - began)))

    def observe(self, stop: threading.Event | None = None) -> list[Point]:
        """Run one round. Returns what to add to counters and histograms; :meth:`points` has the rest."""
        began = time.monotonic()
        news: list[Point] = []
        try:
            with Admin(self._connection, READ_BUDGET_S) as admin:
                names = list(self._wanted) or sinks(self._connection, READ_BUDGET_S)
                self._meet(names)
                self._say("", None)
                for name in names:
                    if stop is not None and stop.is_set():
                        break
                    news += self._observe(name, admin)
                    if not self._sinks[name].up:  # raises when the whole cluster is away: do not wait for each sink
                        admin.renew(LAG_BUDGET_S).broker_count()
        except Exception as e:
            self._lose(e, time.monotonic() - began)
        with self._lock:
            self._round_s = time.monotonic() - began
        return news

    def points(self, instrument: Instrument) -> list[Point]:
        """Return the current values of a gauge or total, by sink, without unknown and outdated ones."""
        with self._lock:
            if instrument is i.CLUSTER_UP:
                return [] if self._cluster_up is None else [Point(instrument, int(self._cluster_up), {})]
            return [p for name, sink in self._sinks.items() for p in self._points_of(name, sink, instrument)]

    def _points_of(self, name: str, sink: _Sink, instrument: Instrument) -> list[Point]:
        if not sink.seen_at:
            return []
        fresh = time.monotonic() - sink.seen_at < _STALE_AFTER * max(self._interval_s, self._round_s, READ_BUDGET_S)
        if instrument is i.UP:
            return [Point(instrument, int(sink.up and fresh), {"sink": name})]
        if not fresh:
            return []
        if instrument is i.OBSERVATION_DURATION:
            return [Point(instrument, sink.duration_s, {"sink": name})]
        return [p for p in sink.gauges if p.instrument is instrument]

    # -- reading --------------------------------------------------------------------------------------------------

    def _observe(self, name: str, admin: Admin) -> list[Point]:
        sink, began = self._sinks[name], time.monotonic()
        news: list[Point] = []
        points: list[Point] = []
        try:
            found = inspect_sink(self._connection, name, READ_BUDGET_S)
            lag_deadline = Deadline(LAG_BUDGET_S)
            readers = self._ask(f"{name}: reader lag", lambda: _reader_lag(admin, name, lag_deadline))
            stable = self._ask(
                f"{name}: last stable offset lag", lambda: _stable_lag(admin, output_topics(found), lag_deadline)
            )
            points = gauges(found, readers, stable)
            news = sink.history.news(name, found.log)
            self._say(name, None)
        except Exception as e:
            self._say(name, e)
        now = time.monotonic()
        with self._lock:
            sink.up, sink.gauges = bool(points), points
            sink.duration_s, sink.seen_at = now - began, now
        return news

    def _ask(self, subject: str, ask: Callable[[], Lag]) -> Lag | None:
        """Return the answer, or None without one, such as without the right to see a consumer group."""
        try:
            answer = ask()
        except ExactlyOnceError as e:
            self._say(subject, e)
            return None
        self._say(subject, None)
        return answer

    def _meet(self, names: list[str]) -> None:
        """Add new sinks, and drop those that are gone."""
        with self._lock:
            self._cluster_up = True
            known, came_later = self._sinks, self._rounds > 0
            self._sinks = {n: known.get(n) or _Sink(History(from_the_beginning=came_later)) for n in names}
            self._rounds += 1

    def _lose(self, e: Exception, after_s: float) -> None:
        """Drop the figures of every sink: the cluster does not answer."""
        self._say("", e)
        with self._lock:
            self._cluster_up = False
            for sink in self._sinks.values():
                sink.up, sink.gauges = False, []
                sink.duration_s, sink.seen_at = after_s, time.monotonic()

    def _say(self, subject: str, e: Exception | None) -> None:
        """Log that ``subject`` ("" is the cluster) failed or answers again, once for each change."""
        kind = "" if e is None else e.code if isinstance(e, ExactlyOnceError) else type(e).__name__
        if self._troubles.get(subject, "") == kind:
            return
        name = f"sink {subject}" if subject else self._connection.bootstrap_servers
        if e is None:
            log.warning("%s: observation works again", name)
            self._troubles.pop(subject)
            return
        self._troubles[subject] = kind
        expected = isinstance(e, ExactlyOnceError)
        log.warning("%s: observation failed: %s", name, e, exc_info=None if expected else e)


def _reader_lag(admin: Admin, sink_id: str, deadline: Deadline) -> Lag:
    """Return, by topic of the sink's consumer group, the offsets that it could read and has not committed."""
    committed = published_offsets(admin.renew(max(0.1, deadline.left)), offsets_group(sink_id)).offsets
    ends = partition_ends(admin, committed)
    return {
        topic: sum(max(0, ends[topic][p].last_stable - o) for p, o in offsets.items() if p in ends[topic])
        for topic, offsets in committed.items()
        if topic in ends
    }


def _stable_lag(admin: Admin, topics: set[str], deadline: Deadline) -> Lag:
    """Return, by topic, the offsets that a read_committed reader waits for."""
    ends = partition_ends(admin.renew(max(0.1, deadline.left)), topics)
    return {topic: sum(e.high - e.last_stable for e in partitions.values()) for topic, partitions in ends.items()}
