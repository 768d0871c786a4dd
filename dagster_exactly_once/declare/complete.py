"""Windows of event time that are complete, because the watermark has passed their end. Pure.

Spark emits a window of a stateful query, and drops what comes later for it, in the batch whose watermark has passed the
window's end. When that batch is committed, nothing more of the window will ever be written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dagster_exactly_once.declare.errors import BadDeclaration, check_day

#: How Dagster names the partitions of an hourly and of a daily asset.
_FORMATS = {"hour": "%Y-%m-%d-%H:%M", "day": "%Y-%m-%d"}
_LENGTHS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}


@dataclass(frozen=True)
class Complete:
    """The windows that a stream reports when they are complete.

    Attributes
    ----------
    every : str
        ``hour`` or ``day``, in UTC.
    start : str
        The first day of the windows, like 2026-01-31.
    end : str
        The last one, for input that ends; "": none. Windows after it are not reported.

    Raises
    ------
    BadDeclaration
        ``every`` is neither, a day is not written like 2026-01-31, or the last day is before the first.
    """

    every: str
    start: str
    end: str = ""

    @classmethod
    def hourly(cls, start: str, end: str = "") -> Complete:
        """Return windows of an hour, from the beginning of a day on: 8,760 partitions a year, of the 100,000 at most
        that Dagster advises for an asset.
        """
        return cls("hour", start, end)

    @classmethod
    def daily(cls, start: str, end: str = "") -> Complete:
        """Return windows of a day."""
        return cls("day", start, end)

    def __post_init__(self) -> None:
        if self.every not in _FORMATS:
            raise BadDeclaration(
                f"Complete: {self.every!r} is not a window. Use Complete.hourly(...) or Complete.daily(...); in YAML "
                "every: hour or every: day"
            )
        check_day(self.start, "Complete")
        if self.end:
            check_day(self.end, "Complete")
            if self.end < self.start:
                raise BadDeclaration(f"Complete: the last day {self.end} is before the first, {self.start}")

    @property
    def until(self) -> datetime | None:
        """The end of the last window; None without one."""
        return _moment(self.end, "day") + timedelta(days=1) if self.end else None

    @property
    def format(self) -> str:
        """The names of the windows, as strftime makes them."""
        return _FORMATS[self.every]


def closed(windows: Complete, reported: Iterable[str], first_ms: int, watermark_ms: int, most: int) -> list[str]:
    """Return the windows that the watermark has passed and nobody has reported, oldest first.

    Parameters
    ----------
    reported : iterable of str
        The names of the windows that are reported; the newest of them counts.
    first_ms, watermark_ms : int
        The event time of the oldest record, where nothing is reported yet, and the watermark; ms since the epoch.
    most : int
        Return no more than this: the next call returns the others.
    """
    newest = max((_moment(name, windows.every) for name in reported), default=None)
    length = _LENGTHS[windows.every]
    if newest is not None:
        window = newest + length
    else:
        window = max(_floor(datetime.fromtimestamp(first_ms / 1000, UTC), windows.every), _moment(windows.start, "day"))
    watermark, found = datetime.fromtimestamp(watermark_ms / 1000, UTC), list[str]()
    if windows.until is not None:
        watermark = min(watermark, windows.until)
    while window + length <= watermark and len(found) < most:
        found.append(window.strftime(windows.format))
        window += length
    return found


def _floor(moment: datetime, every: str) -> datetime:
    whole = moment.replace(minute=0, second=0, microsecond=0)
    return whole if every == "hour" else whole.replace(hour=0)


def _moment(name: str, every: str) -> datetime:
    return datetime.strptime(name, _FORMATS[every]).replace(tzinfo=UTC)
