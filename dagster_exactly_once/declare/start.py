"""The start of a stream without a checkpoint, as a person writes it."""

from __future__ import annotations

from datetime import UTC, datetime

from exactly_once.errors import ExactlyOnceError

EARLIEST, LATEST = "earliest", "latest"


class StartNotATime(ExactlyOnceError):
    """``start_from`` is neither of the two words nor a date or time."""

    code = "EO-START"
    default_safe = "Nothing was started"


def start_time_ms(start_from: str) -> int | None:
    """Convert ``start_from`` to ms since the epoch; None for ``earliest`` and ``latest``.

    A date begins at midnight; a time without a zone is UTC.

    Raises StartNotATime.
    """
    if start_from in (EARLIEST, LATEST):
        return None
    try:
        time = datetime.fromisoformat(start_from)
    except ValueError:
        raise StartNotATime(
            f"start_from={start_from!r} is neither {EARLIEST}, nor {LATEST}, nor a date or time",
            "Write start_from like 2013-07-01 or 2013-07-01T12:00:00Z",
        ) from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
