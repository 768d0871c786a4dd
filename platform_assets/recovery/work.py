"""The data that the steps of a recovery pass on, and their errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from exactly_once.errors import ExactlyOnceError
from exactly_once.ops.findings import Inspection
from exactly_once.protocol.life import Life


class SinkBusy(ExactlyOnceError):
    """A live process works on the sink."""

    code = "EO-SINK-BUSY"
    restart_heals = True
    default_safe = "Nothing was changed"


class NotAtRest(ExactlyOnceError):
    """The recovery finished, but the sink is not at rest."""

    code = "EO-NOT-AT-REST"
    restart_heals = True
    default_safe = "Decided batches will be committed, and nothing else is visible to a read_committed reader"


@dataclass(frozen=True)
class Work:
    """A recovery under way.

    Attributes
    ----------
    by : str
        The person or sensor that launched it.
    before : mapping
        The counts of the inspection.
    token : int or None
        The token of its own claim; None for a sink that was never used.
    superseded : bool
        Whether a newer owner claimed the sink meanwhile; that owner continues the work.
    completed, aborted : tuple of str
        Completed batches by number (a write by its id); aborted transactional ids.
    awaited : tuple of str
        Decided batches with lost parts: they stay open until the next start of the stream has written the parts again.
    """

    sink_id: str
    by: str
    reason: str
    take_over: bool
    restart: bool
    before: Mapping[str, int] = field(default_factory=dict)
    token: int | None = None
    superseded: bool = False
    completed: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()


def counts(found: Inspection) -> dict[str, int]:
    """Return the numbers of an inspection, for the audit trail."""
    return {
        "open": len(found.open),
        "undecided": sum(t.verdict == "undecided" for t in found.open),
        "decided_not_proven": len(found.decided),
        "lost_parts": sum(d.count(Life.LOST) for d in found.decided),
        "blocked_partitions": len(found.blocked),
        "waiting_offsets": sum(b.waiting for b in found.blocked),
    }
