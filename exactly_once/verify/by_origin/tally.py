"""The findings of a comparison by origin: grouped, counted, each with its first places. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from exactly_once.kafka.admin import Partition
from exactly_once.verify.anomalies import MOST_PLACES, Anomaly, Finding
from exactly_once.verify.by_origin import counts as c
from exactly_once.verify.by_origin.content import Arrivals, Offsets
from exactly_once.verify.by_origin.counts import Flags
from exactly_once.verify.by_origin.pairs import Unlike
from exactly_once.verify.by_origin.resent import NO_LETTER, OTHER_INPUT, TWICE, Replacing
from exactly_once.verify.expected import BatchRange

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
    records: int = 0
    places: list[str] = field(default_factory=list)
    examples: list[int] = field(default_factory=list)

    def add(self, records: int, places: Iterable[str]) -> None:
        self.records += records
        for place in places:
            if len(self.places) >= MOST_PLACES:
                break
            self.places.append(place)


#: Returns how many records an input partition has from one offset to another, and how many are wholly in the outputs.
Present = Callable[[Partition, int, int], tuple[int, int]]


class FindingTally:
    """Findings by anomaly, partition and batch.

    Attributes
    ----------
    unproven : Counter
        By reason.
    """

    def __init__(self, batches: Sequence[BatchRange]):
        self._batches = batches
        self._groups: dict[tuple[Anomaly, str, str], _Group] = {}
        self._torn: list[Finding] = []
        self._lacking: set[str] = set()  # batches
        self.unproven: Counter[str] = Counter()

    def findings(self) -> list[Finding]:
        """All findings, by anomaly."""
        found = [
            Finding(anomaly, what.format(n=g.records), batch, "", tuple(g.places), g.records)
            for (anomaly, what, batch), g in self._groups.items()
        ]
        order = list(Anomaly)
        return sorted([*found, *self._torn], key=lambda f: order.index(f.anomaly))

    def missing(self, anomaly: Anomaly, source: Partition, offsets: Offsets) -> None:
        """Input records without all of their outputs: lost, or unseen."""
        name = f"{source[0]}-{source[1]}"
        for batch, mine in self._by_batch(source, offsets):
            some = offsets[mine]
            what = f"input records of {name} that are not in the outputs: {{n:,}}"
            if anomaly is Anomaly.UNSEEN:
                what = (
                    f"input records of {name} whose outputs are in the log, but which readers cannot reach yet: {{n:,}}"
                )
            self._group(anomaly, what, batch).add(len(some), (f"{name}@{o}" for o in some[:MOST_PLACES]))
            self._lacking.add(batch)

    def duplicates(self, some: Arrivals, which: Flags) -> None:
        """Output records of input that is in the outputs already."""
        source, where = _name(some.source), _name(some.where)
        found = np.flatnonzero(which)
        what = f"output records that came from records of {source} whose output was already there: {{n:,}}"
        for batch, mine in self._by_batch(some.source, some.offsets[found]):
            both = ((some.offsets[i], some.at[i]) for i in found[mine][:MOST_PLACES])
            places = (place for o, at in both for place in (f"{source}@{o}", f"{where}@{at}..{at}"))
            self._group(Anomaly.DUPLICATE, what, batch).add(int(mine.sum()), places)

    def phantoms(self, some: Arrivals, which: Flags, kind: int) -> None:
        """Output records that came from nothing that the stream should have read."""
        found = np.flatnonzero(which)
        if len(found):
            where, first = _name(some.where), int(some.offsets[found[0]])
            what = f"records of {where} that came from {_PHANTOM[kind]}: {{n:,}}"
            group = self._group(Anomaly.PHANTOM, what, "")
            places = [f"{where}@{o}..{o}" for o in some.at[found[:MOST_PLACES]]]
            group.add(len(found), [*places[:1], f"{_name(some.source)}@{first}", *places[1:]])

    def sent_again(self, some: Replacing, which: Flags, kind: int) -> None:
        """Count records that were sent again and replace nothing."""
        letters, (anomaly, why) = _name(some.letters), _RESENT[kind]
        for partition, at, named in some.in_partitions(which):
            where = _name(partition)
            what = f"records of {where} that were sent again {why.format(letters=letters)}: {{n:,}}"
            both = zip(at[:MOST_PLACES], named[:MOST_PLACES], strict=True)
            places = (place for o, letter in both for place in (f"{where}@{o}..{o}", f"{letters}@{letter}..{letter}"))
            self._group(anomaly, what, "").add(len(at), places)

    def foreign(self, count: int, places: Iterable[str]) -> None:
        """Count records that name no input record, where nobody else may write."""
        self._group(Anomaly.PHANTOM, f"{FOREIGN}: {{n:,}}", "").add(count, places)

    def out_of_order(self, some: Arrivals, index: int, after: int) -> None:
        """Count the output record at ``index``, which is after one that came from the input offset ``after``."""
        source, where = _name(some.source), _name(some.where)
        what = f"records of {where} that come after records of later input of {source}: {{n:,}}"
        places = (f"{where}@{some.at[index]}..{some.at[index]}", f"{source}@{some.offsets[index]}", f"{source}@{after}")
        self._group(Anomaly.KEY_REORDER, what, "").add(1, places)

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

    def _group(self, anomaly: Anomaly, what: str, batch: str) -> _Group:
        return self._groups.setdefault((anomaly, what, batch), _Group())

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


class UnlikeTally:
    """The differences between two sinks of one input, by anomaly and input partition."""

    def __init__(self, old: str, new: str):
        self._said = {
            Anomaly.DIFFERS: f"of which {new} has other output than {old}",
            Anomaly.ONLY_OLD: f"of which {old} has output, and {new} has none",
            Anomaly.ONLY_NEW: f"of which {new} has output, and {old} has none",
        }
        self._groups: dict[tuple[Anomaly, Partition], _Group] = {}

    def add(self, source: Partition, some: Unlike) -> None:
        """Count input records."""
        for anomaly in self._said:
            offsets = some.offsets[some.flags(anomaly)]
            if len(offsets):
                group = self._groups.setdefault((anomaly, source), _Group())
                group.add(len(offsets), (f"{_name(source)}@{o}" for o in offsets[:MOST_PLACES]))
                group.examples += [int(o) for o in offsets[: EXAMPLES - len(group.examples)]]

    def counts(self) -> dict[str, int]:
        """Return the number of input records by anomaly."""
        found = Counter({anomaly.value: 0 for anomaly in self._said})
        for (anomaly, _), group in self._groups.items():
            found[anomaly.value] += group.records
        return dict(found)

    def examples(self) -> dict[Partition, set[int]]:
        """Return the input records that are shown."""
        found: dict[Partition, set[int]] = {}
        for (_, source), group in self._groups.items():
            found.setdefault(source, set()).update(group.examples)
        return found

    def findings(self, text: Callable[[Partition, int], str]) -> list[Finding]:
        """Return all findings, by anomaly; ``text`` says how the outputs of an input record differ."""
        order = [*self._said]
        found = []
        for anomaly, source in sorted(self._groups, key=lambda g: (order.index(g[0]), g[1])):
            name, group = _name(source), self._groups[anomaly, source]
            shown = tuple(f"{name}@{o}: {text(source, o)}".removesuffix(": ") for o in group.examples)
            what = f"input records of {name} {self._said[anomaly]}: {group.records:,}"
            found.append(Finding(anomaly, what, "", "", tuple(group.places), group.records, shown))
        return found


def _name(where: Partition) -> str:
    return f"{where[0]}-{where[1]}"
