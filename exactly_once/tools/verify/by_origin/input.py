"""Find the offsets of the input that hold records: markers, aborted records and compaction leave gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from exactly_once.kafka.admin import Admin, Partition
from exactly_once.tools.verify.by_origin.counts import ABORTED, NO_RECORD, RECORD, UNKNOWN, Bytes
from exactly_once.txn.scan import LogBatch, batches


class Existing:
    """Reads the input, a block at a time, mostly from one end to the other, with ``at_once`` bytes of each partition in
    memory; calls ``on_read`` with the number of offsets read.

    ``marks`` has the ends of each partition, ``removed`` the first offset that retention has left.
    """

    def __init__(
        self,
        admin: Admin,
        partitions: Iterable[Partition],
        budget_s: float,
        at_once: int,
        on_read: Callable[[int], None],
    ):
        self._admin, self._budget_s, self._at_once, self._on_read = admin, budget_s, at_once, on_read
        topics = sorted({topic for topic, _ in partitions})
        for topic in topics:
            admin.renew(budget_s).check_rights(topic, ("READ",))
        self.marks = admin.marks(topics)
        self.removed = {where: w.low for where, w in self.marks.items()}
        self._readers: dict[Partition, _Reader] = {}

    def kinds(self, where: Partition, start: int, stop: int) -> Bytes:
        """Return the kind of each offset from ``start`` to ``stop``."""
        kinds = np.full(stop - start, NO_RECORD, np.uint8)
        if where not in self.marks:  # the topic was recreated, with fewer partitions
            return np.full(stop - start, UNKNOWN, np.uint8)
        reader, ends = self._readers.get(where), self.marks[where]
        if reader is None or reader.at != start:
            first = max(start, self.removed[where])
            its = batches(self._admin, where, first, ends.last_stable, ends.high, self._at_once)
            reader = self._readers[where] = _Reader(start, its)
        for batch in reader.until(stop):
            _mark(kinds, batch, start)
        self._on_read(stop - start)
        low = self._admin.renew(self._budget_s).earliest([where])[where]
        self.removed[where] = max(self.removed[where], low)
        kinds[: max(0, low - start)] = UNKNOWN
        kinds[max(0, ends.high - start) :] = UNKNOWN  # the topic was recreated, and is shorter
        return kinds


class _Reader:
    """Batches of a partition, and the offset up to which they were taken."""

    def __init__(self, at: int, batches: Iterator[LogBatch]):
        self.at, self._batches = at, batches
        self._ahead: LogBatch | None = None

    def until(self, stop: int) -> Iterator[LogBatch]:
        """Yield the next batches with offsets before ``stop``; one that goes beyond comes again next time."""
        self.at = stop
        while (batch := self._ahead or next(self._batches, None)) is not None:
            self._ahead = batch if batch.last_offset >= stop else None
            if batch.base_offset < stop:
                yield batch
            if self._ahead is not None:
                return


def _mark(kinds: Bytes, batch: LogBatch, start: int) -> None:
    """Note the records of ``batch`` in the kinds of the offsets from ``start`` on."""
    if batch.marker is not None:
        return
    kind = RECORD if not batch.hidden else ABORTED if batch.stable else UNKNOWN
    if batch.count == batch.last_offset - batch.base_offset + 1:
        kinds[max(0, batch.base_offset - start) : max(0, batch.last_offset + 1 - start)] = kind
        return
    offsets = np.fromiter((r.offset for r in batch.records()), np.int64, batch.count) - start  # compacted
    kinds[offsets[(offsets >= 0) & (offsets < len(kinds))]] = kind
