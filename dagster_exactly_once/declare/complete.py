"""Windows of event time that are complete, because the watermark has passed their end. Pure.

Spark emits a window of a stateful query, and drops what comes later for it, in the batch whose watermark has passed the
window's end. When that batch is committed, nothing more of the window will ever be written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile

from dagster_exactly_once.declare.errors import BadDeclaration, check_day
from exactly_once.errors import InvalidOption

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
    def first(self) -> str:
        """The name of the first window."""
        return _moment(self.start, "day").strftime(self.format)

    @property
    def length(self) -> timedelta:
        """The length of a window."""
        return _LENGTHS[self.every]

    @property
    def format(self) -> str:
        """The names of the windows, as strftime makes them."""
        return _FORMATS[self.every]


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
    begin = _moment(newest, windows.every) + windows.length if newest else _moment(first, windows.every)
    return list(islice(_passed(windows, begin, watermark_ms), most))


def left_open(windows: Complete, reported: Collection[str], first: str, watermark_ms: int) -> list[str]:
    """Return the windows that the watermark has passed and nobody has reported although a newer one is: no run of the
    stream comes back to them. Oldest first.

    Parameters
    ----------
    reported : collection of str
        The names of the windows that are reported.
    first : str
        The first window that counts; "": the oldest that is reported.
    watermark_ms : int
        The watermark, in ms since the epoch.
    """
    newest = max(reported, default="")
    begin = max(first or min(reported, default=""), windows.first)
    passed = _passed(windows, _moment(begin, windows.every), watermark_ms)
    return [name for name in takewhile(lambda name: name < newest, passed) if name not in reported]


def window_of(windows: Complete, ms: int) -> str:
    """Return the window of a moment, in ms since the epoch; of a moment before all windows, the first one."""
    moment = datetime.fromtimestamp(ms / 1000, UTC).replace(minute=0, second=0, microsecond=0)
    whole = moment if windows.every == "hour" else moment.replace(hour=0)
    return max(whole.strftime(windows.format), windows.first)


def in_ranges(windows: Complete, names: Sequence[str]) -> str:
    """Return windows, oldest first, in words: each row of them by its first and its last one."""
    rows = list[list[str]]()
    for name in names:
        if rows and _moment(rows[-1][-1], windows.every) + windows.length == _moment(name, windows.every):
            rows[-1].append(name)
        else:
            rows.append([name])
    return ", ".join(row[0] if len(row) == 1 else f"{row[0]} to {row[-1]}" for row in rows)


def check_window(windows: Complete, name: str, reported: Iterable[str]) -> str:
    """Return the name of a window that a person gives as the first one of the stream.

    Raises
    ------
    InvalidOption
        It is none, or lies after one that is reported.
    """
    oldest = min(reported, default="")
    try:
        given = window_of(windows, round(_moment(name, windows.every).timestamp() * 1000))
    except ValueError:
        given = ""
    if given != name or (oldest and name > oldest):
        last = f" to {oldest}" if oldest else " on"
        raise InvalidOption(
            f"first is {name!r}, which is no {windows.every} from {windows.first}{last}",
            f"Name the {windows.every} (UTC) of the first event like {windows.first}, or leave first empty",
            "Nothing was closed",
        )
    return name


def _passed(windows: Complete, begin: datetime, watermark_ms: int) -> Iterator[str]:
    """Yield the windows from ``begin`` on that a watermark has passed."""
    until = datetime.fromtimestamp(watermark_ms / 1000, UTC)
    if windows.until is not None:
        until = min(until, windows.until)
    while begin + windows.length <= until:
        yield begin.strftime(windows.format)
        begin += windows.length


def _moment(name: str, every: str) -> datetime:
    return datetime.strptime(name, _FORMATS[every]).replace(tzinfo=UTC)
