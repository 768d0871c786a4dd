"""The records that outputs may lack, because retention or compaction has removed them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from exactly_once.kafka.admin import Partition
from exactly_once.verify.by_origin.content import Arrivals, Offsets
from exactly_once.verify.expected import BatchRange
from exactly_once.verify.window import Positions


class Removed:
    """By input partition, the offset before which a record without an output proves nothing.

    Parameters
    ----------
    truncated : iterable of (str, int)
        Output partitions whose first records retention has removed.
    batches : sequence of BatchRange
        The batches of the stream whose input is known.
    ends : mapping
        Where the input ends that is compared.
    everywhere : bool
        No record that is missing proves anything: a topic is compacted.
    short : bool
        Nor does one in what was read, for more of it may lie before that.

    Attributes
    ----------
    everywhere : bool
        As given.
    """

    def __init__(
        self,
        truncated: Iterable[Partition],
        batches: Sequence[BatchRange],
        ends: Positions,
        everywhere: bool,
        short: bool = False,
    ):
        self._truncated, self._batches, self._ends, self.everywhere = frozenset(truncated), batches, ends, everywhere
        self._short = short
        self._before: dict[Partition, int] = {}
        self._entered: dict[Partition, set[Partition]] = {}  # input partitions by output partition

    def enter(self, some: Arrivals, offsets: Offsets) -> None:
        """Note what the first records of an output say, whose older ones are gone: a stream writes batch after batch,
        so those were of the batch of the first one, or of batches before it.
        """
        if some.where not in self._truncated or not len(offsets):
            return
        seen = self._entered.setdefault(some.where, set())
        if not seen:
            batch = batch_of(self._batches, some.source, int(offsets[0]))
            if batch is not None:
                seen |= set(self._ends)
                for source in self._ends:
                    self._raise(source, batch.offsets.get(source, (0, 0))[1])
        if some.source not in seen:  # no decision tells: what came in one go will be a batch or more
            seen.add(some.source)
            self._raise(some.source, int(offsets.max()) + 1)

    def before(self, source: Partition) -> int:
        """Return the offset of an input partition, by what was entered."""
        entered = all(source in self._entered.get(where, ()) for where in self._truncated)
        sure = entered and not (self.everywhere or self._short)
        return self._before.get(source, 0) if sure else self._ends[source]

    def _raise(self, source: Partition, offset: int) -> None:
        self._before[source] = max(self._before.get(source, 0), offset)


def batch_of(batches: Iterable[BatchRange], source: Partition, offset: int) -> BatchRange | None:
    """Return the batch that read this record; None when that is not known."""
    for batch in batches:
        start, stop = batch.offsets.get(source, (0, 0))
        if start <= offset < stop:
            return batch
    return None
