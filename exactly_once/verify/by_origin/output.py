"""Reading the outputs whole, all of their partitions in step, and taking from each record where it came from."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.txn.scan import MANY_BYTES, LogBatch, batches
from exactly_once.verify.anomalies import MOST_PLACES
from exactly_once.verify.by_origin.counts import Offsets
from exactly_once.verify.by_origin.origin import Places, SaysOrigin, Unreadable

#: Records that are judged together: enough that a call of numpy does not count, few beside what a fetch brings.
TOGETHER = 20_000

#: Of all partitions that are read in step.
_MOST_BYTES = 128 * 1024 * 1024

#: Of one partition: a record may be as large, and is read whole all the same.
_FEWEST_BYTES = 64 * 1024

_MASK = (1 << 64) - 1


@dataclass
class Arrivals:
    """Records of one output partition that came from one partition of the input, in the order of the output.

    Attributes
    ----------
    offsets, ks, at, keys : array
        Of the input record; which of its outputs each is, -1 when it does not say; the offset of the output record;
        a hash of its key, 0 without one.
    """

    where: Partition
    source: Partition
    offsets: Offsets
    ks: Offsets
    at: Offsets
    keys: npt.NDArray[np.uint64]


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
    """

    count: int = 0
    unreadable: int = 0
    places: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)

    def add(self, where: Partition, offset: int, why: str = "") -> None:
        """Count a record; ``why`` it cannot be read, when it should name its origin."""
        self.count += 1
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
    keys : bool
        Whether hashes of keys are wanted.
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
        keys: bool,
        on_read: Callable[[int], None],
    ):
        self._admin, self._marks, self._origin, self._places = admin, marks, origin, Places(inputs)
        self._progress, self._keys, self._on_read = progress, keys, on_read
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

    def _taken(self, where: Partition, some: Sequence[LogBatch]) -> Iterator[Arrivals]:
        sources: dict[Partition, int] = {}
        which: list[int] = []
        offsets: list[int] = []
        ks: list[int] = []
        at: list[int] = []
        keys: list[int] = []
        text, read, want_keys = self._origin.of(where), self._places.read, self._keys
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
                if want_keys:
                    key = record.key
                    keys.append(0 if key is None else hash((key, source, where)) & _MASK or 1)
        self.read += count
        came, numbered, stands = (np.array(c, np.int64) for c in (offsets, ks, at))
        hashes = np.array(keys if want_keys else [0] * len(at), np.uint64)
        numbers = np.array(which, np.int64)
        for source, number in sources.items():
            mine = slice(None) if len(sources) == 1 else np.flatnonzero(numbers == number)
            yield Arrivals(where, source, came[mine], numbered[mine], stands[mine], hashes[mine])


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
