"""The state that the commit log describes: a fold over its records, in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from exactly_once.protocol.records import (
    ACCEPTED,
    KAFKA,
    KEPT_DECISIONS,
    MANY_PARTS,
    WRITE,
    Aborted,
    Claim,
    Completed,
    Decision,
    Entry,
    PreparedPart,
    PreparedTransaction,
    Retired,
    Tally,
    decision_key,
    key_of,
)


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of a sink according to its commit log.

    Attributes
    ----------
    owner : Claim or None
        The latest claim: only its driver may decide.
    decisions : tuple of Decision
        The decisions in the log, oldest first.
    marks : mapping
        (query id, batch id) of each proven decision -> its completed mark.
    decided_ms : mapping
        (query id, batch id) -> when the decision was written, by the brokers' clock, in ms.
    tally : Tally
        Counts over the sink's life.
    aborted : Aborted or None
        The last execution that ended without a decision.
    end : int
        The offset after the last record read.
    last_timestamp_ms : int
        The broker's time of the last record, -1 for an empty log.
    retired : Retired or None
        The sink has a successor: no stream may claim it any more.
    widowed : tuple of Completed
        Completed marks whose decision is not in the log, although no later one has taken its key: somebody removed it.
    """

    owner: Claim | None = None
    decisions: tuple[Decision, ...] = ()
    marks: Mapping[tuple[str, int], Completed] = field(default_factory=dict)
    decided_ms: Mapping[tuple[str, int], int] = field(default_factory=dict)
    tally: Tally = field(default_factory=lambda: Tally(0))
    end: int = 0
    last_timestamp_ms: int = -1
    aborted: Aborted | None = None
    retired: Retired | None = None
    widowed: tuple[Completed, ...] = ()

    @property
    def open_decisions(self) -> tuple[Decision, ...]:
        """Decisions without a completed mark, oldest first."""
        return tuple(d for d in self.decisions if (d.query_id, d.batch_id) not in self.marks)

    def write(self, write_id: str) -> Decision | None:
        """Return the decision of the batch write ``write_id``."""
        return next((d for d in self.decisions if d.query_id == f"{WRITE}{write_id}"), None)

    def last_decision(self, query_id: str) -> Decision | None:
        """Return the decision with the highest batch id of ``query_id``."""
        return max((d for d in self.decisions if d.query_id == query_id), key=lambda d: d.batch_id, default=None)

    def is_decided_by(self, token: int, query_id: str, batch_id: int) -> bool:
        """Return whether the claim ``token`` decided this batch: then no part prepared under it may be aborted."""
        return any((d.token, d.query_id, d.batch_id) == (token, query_id, batch_id) for d in self.decisions)

    def open_before(self, token: int) -> tuple[Decision, ...]:
        """Return the open decisions before the claim ``token``: the only ones that its recovery may touch."""
        return tuple(d for d in self.open_decisions if d.token < token)

    def naming(self, producer_id: int, epoch: int) -> tuple[Decision, PreparedTransaction] | None:
        """Return the decision and the handle of this producer's transaction; None when none of them names it."""
        for decision in self.decisions:
            for handle in decision.handles:  # without a copy of the handles for each transaction
                if isinstance(handle, PreparedTransaction) and (handle.producer_id, handle.epoch) == (
                    producer_id,
                    epoch,
                ):
                    return decision, handle
        return None

    @property
    def has_all(self) -> bool:
        """True when these are all decisions that streams of the sink ever made: a query from which the sink was taken
        loses its places in the log to batches of the same numbers.
        """
        streams = [d for d in self.decisions if not d.write_id]
        if not streams:
            return True
        first, queries = streams[0], {d.query_id for d in streams}
        before = sum(first.counted.records.values()) - first.records if first.counted is not None else 0
        return len(queries) == 1 and first.batch_id == 0 and before <= 0

    def would_name(self, producer_id: int, epoch: int, written_ms: int) -> bool:
        """Return whether the log would name this producer's transaction, whose last record is of ``written_ms``, if it
        had been decided: it keeps the newest decisions, and those of very many parts without their handles.
        """
        of_streams = [d for d in self.decisions if not d.write_id]
        if len({d.query_id for d in of_streams}) > 1:  # some decisions of the earlier query have made way
            return False
        since = [i for i, d in enumerate(self.decisions) if any(_earlier(h, producer_id, epoch) for h in d.handles)]
        if since:  # the log keeps what was decided after a decision that it keeps
            return not any(d.totals for d in self.decisions[since[0] :])
        times = [(d, self.decided_ms.get((d.query_id, d.batch_id), d.decided_ms)) for d in self.decisions]
        if any(d.totals and ms >= written_ms for d, ms in times):
            return False
        if len(of_streams) < KEPT_DECISIONS:
            return self.has_all
        return min(ms for d, ms in times if not d.write_id) <= written_ms

    def to_keep(self, mark: Completed) -> Decision | None:
        """Return the decision that ``mark`` completes in the form that the log should keep; None: unchanged.

        The log keeps the decision of a batch write forever, so without handles. The decision of a batch with outputs
        other than Kafka keeps its handles: a superseded driver reads their names before it aborts anything. So does one
        of which a person gave up parts: a hanging rest of them must be known for what it is.
        """
        if mark.how == ACCEPTED:
            return None
        name = mark.query_id, mark.batch_id
        decision = next((d for d in self.decisions if (d.query_id, d.batch_id) == name), None)
        if decision is None or not decision.handles or set(decision.by_participant) != {KAFKA}:
            return None
        if not decision.write_id and len(decision.handles) <= MANY_PARTS:
            return None
        return decision.without_handles(self.decided_ms.get(name, decision.decided_ms))


def _earlier(handle: PreparedTransaction | PreparedPart, producer_id: int, epoch: int) -> bool:
    mine = isinstance(handle, PreparedTransaction) and handle.producer_id == producer_id
    return mine and handle.epoch < epoch  # type: ignore[union-attr]


def fold(entries: Iterable[Entry], start: LogState = LogState()) -> LogState:
    """Return the state after ``entries``, which must be in log order; ``start`` continues an earlier fold.

    Keeps one decision for each key, like the log's compaction, so the state of a long-lived driver does not grow.
    """
    owner, tally, end, last_ms = start.owner, start.tally, start.end, start.last_timestamp_ms
    aborted, retired = start.aborted, start.retired
    decisions = {key_of(d): d for d in start.decisions}
    decided_ms = dict(start.decided_ms)
    marks = {**start.marks, **{(m.query_id, m.batch_id): m for m in start.widowed}}
    for entry in entries:
        record = entry.record
        if isinstance(record, Claim):
            owner = record
        elif isinstance(record, Decision):
            decisions.pop(key_of(record), None)  # in log order
            decisions[key_of(record)] = record
            # a decision written again without handles carries the time of the first write
            decided_ms[record.query_id, record.batch_id] = record.decided_ms if record.totals else entry.timestamp_ms
        elif isinstance(record, Completed):
            marks[record.query_id, record.batch_id] = record
        elif isinstance(record, Tally):
            tally = record
        elif isinstance(record, Aborted):
            aborted = record
        elif isinstance(record, Retired):
            retired = record
        end, last_ms = entry.offset + 1, entry.timestamp_ms
    kept = [(d.query_id, d.batch_id) for d in decisions.values()]
    return LogState(
        owner,
        tuple(decisions.values()),
        {k: marks[k] for k in kept if k in marks},
        {k: decided_ms[k] for k in kept},
        tally,
        end,
        last_ms,
        aborted=aborted,
        retired=retired,
        widowed=tuple(m for m in marks.values() if decision_key(m) not in decisions),
    )
