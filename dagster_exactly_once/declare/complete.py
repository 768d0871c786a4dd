"""Windows of event time that are complete, because the watermark has passed their end. Pure.

Spark emits a window of a stateful query, and drops what comes later for it, in the batch whose watermark has passed the
window's end. When that batch is committed, nothing more of the window will ever be written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dagster_exactly_once.declare.errors import BadDeclaration, check_day
from dagster_exactly_once.tables import ranges
from exactly_once.errors import InvalidOption

#: The names that Dagster gives the partitions of an hourly and of a daily asset.
_FORMATS = {"hour": "%Y-%m-%d-%H:%M", "day": "%Y-%m-%d"}


@dataclass(frozen=True)
class Complete:
    """The windows that a stream reports when they are complete.

    Attributes
    ----------
    every : str
        ``hour`` or ``day``, in the time zone.
    start : str
        The first day of the windows, like 2026-01-31.
    end : str
        The last one, for input that ends; "": none. Windows after it are not reported.
    timezone : str
        The time zone, by its name in the IANA database; the same as that of the partitions of the assets downstream,
        which Dagster compares by name. It stays as it is once windows are reported.

    Raises
    ------
    BadDeclaration
        ``every`` is neither, a day is not written like 2026-01-31, the last day is before the first, or there is no
        such time zone.
    """

    every: str
    start: str
    end: str = ""
    timezone: str = "UTC"

    @classmethod
    def hourly(cls, start: str, end: str = "", timezone: str = "UTC") -> Complete:
        """Return windows of an hour, from the beginning of a day on: 8,760 partitions a year, of the 100,000 at most
        that Dagster advises for an asset.
        """
        return cls("hour", start, end, timezone)

    @classmethod
    def daily(cls, start: str, end: str = "", timezone: str = "UTC") -> Complete:
        """Return windows of a day."""
        return cls("day", start, end, timezone)

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
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise BadDeclaration(
                f"Complete: there is no time zone {self.timezone!r}. Name one of the IANA database, like Europe/Berlin"
            ) from None

    @property
    def until(self) -> datetime | None:
        """The end of the last window; None without one."""
        return self._midnight(_day(self.end) + timedelta(days=1)) if self.end else None

    @property
    def first(self) -> str:
        """The name of the first window."""
        return self.name(self._midnight(_day(self.start)))

    def name(self, moment: datetime) -> str:
        """Return the name of the window that begins at a moment, as Dagster has it: the offset from UTC follows the
        second of two hours of one name, when clocks are set back.
        """
        local = moment.astimezone(ZoneInfo(self.timezone))
        return local.strftime(_FORMATS[self.every] + ("%z" if local.fold and self.every == "hour" else ""))

    def begin(self, name: str) -> datetime:
        """Return the moment at which a window begins. Raises ValueError for a text that is no name."""
        if self.every == "day":
            return self._midnight(_day(name))
        if len(name) > len(self.first):
            return datetime.strptime(name, f"{_FORMATS['hour']}%z").astimezone(UTC)
        return datetime.strptime(name, _FORMATS["hour"]).replace(tzinfo=ZoneInfo(self.timezone)).astimezone(UTC)

    def floor(self, moment: datetime) -> datetime:
        """Return the beginning of the window in which a moment is."""
        local = moment.astimezone(ZoneInfo(self.timezone))
        if self.every == "hour":
            return local.replace(minute=0, second=0, microsecond=0).astimezone(UTC)
        return self._midnight(local)

    def after(self, begin: datetime) -> datetime:
        """Return the end of a window: the beginning of the next one."""
        if self.every == "hour":
            return begin + timedelta(hours=1)
        return self._midnight(begin.astimezone(ZoneInfo(self.timezone)) + timedelta(days=1))

    def _midnight(self, day: datetime) -> datetime:
        """Return when a day begins: where clocks skip its midnight, at that moment."""
        return datetime.combine(day.date(), time(), ZoneInfo(self.timezone)).astimezone(UTC)


def closed(windows: Complete, reported: Iterable[str], first: str, watermark_ms: int, most: int) -> list[str]:
    """Return the windows that the watermark has passed and nobody has reported, oldest first.

    Parameters
    ----------
    reported : iterable of str
        The names of the windows that are reported; the newest of them counts.
    first : str
        Where nothing is reported yet: the window of the oldest event.
    watermark_ms : int
        The watermark, in ms since the epoch.
    most : int
        Return no more than this: the next call returns the others.
    """
    newest = max(reported, default="")
    begin = windows.after(windows.begin(newest)) if newest else windows.begin(first)
    return list(islice(_passed(windows, begin, watermark_ms), most))


def left_open(windows: Complete, reported: Collection[str], first: str, watermark_ms: int) -> list[str]:
    """Return the windows that the watermark has passed and nobody has reported although a newer one is: no run of the
    stream comes back to them. Oldest first. ``first`` is the first window that counts; "": the oldest that is reported.
    """
    newest = max(reported, default="")
    begin = max(first or min(reported, default=""), windows.first)
    passed = _passed(windows, windows.begin(begin), watermark_ms)
    return [name for name in takewhile(lambda name: name < newest, passed) if name not in reported]


def window_of(windows: Complete, ms: int) -> str:
    """Return the window of a moment, in ms since the epoch; of a moment before all windows, the first one."""
    return max(windows.name(windows.floor(datetime.fromtimestamp(ms / 1000, UTC))), windows.first)


def in_ranges(windows: Complete, names: Sequence[str]) -> str:
    """Return windows, oldest first, in words: each row of them by its first and its last one."""
    return ranges(names, lambda one, other: windows.after(windows.begin(one)) == windows.begin(other))


def check_window(windows: Complete, name: str, reported: Iterable[str]) -> str:
    """Return the name of a window that a person gives as the first one of the stream. Raises InvalidOption when it is
    none, or lies after one that is reported.
    """
    oldest = min(reported, default="")
    try:
        given = window_of(windows, round(windows.begin(name).timestamp() * 1000))
    except ValueError:
        given = ""
    if given != name or (oldest and name > oldest):
        last = f" to {oldest}" if oldest else " on"
        raise InvalidOption(
            f"first is {name!r}, which is no {windows.every} from {windows.first}{last}",
            f"Name the {windows.every} of the first event ({windows.timezone}) like {windows.first}, or leave it empty",
            "Nothing was closed",
        )
    return name


def _passed(windows: Complete, begin: datetime, watermark_ms: int) -> Iterator[str]:
    """Yield the windows from ``begin`` on that a watermark has passed."""
    until = datetime.fromtimestamp(watermark_ms / 1000, UTC)
    if windows.until is not None:
        until = min(until, windows.until)
    while (end := windows.after(begin)) <= until:
        yield windows.name(begin)
        begin = end


def _day(name: str) -> datetime:
    return datetime.strptime(name, _FORMATS["day"])
