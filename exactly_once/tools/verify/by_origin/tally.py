"""The findings of a comparison by origin: grouped, counted, each with its first places. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from exactly_once.kafka.admin import Partition
from exactly_once.tools.verify.anomalies import MOST_PLACES, Anomaly, Finding
from exactly_once.tools.verify.by_origin import counts as c
from exactly_once.tools.verify.by_origin.content import (
    NO_LETTER,
    OTHER_INPUT,
    TWICE,
    Arrivals,
    Flags,
    Offsets,
    Replacing,
)
from exactly_once.tools.verify.expected import BatchRange

_PHANTOM = {
    c.OF_NO_RECORD: "offsets at which the input holds no record",
    c.OF_ABORTED: "aborted input records: the stream reads without kafka.isolation.level=read_committed",
    c.BEFORE: "input from before the stream's first offset",
    c.BEYOND: "input that no decided batch has read",
    c.TOO_MANY: "input records that have fewer outputs than this number",
}

_RESENT = {
    TWICE: (Anomaly.DUPLICATE, "for records of {letters} that were sent again already"),
    NO_LETTER: (Anomaly.PHANTOM, "for what {letters} does not hold"),
    OTHER_INPUT: (Anomaly.PHANTOM, "for records of {letters} that came from other input"),
}

#: Input records of a finding that are shown with what differs.
EXAMPLES = 3

#: Records of other writers, where nobody else may write.
FOREIGN = "output records that name no input record of the stream"


@dataclass
class _Group:
    """Records of one finding; ``shown`` are the input records to show with what differs."""

    records: int = 0
    places: list[str] = field(default_factory=list)
    shown: list[tuple[Partition, int]] = field(default_factory=list)


#: A function that returns how many records an input partition has between two offsets, and how many of them are wholly
#: in the outputs.
Present = Callable[[Partition, int, int], tuple[int, int]]


class FindingTally:
    """Findings by anomaly, partition and batch; ``unproven`` counts by reason."""

    def __init__(self, batches: Sequence[BatchRange] = ()):
        self._batches = batches
        self._groups: dict[tuple[Anomaly, str, str], _Group] = {}
        self._torn: list[Finding] = []
        self._lacking: set[str] = set()  # batches
        self.unproven: Counter[str] = Counter()

    def findings(self, text: Callable[[Partition, int], str] = lambda source, offset: "") -> list[Finding]:
        """All findings, by anomaly; ``text`` says how the outputs of an input record that is shown differ."""
        findings = [
            Finding(
                anomaly,
                f"{what}: {g.records:,}",
                batch,
                places=tuple(g.places),
                records=g.records,
                examples=tuple(f"{_name(p)}@{o}: {text(p, o)}".removesuffix(": ") for p, o in g.shown),
            )
            for (anomaly, what, batch), g in self._groups.items()
        ]
        return sorted([*findings, *self._torn], key=lambda f: list(Anomaly).index(f.anomaly))

    def missing(self, anomaly: Anomaly, source: Partition, offsets: Offsets) -> None:
        """Input records without all of their outputs: lost, or unseen."""
        why = "that are not in the outputs"
        if anomaly is Anomaly.UNSEEN:
            why = "whose outputs are in the log, but which readers cannot reach yet"
        for batch, mine in self._by_batch(source, offsets):
            self._input(anomaly, source, why, offsets[mine], batch)
            self._lacking.add(batch)

    def duplicates(self, some: Arrivals, which: Flags) -> None:
        """Output records of input that is in the outputs already."""
        source, where = _name(some.source), _name(some.where)
        found = np.flatnonzero(which)
        what = f"output records that came from records of {source} whose output was already there"
        for batch, mine in self._by_batch(some.source, some.offsets[found]):
            both = ((some.offsets[i], some.at[i]) for i in found[mine][:MOST_PLACES])
            places = (place for o, at in both for place in (f"{source}@{o}", f"{where}@{at}..{at}"))
            self._add(Anomaly.DUPLICATE, what, int(mine.sum()), places, batch)

    def phantoms(self, some: Arrivals, which: Flags, kind: int) -> None:
        """Output records that came from nothing that the stream should have read."""
        found = np.flatnonzero(which)
        if len(found):
            where, first = _name(some.where), int(some.offsets[found[0]])
            places = [f"{where}@{o}..{o}" for o in some.at[found[:MOST_PLACES]]]
            places.insert(1, f"{_name(some.source)}@{first}")
            self._add(Anomaly.PHANTOM, f"records of {where} that came from {_PHANTOM[kind]}", len(found), places)

    def sent_again(self, some: Replacing, which: Flags, kind: int) -> None:
        """Count records that were sent again and replace nothing."""
        letters, (anomaly, why) = _name(some.letters), _RESENT[kind]
        for partition, at, named in some.in_partitions(which):
            where = _name(partition)
            both = zip(at[:MOST_PLACES], named[:MOST_PLACES], strict=True)
            places = (place for o, letter in both for place in (f"{where}@{o}..{o}", f"{letters}@{letter}..{letter}"))
            what = f"records of {where} that were sent again {why.format(letters=letters)}"
            self._add(anomaly, what, len(at), places)

    def foreign(self, count: int, places: Iterable[str]) -> None:
        """Count records that name no input record, where nobody else may write."""
        self._add(Anomaly.PHANTOM, FOREIGN, count, places)

    def out_of_order(self, some: Arrivals, index: int, after: int) -> None:
        """Count the output record at ``index``, which is after one that came from the input offset ``after``."""
        source, where = _name(some.source), _name(some.where)
        what = f"records of {where} that come after records of later input of {source}"
        places = (f"{where}@{some.at[index]}..{some.at[index]}", f"{source}@{some.offsets[index]}", f"{source}@{after}")
        self._add(Anomaly.KEY_REORDER, what, 1, places)

    def torn(self, present: Present) -> None:
        """Find the batches of which something is missing, and something is there."""
        for batch in self._batches:
            if batch.batch not in self._lacking:
                continue
            sums = [present(p, start, stop) for p, (start, stop) in batch.offsets.items() if stop > start]
            records, whole = (sum(column) for column in zip(*sums, strict=True))
            if whole:
                what = f"{whole:,} of the {records:,} input records of the batch are in the outputs, the others are not"
                places = tuple(f"{_name(p)}@{a}..{b - 1}" for p, (a, b) in batch.offsets.items() if b > a)
                self._torn.append(
                    Finding(Anomaly.TORN_BATCH, what, batch.batch, "", places[:MOST_PLACES], records - whole)
                )

    def _add(self, anomaly: Anomaly, what: str, records: int, places: Iterable[str], batch: str = "") -> _Group:
        group = self._groups.setdefault((anomaly, what, batch), _Group())
        group.records += records
        group.places += islice(places, MOST_PLACES - len(group.places))
        return group

    def _input(self, anomaly: Anomaly, source: Partition, why: str, offsets: Offsets, batch: str = "") -> _Group:
        places = (f"{_name(source)}@{o}" for o in offsets[:MOST_PLACES])
        return self._add(anomaly, f"input records of {_name(source)} {why}", len(offsets), places, batch)

    def _by_batch(self, source: Partition, offsets: Offsets) -> Iterable[tuple[str, Flags]]:
        """Yield which of these offsets each batch has read; "" for batches that are not known."""
        left = np.ones(len(offsets), np.bool_)
        for batch in self._batches:
            start, stop = batch.offsets.get(source, (0, 0))
            mine = (offsets >= start) & (offsets < stop)
            if mine.any():
                left &= ~mine
                yield batch.batch, mine
        if left.any():
            yield "", left


class UnlikeTally(FindingTally):
    """The differences between two sinks of one input, by anomaly and input partition."""

    def __init__(self, old: str, new: str):
        super().__init__()
        self._why = {
            Anomaly.DIFFERS: f"of which {new} has other output than {old}",
            Anomaly.ONLY_OLD: f"of which {old} has output, and {new} has none",
            Anomaly.ONLY_NEW: f"of which {new} has output, and {old} has none",
        }

    def add(self, source: Partition, some: c.Unlike) -> None:
        for anomaly, why in self._why.items():
            offsets = some.offsets[some.flags(anomaly)]
            if len(offsets):
                group = self._input(anomaly, source, why, offsets)
                group.shown += [(source, int(o)) for o in offsets[: EXAMPLES - len(group.shown)]]

    def counts(self) -> dict[str, int]:
        """Return the number of input records by anomaly."""
        return {
            anomaly.value: sum(group.records for key, group in self._groups.items() if key[0] is anomaly)
            for anomaly in self._why
        }

    def examples(self) -> dict[Partition, set[int]]:
        """Return the input records that are shown."""
        found: dict[Partition, set[int]] = {}
        for source, offset in (place for group in self._groups.values() for place in group.shown):
            found.setdefault(source, set()).add(offset)
        return found


def _name(where: Partition) -> str:
    return f"{where[0]}-{where[1]}"
