"""Reading the outputs whole, all of their partitions in step, and taking from each record where it came from."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from exactly_once.error_headers import CODE, replaced_in
from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.txn.scan import MANY_BYTES, LogBatch, batches
from exactly_once.verify.anomalies import MOST_PLACES
from exactly_once.verify.by_origin.content import MASK, Arrivals, HashOf
from exactly_once.verify.by_origin.origin import OriginPlace, Places, SaysOrigin, TextOf, Unreadable, named
from exactly_once.verify.by_origin.resent import Replacing

#: Records that are judged together: enough that a call of numpy does not count, few beside what a fetch brings.
TOGETHER = 20_000

#: Of all partitions that are read in step.
_MOST_BYTES = 128 * 1024 * 1024

#: Of one partition: a record may be as large, and is read whole all the same.
_FEWEST_BYTES = 64 * 1024

#: Letters that are no further apart are read in one go.
_GAP = 1_000

#: For the ends of a partition.
_ASK_S = 30.0


@dataclass
class Foreign:
    """Records that name no record of the input: other writers'.

    Attributes
    ----------
    count : int
    unreadable : int
        How many of them have a text that should name one and cannot be read.
    places : list of str
        Of the first unreadable ones, each with what it says.
    topics : Counter
        How many stand in each topic.
    """

    count: int = 0
    unreadable: int = 0
    places: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    topics: Counter[str] = field(default_factory=Counter)

    def add(self, where: Partition, offset: int, why: str = "") -> None:
        """Count a record; ``why`` it cannot be read, when it should name its origin."""
        self.count += 1
        self.topics[where[0]] += 1
        place = f"{where[0]}-{where[1]}@{offset}"
        if len(self.first) < MOST_PLACES:
            self.first.append(place)
        if why:
            self.unreadable += 1
            if len(self.places) < MOST_PLACES:
                self.places.append(f"{place}: {why}")


def bytes_at_once(partitions: int) -> int:
    """Bytes that each of so many partitions may hold in memory when all are read in step."""
    return max(_FEWEST_BYTES, min(MANY_BYTES, _MOST_BYTES // max(1, partitions)))


class Outputs:
    """The outputs, from the beginning to the ends that ``marks`` name.

    A record that was sent again is no arrival: it is kept apart, as long as retention has left its letter.

    Parameters
    ----------
    lows : mapping
        By partition, the first offset that retention has left: ``marks`` may begin later.
    progress : callable
        How far the stream had come at an input record: partitions of the output that are behind are read first, so
        that what belongs together is read at about the same time.
    hash_of : callable, optional
        What to hash of each record.

    Attributes
    ----------
    resent : list of Arrivals
        What was sent again, of :meth:`committed`.
    """

    def __init__(
        self,
        admin: Admin,
        marks: Mapping[Partition, Watermarks],
        lows: Mapping[Partition, int],
        origin: SaysOrigin,
        inputs: Sequence[str],
        progress: Callable[[Partition, int], int],
        hash_of: HashOf | None,
    ):
        self._admin, self._marks, self._origin, self._places = admin, marks, origin, Places(inputs)
        self._lows, self._letters = lows, Places({topic for topic, _ in marks})
        self._progress, self._hash_of = progress, hash_of
        self.foreign, self.resent = Foreign(), list[Arrivals]()
        self.read = 0

    def committed(self, on_read: Callable[[int], None]) -> Iterator[Arrivals]:
        """Yield what a read_committed reader gets; ``on_read`` is told how many offsets were read."""
        at_once = bytes_at_once(len(self._marks))
        readers = [
            _Reader(where, batches(self._admin, where, w.low, w.last_stable, w.last_stable, at_once), w.low)
            for where, w in self._marks.items()
        ]
        behind = [(0, n) for n in range(len(readers))]
        while behind:
            _, n = heapq.heappop(behind)
            reader = readers[n]
            before = reader.at
            some = [b for b in reader.next(TOGETHER) if b.marker is None and not b.hidden]
            for found in self._taken(reader.where, some, self.resent):
                yield found
                reader.reached[found.source] = self._progress(found.source, int(found.offsets[-1]))
            on_read(reader.at - before)
            if not reader.over:
                heapq.heappush(behind, (sum(reader.reached.values()), n))

    def held_back(self) -> Iterator[Arrivals]:
        """Yield what is in the log after the last stable offset, and was not aborted."""
        for where, w in self._marks.items():
            if w.last_stable >= w.high:
                continue
            ends: dict[int, list[tuple[int, bool]]] = {}
            for batch in batches(self._admin, where, w.last_stable, w.last_stable, w.high):
                if batch.marker is not None:
                    ends.setdefault(batch.producer_id, []).append((batch.base_offset, batch.marker))
            found = batches(self._admin, where, w.last_stable, w.last_stable, w.high)
            some: list[LogBatch] = []
            for batch in found:
                if batch.marker is None and not (batch.transactional and _aborted(batch, ends)):
                    some.append(batch)
                    if sum(b.count for b in some) >= TOGETHER:
                        yield from self._taken(where, some)
                        some = []
            yield from self._taken(where, some)

    def again(self, where: Partition, start: int, stop: int) -> Iterator[tuple[OriginPlace, Any]]:
        """Yield the committed records of an output partition that name their input, each with its place: a second look
        at some that were read before.
        """
        text = self._origin.of(where)
        for record in self._between(where, start, stop):
            place = self._read(record, text)
            if place is not None:
                yield place, record

    def letters(self, some: Replacing) -> Iterator[tuple[OriginPlace | None, Any]]:
        """Yield the letters that records name, in their order, each with the input record that it names."""
        low, stable = self.ends_of(some.letters)
        wanted = np.unique(some.offsets)
        wanted = wanted[(wanted >= low) & (wanted < stable)]
        text = self._origin.of(some.letters)
        for run in np.split(wanted, np.flatnonzero(np.diff(wanted) > _GAP) + 1) if len(wanted) else ():
            of = set(run.tolist())
            for record in self._between(some.letters, int(run[0]), int(run[-1]) + 1):
                if record.offset in of and any(name == CODE for name, _ in record.headers):
                    yield self._read(record, text), record

    def has_read(self, where: Partition, offset: int) -> bool:
        """Return whether :meth:`committed` came by this offset."""
        return self._marks[where].low <= offset < self._marks[where].last_stable

    def ends_of(self, where: Partition) -> tuple[int, int]:
        """Return the first offset of a partition by now, and the last stable one; 0 and 0 where there is none."""
        marks = self._admin.renew(_ASK_S).watermarks(where[0]).get(where[1])
        return (0, 0) if marks is None else (marks.low, marks.last_stable)

    def _between(self, where: Partition, start: int, stop: int) -> Iterator[Any]:
        """Yield the committed records from ``start`` to ``stop``."""
        for batch in batches(self._admin, where, start, stop, stop):
            if batch.marker is None and not batch.hidden:
                yield from (record for record in batch.records() if start <= record.offset < stop)

    def _read(self, record: Any, text: TextOf) -> OriginPlace | None:
        with suppress(Unreadable):
            return named(record, text, self._places)
        return None

    def _taken(
        self, where: Partition, some: Sequence[LogBatch], resent: list[Arrivals] | None = None
    ) -> Iterator[Arrivals]:
        """Yield what names its input; what was sent again goes to ``resent``."""
        arrived, again, count, text = _Columns(), _Columns(), 0, self._origin.of(where)
        low = self._marks[where].low
        for batch in some:
            for record in batch.records():
                if record.offset < low:  # of a batch that retention, or the window, has cut
                    continue
                count += 1
                said = replaced_in(record.headers)
                letter = self._letter(said) if said is not None else None
                if letter is not None:
                    came_from = origin_hash(self._read(record, text))
                    again.add(letter, record.offset, came_from, self._hash(record, letter, where))
                    continue
                place = self._place_of(where, record, text)
                if place is not None:
                    arrived.add(place, record.offset, place.k, self._hash(record, place, where))
        self.read += count
        if resent is not None:
            resent += again.arrivals(where)
        yield from arrived.arrivals(where)

    def _hash(self, record: Any, place: OriginPlace, where: Partition) -> int:
        return self._hash_of(record, place.partition, where) if self._hash_of is not None else 0

    def _letter(self, said: bytes) -> OriginPlace | None:
        """Return the letter that a record names; None for another stream's, and for one that is no longer there: then
        the record stands for itself.
        """
        with suppress(Unreadable):
            letter = self._letters.read(said)
            return letter if letter is not None and letter.offset >= self._lows.get(letter.partition, 0) else None
        return None

    def _place_of(self, where: Partition, record: Any, text: TextOf) -> OriginPlace | None:
        """Return what a record names; None for another writer's, which is counted."""
        why = ""
        try:
            place = named(record, text, self._places)
        except Unreadable as e:
            place, why = None, str(e) if self._origin.certain else ""
        if place is None:
            self.foreign.add(where, record.offset, why)
        return place


def origin_hash(place: OriginPlace | None) -> int:
    """Return a hash of what a record came from, in 63 bits and of this process; 0 when it does not say."""
    return 0 if place is None else hash(place) & (MASK >> 1) or 1


class _Columns:
    """Records on their way into arrays, by the partition that each names."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, int] = {}
        self._which: list[int] = []
        self._rows: list[tuple[int, int, int]] = []
        self._hashes: list[int] = []

    def add(self, place: OriginPlace, at: int, number: int, hashed: int) -> None:
        self._which.append(self._partitions.setdefault(place.partition, len(self._partitions)))
        self._rows.append((place.offset, at, number))
        self._hashes.append(hashed)

    def arrivals(self, where: Partition) -> Iterator[Arrivals]:
        rows = np.array(self._rows, np.int64).reshape(-1, 3)
        hashes, which = np.array(self._hashes, np.uint64), np.array(self._which, np.int64)
        for partition, number in self._partitions.items():
            mine = slice(None) if len(self._partitions) == 1 else np.flatnonzero(which == number)
            yield Arrivals(where, partition, rows[mine, 0], rows[mine, 2], rows[mine, 1], hashes[mine])


class _Reader:
    """The batches of an output partition, and how far it has come."""

    def __init__(self, where: Partition, found: Iterator[LogBatch], at: int):
        self.where, self._batches, self.at = where, found, at
        self.over = False
        self.reached: dict[Partition, int] = {}

    def next(self, records: int) -> list[LogBatch]:
        """Batches with about as many records."""
        some, count = [], 0
        while count < records:
            batch = next(self._batches, None)
            if batch is None:
                self.over = True
                break
            some.append(batch)
            count += batch.count
            self.at = batch.last_offset + 1
        return some


def _aborted(batch: LogBatch, ends: Mapping[int, list[tuple[int, bool]]]) -> bool:
    """Return whether the next end marker of its producer says that it was aborted."""
    return next((not commit for at, commit in ends.get(batch.producer_id, ()) if at > batch.last_offset), False)
