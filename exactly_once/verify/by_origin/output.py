"""Reading the outputs whole, all of their partitions in step, and taking from each record where it came from."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.protocol.batch_headers import own_headers
from exactly_once.txn.scan import MANY_BYTES, LogBatch, batches
from exactly_once.verify.anomalies import MOST_PLACES
from exactly_once.verify.by_origin.counts import Offsets
from exactly_once.verify.by_origin.origin import OriginPlace, Places, SaysOrigin, Unreadable

#: Records that are judged together: enough that a call of numpy does not count, few beside what a fetch brings.
TOGETHER = 20_000

#: Of all partitions that are read in step.
_MOST_BYTES = 128 * 1024 * 1024

#: Of one partition: a record may be as large, and is read whole all the same.
_FEWEST_BYTES = 64 * 1024

_MASK = (1 << 64) - 1

#: ``hash_of(record, source, where)``, in 64 bits; of one process, for Python seeds its hashes.
HashOf = Callable[[Any, Partition, Partition], int]


def hash_of_key(record: Any, source: Partition, where: Partition) -> int:
    """Return a hash of the record's key and of where it came from and stands; 0 without a key."""
    return 0 if record.key is None else hash((record.key, source, where)) & _MASK or 1


def hash_of_content(without: str = "") -> HashOf:
    """Return what hashes :func:`content_of` a record, wherever it stands."""
    return lambda record, source, where: hash(content_of(record, without)) & _MASK


class Content(NamedTuple):
    """The result of a stream's function for one record: not its place, nor what the sink added."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def content_of(record: Any, without: str = "") -> Content:
    """Return the content of a record, as kafka-python has it; ``without`` the header of this name."""
    own, _ = own_headers(record.headers)
    return Content(record.key, record.value, tuple((name, value) for name, value in own if name != without))


@dataclass
class Arrivals:
    """Records of one output partition that came from one partition of the input, in the order of the output.

    Attributes
    ----------
    offsets, ks, at, hashes : array
        Of the input record; which of its outputs each is, -1 when it does not say; the offset of the output record;
        the hash of it that was asked for, else 0.
    """

    where: Partition
    source: Partition
    offsets: Offsets
    ks: Offsets
    at: Offsets
    hashes: npt.NDArray[np.uint64]


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

    Parameters
    ----------
    progress : callable
        How far the stream had come at an input record: partitions of the output that are behind are read first, so
        that what belongs together is read at about the same time.
    hash_of : callable, optional
        What to hash of each record.
    on_read : callable
        Is told how many offsets were read.
    """

    def __init__(
        self,
        admin: Admin,
        marks: Mapping[Partition, Watermarks],
        origin: SaysOrigin,
        inputs: Sequence[str],
        progress: Callable[[Partition, int], int],
        hash_of: HashOf | None,
        on_read: Callable[[int], None],
    ):
        self._admin, self._marks, self._origin, self._places = admin, marks, origin, Places(inputs)
        self._progress, self._hash_of, self._on_read = progress, hash_of, on_read
        self.foreign = Foreign()
        self.read = 0

    def committed(self) -> Iterator[Arrivals]:
        """Yield what a read_committed reader gets."""
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
            for found in self._taken(reader.where, some):
                yield found
                reader.reached[found.source] = self._progress(found.source, int(found.offsets[-1]))
            self._on_read(reader.at - before)
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
        for batch in batches(self._admin, where, start, stop, stop):
            for record in batch.records() if batch.marker is None and not batch.hidden else ():
                said = text(record) if start <= record.offset < stop else None
                with suppress(Unreadable):
                    place = self._places.read(said) if said is not None else None
                    if place is not None:
                        yield place, record

    def _taken(self, where: Partition, some: Sequence[LogBatch]) -> Iterator[Arrivals]:
        sources: dict[Partition, int] = {}
        which: list[int] = []
        offsets: list[int] = []
        ks: list[int] = []
        at: list[int] = []
        hashes: list[int] = []
        text, read, hash_of = self._origin.of(where), self._places.read, self._hash_of
        count = 0
        for batch in some:
            for record in batch.records():
                count += 1
                said = text(record)
                if said is None:
                    self.foreign.add(where, record.offset)
                    continue
                try:
                    place = read(said)
                except Unreadable as e:
                    self.foreign.add(where, record.offset, str(e) if self._origin.certain else "")
                    continue
                if place is None:
                    self.foreign.add(where, record.offset)
                    continue
                source = place[0]
                which.append(sources.setdefault(source, len(sources)))
                offsets.append(place[1])
                ks.append(place[2])
                at.append(record.offset)
                if hash_of is not None:
                    hashes.append(hash_of(record, source, where))
        self.read += count
        came, numbered, stands = (np.array(c, np.int64) for c in (offsets, ks, at))
        hashed = np.array(hashes if hash_of is not None else [0] * len(at), np.uint64)
        numbers = np.array(which, np.int64)
        for source, number in sources.items():
            mine = slice(None) if len(sources) == 1 else np.flatnonzero(numbers == number)
            yield Arrivals(where, source, came[mine], numbered[mine], stands[mine], hashed[mine])


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
