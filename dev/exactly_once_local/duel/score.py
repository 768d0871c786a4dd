"""Judging: what was counted, what it means, and the table of it. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from exactly_once_local.duel.sinks import Sink

#: Lost flights that are named.
EXAMPLES = 5


class FlightTally:
    """Counts records by the number of their flight.

    Attributes
    ----------
    seen : tuple of int
        Records, different flights, and records that are no flight of the input; always of one and the same moment.
    """

    def __init__(self, flights: int):
        self._times = array("I", bytes(4 * flights))
        self.seen = (0, 0, 0)

    def add(self, values: Iterable[bytes]) -> None:
        """Count records: ``{"sequence":17,...``."""
        records, distinct, unknown = self.seen
        for value in values:
            records += 1
            number = number_of(value)
            if number is None or number >= len(self._times):
                unknown += 1
                continue
            distinct += self._times[number] == 0
            self._times[number] += 1
        self.seen = (records, distinct, unknown)

    def missing(self, flights: int) -> list[int]:
        """Return the first few of the flights from 0 up to ``flights`` that were never counted."""
        return list(islice((n for n in range(flights) if not self._times[n]), EXAMPLES))


def number_of(value: bytes) -> int | None:
    """Return the number of the flight, None when this is no record of the duel.

    It does not parse JSON, which takes ten times as long.
    """
    head, colon, rest = value.partition(b":")
    digits = rest.partition(b",")[0]
    return int(digits) if colon and head == b'{"sequence"' and digits.isdigit() else None


@dataclass(frozen=True)
class Score:
    """The answers of the reader and of the brokers about one sink.

    Attributes
    ----------
    flights : int
        In the input.
    records : int
        In its topic, as a read_committed reader sees it; ``distinct`` flights are among them, and ``unknown`` records
        that are no flight of the input.
    open_transactions : int
        That have touched its topic and are not over.
    held_back : int
        Offsets between the last stable offset and the end: read_committed readers wait there.
    kills, struck : int
        How often its driver was killed, and how often in the middle of a batch of both sinks.
    seconds : float
        From the first start of the driver until the reader had every flight.
    """

    sink: Sink
    flights: int = 0
    records: int = 0
    distinct: int = 0
    unknown: int = 0
    open_transactions: int = 0
    held_back: int = 0
    kills: int = 0
    struck: int = 0
    seconds: float = 0.0

    @property
    def duplicates(self) -> int:
        """Records that are there a second time or more."""
        return self.records - self.distinct - self.unknown

    @property
    def missing(self) -> int:
        """Flights that are not there: still to come during the duel, lost after it."""
        return self.flights - self.distinct

    @property
    def problems(self) -> list[str]:
        """Sentences that say what is not exactly once; read this at the end."""
        found = {
            "lost": self.missing,
            "duplicated": self.duplicates,
            "never sent": self.unknown,
            "transactions left open": self.open_transactions,
            "offsets held back from readers": self.held_back,
        }
        return [f"{count:,} {what}" for what, count in found.items() if count]


@dataclass
class Story:
    """A duel over time, for the picture: seconds since the first start of the driver.

    Attributes
    ----------
    kills : list of float
        When both were killed.
    samples : list
        (second, flights sent, then for each sink different flights and duplicates).
    """

    kills: list[float] = field(default_factory=list)
    samples: list[tuple[float, int, tuple[int, int], tuple[int, int]]] = field(default_factory=list)

    def add(self, second: float, sent: int, scores: tuple[Score, Score]) -> None:
        """Keep how it stands."""
        first, second_one = ((s.distinct, s.duplicates) for s in scores)
        self.samples.append((second, sent, first, second_one))


def rows(scores: tuple[Score, Score]) -> list[tuple[str, str, str]]:
    """Return the final table: what is counted, Spark's count, ours."""

    def row(what: str, attribute: str) -> tuple[str, str, str]:
        first, second = (f"{getattr(s, attribute):,}" for s in scores)
        return what, first, second

    return [
        row("flights in", "flights"),
        row("killed with kill -9", "kills"),
        row("in the middle of a batch", "struck"),
        row("records out", "records"),
        row("duplicated", "duplicates"),
        row("lost", "missing"),
        row("transactions left open", "open_transactions"),
        row("offsets held back from readers", "held_back"),
        ("seconds, restarts included", _seconds(scores[0]), _seconds(scores[1])),
    ]


def _seconds(score: Score) -> str:
    return "never" if score.missing else f"{score.seconds:.0f}"


def markdown(scores: tuple[Score, Score]) -> str:
    """Return the final table in Markdown."""
    head = ["", *(f"{s.sink.title}, `{s.sink.format}`" for s in scores)]
    lines = [head, ["---", "---:", "---:"], *rows(scores)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("|  |", "| |")
