"""Converts observations of a sink to points. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from exactly_once.inspection.findings import Inspection
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import Completed, Decision
from exactly_once.tools.diagnosis import SinkFacts, diagnose
from exactly_once.tools.metrics import instruments as i
from exactly_once.tools.metrics.instruments import Instrument, Point

VERDICTS = ("decided", "undecided", "log")
KINDS = ("stream", "write")

#: Offsets by topic.
Lag = Mapping[str, int]


def gauges(inspection: Inspection, readers: Lag | None = None, stable: Lag | None = None) -> list[Point]:
    """Return the sink's gauges and totals; ``readers`` and ``stable`` are None if the brokers refused them."""
    sink, log = inspection.sink_id, inspection.log
    points = [
        Point(i.OPEN, sum(t.verdict == verdict for t in inspection.open), {"sink": sink, "verdict": verdict})
        for verdict in VERDICTS
    ]

    def add(instrument: Instrument, value: float, **attributes: str) -> None:
        points.append(Point(instrument, value, {"sink": sink, **attributes}))

    add(i.OLDEST, inspection.oldest_s)
    # without the commit log's transaction: it blocks no reader of the output, and its short timeout ends it
    used = (t.age_s / t.timeout_s for t in inspection.open if t.verdict != "log" and t.timeout_s > 0)
    add(i.TIMEOUT_USED, max(used, default=0.0))
    add(i.UNPROVEN, len(inspection.decided))
    add(i.UNPROVEN_AGE, max((_age_s(d.decided_ms, inspection.checked_ms) for d in inspection.decided), default=0.0))
    if inspection.recent:
        add(i.LAST_DECISION, min(_age_s(r.decided_ms, inspection.checked_ms) for r in inspection.recent))
    if inspection.owner is not None:
        add(i.CLAIMS, inspection.owner.claim.token)
        if inspection.owner.alive is not None:
            add(i.OWNER_ALIVE, int(inspection.owner.alive))
    add(i.ABORTED, log.tally.aborted)
    add(i.REPLAYS, log.tally.completed, kind="completed")
    add(i.REPLAYS, log.tally.drained, kind="drained")
    add(i.REWRITTEN, log.tally.rewritten)
    wrong = Counter((d.code, d.severity.value) for d in diagnose(SinkFacts(inspection)))
    for (code, severity), count in wrong.items():
        add(i.DIAGNOSIS, count, code=code, severity=severity)
    for instrument, lag in ((i.READER_LAG, readers), (i.STABLE_LAG, stable)):
        for topic, offsets in (lag or {}).items():
            add(instrument, offsets, topic=topic)
    return points


def output_topics(inspection: Inspection) -> set[str]:
    """Return the topics that the sink has written lately or is writing."""
    recent = {topic for r in inspection.recent for topic in r.decision.topics}
    return recent | {topic for t in inspection.open if t.verdict != "log" for topic, _ in t.partitions}


class History:
    """Remembers what it has counted of one sink, so that each batch counts once.

    The log keeps the last 64 batches of a stream, so this needs no more memory than the log itself.

    Parameters
    ----------
    from_the_beginning : bool
        Whether to count what the first look finds: true for a sink that appeared while the observer ran. An earlier
        observer has counted the batches of any other sink.
    """

    def __init__(self, from_the_beginning: bool):
        self._first = not from_the_beginning
        self._decided: set[tuple[str, int]] = set()
        self._marked: set[tuple[str, int]] = set()
        self._highest: dict[str, int] = {}

    def news(self, sink_id: str, log: LogState) -> list[Point]:
        """Return what to add to counters and histograms since the last look."""
        points: list[Point] = []
        decided = {(d.query_id, d.batch_id): d for d in log.decisions}
        new = [d for key, d in decided.items() if key not in self._decided]
        marks = [m for key, m in log.marks.items() if key not in self._marked]
        if self._first:  # the counters begin at 0, so that Prometheus sees their first increase
            new, marks = [], []
        missed = self._missed(new)
        for kind in KINDS:
            of_kind = [d for d in new if ("write" if d.write_id else "stream") == kind]
            labels = {"sink": sink_id, "kind": kind}
            points.append(Point(i.DECISIONS, len(of_kind), labels))
            points.append(Point(i.RECORDS, sum(d.records for d in of_kind), labels))
            points.append(Point(i.DEAD_LETTERS, sum(d.dead_letters for d in of_kind), labels))
        points.append(Point(i.MISSED, missed, {"sink": sink_id}))
        points += [p for mark in marks for p in _durations(sink_id, mark)]
        self._first = False
        self._decided, self._marked = set(decided), set(log.marks)
        for d in log.decisions:
            self._highest[d.query_id] = max(d.batch_id, self._highest.get(d.query_id, d.batch_id))
        self._highest = {query_id: self._highest[query_id] for query_id, _ in decided}
        return points

    def _missed(self, new: Iterable[Decision]) -> int:
        """Count the batches between the highest known one and the new ones: these have left the log already."""
        by_query: dict[str, list[int]] = {}
        for d in new:
            if d.query_id in self._highest and d.batch_id > self._highest[d.query_id]:
                by_query.setdefault(d.query_id, []).append(d.batch_id)
        return sum(max(ids) - self._highest[query_id] - len(ids) for query_id, ids in by_query.items())


def _durations(sink_id: str, mark: Completed) -> list[Point]:
    """Return the durations that are known: -1 says that a later driver or a recovery completed the batch."""
    known = ((i.PREPARE, mark.prepare_ms), (i.DECIDE, mark.decide_ms), (i.COMPLETE, mark.complete_ms))
    return [Point(instrument, ms / 1000, {"sink": sink_id}) for instrument, ms in known if ms >= 0]


def _age_s(ms: int, now_ms: int) -> float:
    return max(0, now_ms - ms) / 1000
