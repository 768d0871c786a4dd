"""Recovery without a stream: take the sink, finish what is decided, abort what is not, and prove it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from exactly_once.claim import claim_for_recovery
from exactly_once.deadline import Deadline
from exactly_once.errors import UnknownTopic
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.control import Control, Description
from exactly_once.protocol.records import Claim, Decision


@dataclass(frozen=True)
class RecoveryReport:
    """What a recovery found and did.

    Attributes
    ----------
    claim : Claim or None
        Its own claim; None when the sink was never used.
    completed : list of Decision
        Decided batches that it proved committed.
    aborted : list of Description
        Undecided transactions that it aborted.
    left_open : list of Description
        What is open all the same: a task of a driver that still breathes, or one the principal may not end.
    blocked : list of (str, int)
        Output partitions on which the last stable offset is still behind the high watermark.
    """

    sink_id: str
    claim: Claim | None = None
    completed: list[Decision] = field(default_factory=list)
    aborted: list[Description] = field(default_factory=list)
    left_open: list[Description] = field(default_factory=list)
    blocked: list[tuple[str, int]] = field(default_factory=list)

    @property
    def found_nothing(self) -> bool:
        """Nothing was to be done."""
        return not (self.completed or self.aborted or self.left_open or self.blocked)

    @property
    def clean(self) -> bool:
        """Nothing is open and no reader is blocked."""
        return not (self.left_open or self.blocked)

    def as_metadata(self) -> dict[str, Any]:
        """The report as plain values."""
        return {
            "sink_id": self.sink_id,
            "claim": self.claim.token if self.claim else 0,
            "completed_batches": [d.batch_id for d in self.completed],
            "completed_transactions": sum(len(d.handles) for d in self.completed),
            "aborted_transactions": [d.transactional_id for d in self.aborted],
            "left_open": [d.transactional_id for d in self.left_open],
            "blocked_partitions": [f"{t}-{p}" for t, p in self.blocked],
        }


def recover(connection: Connection, sink_id: str, timeout_s: float = 60.0) -> RecoveryReport:
    """Bring the sink to rest. Idempotent; safe to run twice at once (the later claim goes on, the earlier is refused).

    It takes the ownership: a driver that is still running is fenced and stops with EO-FENCED. The next start of the
    stream takes it back.

    Raises
    ------
    BrokerUnreachable, Expired, Unfinished, Fenced, NotAuthorized
    """
    deadline = Deadline(timeout_s)
    resolved = claim_for_recovery(connection, sink_id, timeout_s)
    if resolved is None:
        return RecoveryReport(sink_id)
    topics = {t for d in resolved.completed for t in d.topics} | {t for d in resolved.aborted for t, _ in d.partitions}
    blocked = _wait_until_readable(connection, sorted(topics), Deadline(min(10.0, max(1.0, deadline.left))))
    return RecoveryReport(sink_id, resolved.claim, resolved.completed, resolved.aborted, resolved.left_open, blocked)


def _wait_until_readable(connection: Connection, topics: list[str], deadline: Deadline) -> list[tuple[str, int]]:
    """The partitions whose last stable offset is still behind when the budget is spent; markers take a moment."""
    blocked: list[tuple[str, int]] = []
    if not topics:
        return blocked
    with Control(connection, deadline.seconds + 5) as control:
        for _ in deadline.tries():
            blocked = []
            for topic in topics:
                try:
                    marks = control.watermarks(topic)
                except UnknownTopic:  # deleted since: nobody reads it
                    continue
                blocked += [(topic, p) for p, w in marks.items() if w.last_stable < w.high]
            if not blocked:
                break
    return blocked
