"""What the commit log means: a fold over its records, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from exactly_once.protocol.records import Claim, Completed, Decision, Entry


@dataclass(frozen=True, slots=True)
class LogState:
    """The truth about a sink as its commit log tells it.

    Attributes
    ----------
    owner : Claim or None
        The latest claim: the only one who may decide.
    decisions : tuple of Decision
        The decisions that the log still holds, oldest first.
    completed : frozenset of (str, int)
        (query id, batch id) of the decisions that are proven.
    end : int
        The offset after the last record that was read.
    last_timestamp_ms : int
        The broker's time of the last record, -1 for an empty log.
    """

    owner: Claim | None = None
    decisions: tuple[Decision, ...] = ()
    completed: frozenset[tuple[str, int]] = frozenset()
    end: int = 0
    last_timestamp_ms: int = -1

    @property
    def open_decisions(self) -> tuple[Decision, ...]:
        """Decided and not yet marked as completed, oldest first."""
        return tuple(d for d in self.decisions if (d.query_id, d.batch_id) not in self.completed)

    def last_decision(self, query_id: str) -> Decision | None:
        """The decision with the highest batch id of ``query_id``."""
        return max((d for d in self.decisions if d.query_id == query_id), key=lambda d: d.batch_id, default=None)

    def is_decided(self, query_id: str, batch_id: int) -> bool:
        """Whether the log holds the decision for this batch."""
        return any(d.query_id == query_id and d.batch_id == batch_id for d in self.decisions)

    def open_before(self, token: int) -> tuple[Decision, ...]:
        """The open decisions that stand before the claim ``token``: all that its recovery may touch."""
        return tuple(d for d in self.open_decisions if d.token < token)


def fold(entries: Iterable[Entry], start: LogState = LogState()) -> LogState:
    """The state after ``entries``, which must be in log order; ``start`` continues an earlier fold."""
    owner, end, last_ms = start.owner, start.end, start.last_timestamp_ms
    decisions = {(d.query_id, d.batch_id): d for d in start.decisions}
    completed = set(start.completed)
    for entry in entries:
        record = entry.record
        if isinstance(record, Claim):
            owner = record
        elif isinstance(record, Decision):
            decisions[record.query_id, record.batch_id] = record
        elif isinstance(record, Completed):
            completed.add((record.query_id, record.batch_id))
        end, last_ms = entry.offset + 1, entry.timestamp_ms
    return LogState(owner, tuple(decisions.values()), frozenset(completed), end, last_ms)
