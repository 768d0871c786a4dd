"""Reading the outputs whole, all of their partitions in step, and taking from each record where it came from."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from exactly_once.error_headers import CODE, RESENT, replaced_in
from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.tools.verify.anomalies import MOST_PLACES
from exactly_once.tools.verify.by_origin.columns import ABSENT, FieldBytes, OriginColumns, RecordColumns
from exactly_once.tools.verify.by_origin.content import MASK, Arrivals, Flags, Hashes, Offsets, Replacing, content_hash
from exactly_once.tools.verify.by_origin.origin import OriginPlace, Places, SaysOrigin, TextOf, Unreadable, named
from exactly_once.txn.scan import MANY_BYTES, LogBatch, batches

#: Records that are judged together: enough that a call of numpy does not count, few beside what a fetch brings.
TOGETHER = 20_000

#: Most memory of all partitions that are read in step.
_MOST_BYTES = 128 * 1024 * 1024

#: Least memory of one partition; a larger record is read whole all the same.
_FEWEST_BYTES = 64 * 1024

#: Most offsets between two letters that are read in one go.
_GAP = 1_000

#: Budget for the ends of a partition.
_ASK_S = 30.0


@dataclass
class Foreign:
    """Records that name no record of the input: other writers'. ``unreadable`` of them have a text that should name one
    and cannot be read; ``places`` has the first of these, each with what it says; ``topics`` counts all by topic.
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
    """The outputs, from the beginning to the ends that ``marks`` name, which may begin later than ``lows``: the first
    offsets that retention has left.

    A record that was sent again is no arrival: it is kept in ``resent``, as long as retention has left its letter.
    Hashes are those of key, input partition and output partition, 0 without a key; ``by_content``, of the content.
    ``progress`` says how far the stream had come at an input record: partitions of the output that are behind are read
    first, so that what belongs together is read at about the same time.
    """

    def __init__(
        self,
        admin: Admin,
        marks: Mapping[Partition, Watermarks],
        lows: Mapping[Partition, int],
        origin: SaysOrigin,
        inputs: Sequence[str],
        progress: Callable[[Partition, int], int],
        by_content: bool = False,
    ):
        self._admin, self._origin, self._places = admin, origin, Places(inputs)
        self.marks, self.topics = marks, self._places.topics
        self._lows, self._letters = lows, Places({topic for topic, _ in marks})
        self._progress, self._by_content = progress, by_content
        self.foreign, self.resent = Foreign(), list[Arrivals]()
        self.read = 0

    def committed(self, on_read: Callable[[int], None]) -> Iterator[Arrivals]:
        """Yield what a read_committed reader gets; ``on_read`` is told how many offsets were read."""
        at_once = bytes_at_once(len(self.marks))
        readers = [
            _Reader(where, batches(self._admin, where, w.low, w.last_stable, w.last_stable, at_once), w.low)
            for where, w in self.marks.items()
        ]
        behind = [(0, n) for n in range(len(readers))]
        while behind:
            _, n = heapq.heappop(behind)
            reader = readers[n]
            before = reader.at
            some = [b for b in reader.next(TOGETHER, at_once) if b.marker is None and not b.hidden]
            for found in self._taken(reader.where, some, self.resent):
                yield found
                reader.reached[found.source] = self._progress(found.source, int(found.offsets[-1]))
            on_read(reader.at - before)
            if not reader.over:
                heapq.heappush(behind, (sum(reader.reached.values()), n))

    def first_of(self, where: Partition) -> list[Arrivals]:
        """Return the first arrivals of a partition, and count nothing."""
        counted, self.foreign, w = (self.foreign, self.read), Foreign(), self.marks[where]
        found = batches(self._admin, where, w.low, w.last_stable, w.last_stable, _FEWEST_BYTES)
        some = [b for b in _Reader(where, found, w.low).next(TOGETHER, MANY_BYTES) if b.marker is None and not b.hidden]
        try:
            return list(self._taken(where, some))
        finally:
            self.foreign, self.read = counted

    def held_back(self) -> Iterator[Arrivals]:
        """Yield what is in the log after the last stable offset, and was not aborted."""
        for where, w in self.marks.items():
            if w.last_stable >= w.high:
                continue
            ends: dict[int, list[tuple[int, bool]]] = {}
            for batch in batches(self._admin, where, w.last_stable, w.last_stable, w.high):
                if batch.marker is not None:
                    ends.setdefault(batch.producer_id, []).append((batch.base_offset, batch.marker))
            some: list[LogBatch] = []
            for batch in batches(self._admin, where, w.last_stable, w.last_stable, w.high):
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
        return self.marks[where].low <= offset < self.marks[where].last_stable

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
        records, texts, alone = self._columns(some)
        origins = OriginColumns.of(records, texts, self.topics)
        inside = records.offsets >= self.marks[where].low  # a batch may be cut by retention, or by the window
        origins.topics[alone | ~inside] = -1
        hashes, again = np.zeros(len(alone), np.uint64), Resent()
        for row, record in _one_by_one(some, np.flatnonzero(inside & (origins.topics < 0)), alone):
            if record is None:
                said, at = records.text(texts, row), int(records.offsets[row])
                place = self._own_or_foreign(where, at, partial(self._places.read_any, said))
            else:
                place = self.place_of(where, record, again)
            if place is not None:
                origins.put(row, place, self.topics)
                if self._by_content:
                    hashes[row] = content_hash(record, self._origin.header)
        self.read += int(inside.sum())
        if resent is not None:
            resent += again.arrivals(where)
        if not self._by_content:
            hashes = records.hashes(records.keys)
        for source, rows in origins.by_partition(self.topics):
            its = hashes[rows]
            if not self._by_content:
                its = salted(its, records.keys.length[rows] < 0, source, where)
            yield Arrivals(where, source, origins.offsets[rows], origins.ks[rows], records.offsets[rows], its)

    def _columns(self, some: Sequence[LogBatch]) -> tuple[RecordColumns, FieldBytes, Flags]:
        """Return the records with the texts of their origins, and which of them have to be decoded one by one."""
        header, way = self._origin.header, "" if self._by_content else self._origin.way
        records = RecordColumns(some, (CODE, RESENT, header) if header else (CODE, RESENT))
        texts = {"header": records.headers.get(header), "key": records.keys, "value": records.values}.get(way)
        if texts is None:
            return records, records.keys, np.ones(len(records.offsets), np.bool_)
        special = [records.headers[name].length != ABSENT for name in (CODE, RESENT)]
        return records, texts, special[0] | special[1]

    def place_of(self, where: Partition, record: Any, again: Resent) -> OriginPlace | None:
        """Return the input record that a record names; None for another writer's, which is counted, and for what was
        sent again, which goes to ``again``.
        """
        text, replaced = self._origin.of(where), replaced_in(record.headers)
        letter = self._letter(replaced) if replaced is not None else None
        if letter is not None:
            hashed = content_hash(record, self._origin.header) if self._by_content else 0
            again.add(letter, record.offset, origin_hash(self._read(record, text)), hashed)
            return None
        return self._own_or_foreign(where, record.offset, lambda: named(record, text, self._places))

    def _own_or_foreign(self, where: Partition, at: int, read: Callable[[], OriginPlace | None]) -> OriginPlace | None:
        why = ""
        try:
            place = read()
        except Unreadable as e:
            place, why = None, str(e) if self._origin.certain else ""
        if place is None:
            self.foreign.add(where, at, why)
        return place

    def _letter(self, said: bytes) -> OriginPlace | None:
        """Return the letter that a record names; None for another stream's, and for one that is no longer there: then
        the record stands for itself.
        """
        with suppress(Unreadable):
            letter = self._letters.read(said)
            return letter if letter is not None and letter.offset >= self._lows.get(letter.partition, 0) else None
        return None


def origin_hash(place: OriginPlace | None) -> int:
    """Return a hash of what a record came from, in 63 bits and of this process; 0 when it does not say."""
    return 0 if place is None else hash(place) & (MASK >> 1) or 1


def salted(hashes: Hashes, without: Flags, source: Partition, where: Partition) -> Hashes:
    """Return hashes of key, input partition and output partition of those of keys; 0 for records ``without`` a key."""
    found = hashes ^ np.uint64(hash((source, where)) & MASK)
    found[found == 0] = 1
    found[without] = 0
    return found


class Resent:
    """Records that were sent again, on their way into arrays, by the partition of the letter that each names."""

    def __init__(self) -> None:
        self._partitions: dict[Partition, int] = {}
        self._which: list[int] = []
        self._rows: list[tuple[int, int, int]] = []
        self._hashes: list[int] = []

    def add(self, letter: OriginPlace, at: int, came_from: int, hashed: int) -> None:
        self._which.append(self._partitions.setdefault(letter.partition, len(self._partitions)))
        self._rows.append((letter.offset, at, came_from))
        self._hashes.append(hashed)

    def arrivals(self, where: Partition) -> Iterator[Arrivals]:
        rows = np.array(self._rows, np.int64).reshape(-1, 3)
        hashes, which = np.array(self._hashes, np.uint64), np.array(self._which, np.int64)
        for partition, number in self._partitions.items():
            mine = slice(None) if len(self._partitions) == 1 else np.flatnonzero(which == number)
            yield Arrivals(where, partition, rows[mine, 0], rows[mine, 2], rows[mine, 1], hashes[mine])


class _Reader:
    def __init__(self, where: Partition, found: Iterator[LogBatch], at: int):
        self.where, self._batches, self.at = where, found, at
        self.over = False
        self.reached: dict[Partition, int] = {}

    def next(self, records: int, most_bytes: int) -> list[LogBatch]:
        """Return batches with about as many records, and not many more bytes."""
        some, count, size = [], 0, 0
        while count < records and size < most_bytes:
            batch = next(self._batches, None)
            if batch is None:
                self.over = True
                break
            some.append(batch)
            count += batch.count
            size += len(batch.raw)
            self.at = batch.last_offset + 1
        return some


def _one_by_one(some: Sequence[LogBatch], rows: Offsets, alone: Flags) -> Iterator[tuple[int, Any]]:
    """Yield these rows, each with its record if it stands ``alone``, else with None."""
    ends = np.cumsum([batch.count for batch in some])
    for batch, end, its in zip(some, ends, np.split(rows, np.searchsorted(rows, ends)), strict=False):
        records = list(batch.records()) if alone[its].any() else []
        first = int(end) - batch.count
        yield from ((row, records[row - first] if alone[row] else None) for row in its.tolist())


def _aborted(batch: LogBatch, ends: Mapping[int, list[tuple[int, bool]]]) -> bool:
    """Return whether the next end marker of its producer says that it was aborted."""
    return next((not commit for at, commit in ends.get(batch.producer_id, ()) if at > batch.last_offset), False)
