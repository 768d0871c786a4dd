"""Numbers, times, and the owner of a sink in words."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from datetime import UTC, datetime

from exactly_once.errors import InvalidOption
from exactly_once.inspection.findings import Inspection
from exactly_once.inspection.processes import describe_frozen

_IRREGULAR = {"batch": "batches"}


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 4 s``, ``2 h``, ``3 d 4 h``."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    whole = int(seconds)
    for size, unit, below, name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit} {rest} {name}" if rest else f"{whole // size} {unit}"
    return f"{whole} s"


def utc(ms: float | None) -> str:
    """Format a moment in UTC, without the name of the zone; empty for none."""
    return "" if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def when(ms: int, now_ms: int) -> str:
    """Return a moment in UTC, and how long ago it was."""
    return f"{utc(ms)} UTC ({duration((now_ms - ms) / 1000)} ago)" if ms > 0 else "an unknown time"


def some(names: Sequence[str], most: int) -> str:
    """Return at most ``most`` of the names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def plural(count: int, noun: str) -> str:
    """``1 record``, ``1,234 records``."""
    return f"{count:,} {noun if count == 1 else _IRREGULAR.get(noun, noun + 's')}"


def are(count: int) -> str:
    """Return the verb that follows :func:`plural`: "is" or "are"."""
    return "is" if count == 1 else "are"


def upper(text: str) -> str:
    """Return the text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def owner_sentence(inspection: Inspection) -> str:
    """Describe the sink's owner, and whether it is alive."""
    if inspection.owner is None:
        return "None: the commit log has no claim. No stream has used this sink, or the log was deleted."
    claim, alive = inspection.owner.claim, inspection.owner.alive
    state = (
        f"it is frozen: {describe_frozen(inspection.owner.frozen)}"
        if inspection.owner.frozen
        else "it is alive"
        if alive
        else "it is gone"
        if alive is False
        else f"this host ({socket.gethostname()}) cannot tell whether it is alive"
    )
    return (
        f"A {claim.purpose}: {claim.process}, claim {claim.token} of "
        f"{when(claim.claimed_ms, inspection.checked_ms)}; {state}."
    )


def never_claimed(sink_id: str) -> InvalidOption:
    """Make the error for a sink id without a claim: a typo, or a deleted log, must not look like a sink at rest."""
    return InvalidOption(
        f"the commit log of sink {sink_id!r} has no claim: no driver has used it on this cluster, or it was deleted",
        "Correct the sink id or the cluster ('exactly-once transactions list' names its sinks). For a new stream, try "
        "again after its first batch. If the stream has written here before, see The commit log in docs/production.md",
    )
