"""Windows of a stream for people and plots: records committed since the last window and in all, durations, and lag.

The commit log gives the committed records, as the sum that each decision carries on; Spark's own progress adds
durations. So a batch that was decided before a crash and drained after it counts once, and a window counts all of its
batches, also those that the log no longer has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from exactly_once.inspection.words import plural
from exactly_once.protocol.counting import OTHER
from exactly_once.protocol.records import Count, Decision

#: Rows of the table of batches in one window; the newest are kept.
BATCHES_SHOWN = 20


@dataclass(frozen=True)
class CommittedBatch:
    """One committed batch.

    ``batch_ms`` is Spark's duration of the whole batch, ``sink_ms`` of reading, transforming, preparing and committing;
    ``commit_ms`` runs from the decision until Spark marked the batch as done. None for a batch that an earlier run
    decided. ``records`` and ``transactions`` are None when the log no longer has the decision. ``observed`` are the
    whole numbers of the query's own observations (``DataFrame.observe``), by name. ``late`` are rows that came behind
    the watermark and were dropped, as the state store counts them: partial sums, each of one event or more.
    ``event_ms`` and ``watermark_ms`` are the oldest event time of the batch and its watermark, in ms since the epoch;
    None for a query without one.
    """

    batch_id: int
    records: int | None
    transactions: int | None
    batch_ms: int | None
    sink_ms: int | None
    commit_ms: int | None
    late: int = 0
    event_ms: int | None = None
    watermark_ms: int | None = None
    observed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ReportWindow:
    """The period since the last window.

    Attributes
    ----------
    lag : int
        Offsets that a read_committed reader of the input could read and Spark has not committed.
    open_transactions : int
        Open transactions of the sink, at the end of the window.
    seconds : float
        The length of the window.
    before, counted : Count or None
        What the stream had committed when the window began and ended; None before its first batch.
    lags : tuple of int
        The lag on each input topic.
    """

    batches: tuple[CommittedBatch, ...]
    lag: int
    open_transactions: int
    seconds: float
    before: Count | None = None
    counted: Count | None = None
    lags: tuple[int, ...] = ()

    @property
    def last_batch(self) -> int | None:
        """The batch id of the newest batch."""
        return self.batches[-1].batch_id if self.batches else None

    @property
    def records(self) -> int:
        """Records committed to all topics."""
        return sum(self._new.values())

    def records_of(self, topics: Sequence[str]) -> list[int]:
        """Return the records committed to each output; what no task told by topic is the first one's."""
        return _shared(self._new, topics)

    def totals_of(self, topics: Sequence[str]) -> list[int] | None:
        """Return the records committed to each output since the stream's first start; None before its first batch."""
        return None if self.counted is None else _shared(self.counted.records, topics)

    @property
    def _new(self) -> Mapping[str, int]:
        if self.counted is None:
            return {OTHER: sum(b.records or 0 for b in self.batches)}
        if self.before is None or self.before.since_ms != self.counted.since_ms:  # the log was made again
            return self.counted.records
        return {topic: n - self.before.records.get(topic, 0) for topic, n in self.counted.records.items()}

    @property
    def observed(self) -> dict[str, int]:
        """The sums of the query's own observations, by name."""
        found: Counter[str] = Counter()
        for batch in self.batches:
            found.update(batch.observed)
        return dict(found)

    @property
    def late(self) -> int:
        """Rows that Spark dropped because they were behind the watermark."""
        return sum(b.late for b in self.batches)

    @property
    def watermark_ms(self) -> int | None:
        """The newest watermark under which a batch was committed."""
        return max((b.watermark_ms for b in self.batches if b.watermark_ms is not None), default=None)

    @property
    def event_ms(self) -> int | None:
        """The oldest event time of the batches that is not behind the watermark of its batch."""
        return min((max(b.event_ms, b.watermark_ms or 0) for b in self.batches if b.event_ms is not None), default=None)

    def sentence(self) -> str:
        """Return the window in one line for the run log."""
        state = f"{plural(self.lag, 'offset')} behind, {plural(self.open_transactions, 'open transaction')}"
        if not self.batches:
            return f"no batch in {self.seconds:.0f} s; {state}"
        observed = ", ".join(f"{count:,} {name}" for name, count in self.observed.items())
        total = f", {sum(self.counted.records.values()):,} in all" if self.counted else ""
        return (
            f"batch {self.last_batch}: {plural(self.records, 'record')} committed in {self.seconds:.0f} s by "
            f"{plural(len(self.batches), 'batch')}"
            f"{f' ({observed})' if observed else ''}{total}; {state}"
        )

    def plots(self, records: int) -> dict[str, int | float]:
        """Return numbers under stable names, which Dagster plots over time. Leaves out a duration that no batch had: a
        zero would be a point in its plot.
        """
        durations = {
            "batch_duration_ms": _mean(b.batch_ms for b in self.batches),
            "sink_duration_ms": _mean(b.sink_ms for b in self.batches),
            "commit_duration_ms": _mean(b.commit_ms for b in self.batches),
        }
        return {
            "records_committed": records,
            "records_per_second": round(records / self.seconds, 1) if self.seconds > 0 else 0.0,
            "lag_offsets": self.lag,
            "batches": len(self.batches),
            **{name: ms for name, ms in durations.items() if ms is not None},
            "open_transactions": self.open_transactions,
        }


def committed_batches(
    decisions: Sequence[Decision],
    marked_ms: Mapping[int, int],
    progress: Mapping[int, Mapping[str, Any]],
) -> tuple[CommittedBatch, ...]:
    """Return the batches that Spark has committed, in order, also those whose decision the log no longer has.

    Parameters
    ----------
    decisions : sequence of Decision
        Of one query.
    marked_ms : mapping
        Batch id -> when Spark wrote ``commits/<batch id>``, for the batches that are asked for.
    progress : mapping
        Batch id -> Spark's progress event, for the batches of this run.
    """
    newest = max(marked_ms, default=-1)
    decided = {d.batch_id: d for d in decisions if d.batch_id in marked_ms}
    return tuple(
        _batch(batch_id, decided.get(batch_id), marked_ms.get(batch_id), progress.get(batch_id))
        for batch_id in sorted({*decided, *(b for b in progress if b <= newest)})
    )


def _batch(
    batch_id: int, decision: Decision | None, marked_ms: int | None, event: Mapping[str, Any] | None
) -> CommittedBatch:
    event = event or {}
    durations = event.get("durationMs") or {}
    batch_ms = durations.get("triggerExecution")
    commit_ms = max(0, marked_ms - decision.decided_ms) if decision is not None and marked_ms is not None else None
    return CommittedBatch(
        batch_id=batch_id,
        records=decision.records if decision else None,
        transactions=decision.part_count if decision else None,
        batch_ms=batch_ms,
        sink_ms=durations.get("addBatch"),
        # This run drained a batch that an earlier run decided: the time between the two is not a commit time.
        commit_ms=commit_ms if batch_ms is not None and commit_ms is not None and commit_ms <= batch_ms else None,
        late=sum(int(operator["numRowsDroppedByWatermark"]) for operator in event.get("stateOperators") or ()),
        event_ms=_event_time(event, "min"),
        watermark_ms=_event_time(event, "watermark"),
        observed=_observed(event),
    )


def _shared(records: Mapping[str, int], topics: Sequence[str]) -> list[int]:
    others = [records.get(topic, 0) for topic in topics[1:]]
    return [sum(records.values()) - sum(others), *others]


def _mean(values: Iterable[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return round(sum(known) / len(known)) if known else None


def _observed(event: Mapping[str, Any]) -> dict[str, int]:
    """Return the whole numbers that the query itself observes, by name: PySpark gives rows, 3.5 dictionaries."""
    found: dict[str, int] = {}
    for row in (event.get("observedMetrics") or {}).values():
        if row is not None:
            columns = row if isinstance(row, Mapping) else row.asDict()
            found |= {column: value for column, value in columns.items() if type(value) is int}
    return found


def _event_time(event: Mapping[str, Any], name: str) -> int | None:
    """Return an event time of a batch in ms since the epoch; None when Spark has not seen one yet."""
    told = (event.get("eventTime") or {}).get(name)
    found = round(datetime.fromisoformat(told).timestamp() * 1000) if told else 0
    return found or None
