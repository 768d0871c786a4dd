"""The comparison of a new version of a stream with the old one that it reads along with: by the content of their
outputs, input record by input record.

Steps: what both have worked off, then where their outputs end now, then both outputs in step. So whatever both had
committed before the read began is compared, and both may go on meanwhile. Of each input record it keeps two counts and
the difference of two sums of hashes; it reads again the first ones that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from exactly_once.errors import InvalidOption
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.connection import Connection
from exactly_once.verify.anomalies import Finding
from exactly_once.verify.by_origin.content import Arrivals, Content, content_of, hash_of_content
from exactly_once.verify.by_origin.counts import Counts, Flags
from exactly_once.verify.by_origin.ledger import OriginLedger, telling
from exactly_once.verify.by_origin.origin import SaysOrigin
from exactly_once.verify.by_origin.pairs import Pairs, Unlike, difference
from exactly_once.verify.by_origin.resent import by_letters
from exactly_once.verify.by_origin.tally import UnlikeTally
from exactly_once.verify.by_origin.versions import Version, Versions, versions_of
from exactly_once.verify.report import OnProgress

#: Why the comparison says nothing of an input record.
FEWER = "input records of which one sink has less, where outputs were removed, or readers do not reach them yet"


@dataclass(frozen=True)
class AgainstResult:
    """The result of the comparison.

    Attributes
    ----------
    sink_id : str
        The old sink.
    offsets : int
        The offsets of input that both have worked off, and that were compared.
    counts : mapping
        Input records: ``input`` have an output, ``same`` the same one in both, and those of each anomaly. Empty where
        there was nothing to compare yet.
    read : int
        Output records that were read.
    unproven : mapping
        By reason, what it says nothing of.
    """

    sink_id: str
    offsets: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    read: int = 0
    unproven: Mapping[str, int] = field(default_factory=dict)


def compare_versions(
    connection: Connection,
    old: Version,
    new: Version,
    origin: SaysOrigin,
    *,
    inputs: Sequence[str] = (),
    last: int | None = None,
    values: bool = True,
    settle_s: float = 15.0,
    budget_s: float = 60.0,
    on_progress: OnProgress = lambda progress: None,
) -> AgainstResult:
    """Compare the outputs that two sinks have of the same input.

    Parameters
    ----------
    origin : SaysOrigin
        How the records of both name their input.
    last : int, optional
        Of the input that both have worked off, only the newest batches with at most so many offsets.
    values : bool
        Show what either has where they differ, cut short.
    settle_s, budget_s
        As in :func:`~exactly_once.verify.by_origin.comparison.compare_origins`.

    Raises
    ------
    InvalidOption
        No record of one of them names its input record; or as in :func:`versions_of`.
    BrokerUnreachable, NotAuthorized, UnknownTopic, CommitLogDamaged, CheckpointUnusable
    """
    found = versions_of(connection, old, new, inputs, last, budget_s)
    if found is None or not found.first:
        return AgainstResult(old.sink_id)
    with Admin(connection, budget_s) as admin:
        sinks, hash_of = (found.old, found.new), hash_of_content(origin.header)
        ledger = OriginLedger(admin, sinks, found.first, found.end, origin, hash_of, settle_s, budget_s)
        return _Comparison(found, ledger, origin, values).result(telling(on_progress, "against", ledger.length))


class _Chunk(NamedTuple):
    """Output records that were judged together: of which input, and where they stand."""

    where: Partition
    source: Partition
    origins: tuple[int, int]
    at: tuple[int, int]


class _Comparison:
    def __init__(self, versions: Versions, ledger: OriginLedger, origin: SaysOrigin, values: bool):
        self._versions, self._ledger, self._outputs = versions, ledger, ledger.outputs
        self._origin, self._values, memory = origin, values, ledger.memory
        self._pairs = {p: Pairs(first, versions.end[p], memory) for p, first in versions.first.items()}
        self._sinks = versions.old, versions.new
        self._chunks: list[_Chunk] = []
        self._replaced: set[tuple[Partition, int]] = set()  # of the letters
        self._named: Counter[int] = Counter()
        self._held: dict[tuple[int, Partition], Counts] | None = None

    def result(self, tell: Callable[[int], None]) -> AgainstResult:
        """Read everything, and judge."""
        for some in self._outputs.committed(tell):
            self._take(self._ledger.number_of(some.where), some)
        self._check_any()
        self._replace()
        tally, unproven = UnlikeTally(self._versions.old.sink_id, self._versions.new.sink_id), Counter[str]()
        for source, pairs in sorted(self._pairs.items()):
            for unlike in pairs.unlike():
                doubtful = self._doubtful(source, unlike)
                unproven[FEWER] += int(doubtful.sum())
                tally.add(source, unlike.only(~doubtful))
        unproven.update(self._ledger.unreadable)
        records, same = (sum(n) for n in zip(*((p.records, p.same) for p in self._pairs.values()), strict=True))
        contents = self._read_again(tally.examples())
        return AgainstResult(
            self._versions.old.sink_id,
            self._versions.offsets,
            {"input": records, "same": same, **tally.counts()},
            tuple(tally.findings(lambda source, offset: difference(*contents[source, offset], self._values))),
            self._outputs.read,
            {why: n for why, n in unproven.items() if n},
        )

    def _take(self, number: int, some: Arrivals) -> None:
        pairs = self._pairs.get(some.source)
        self._named[number] += len(some.at)
        if pairs is None:
            return
        began = self._sinks[number].expected.first.get(some.source, 0)
        self._ledger.removed[number].enter(some, some.offsets[some.offsets >= began])
        inside = np.flatnonzero(pairs.inside(some.offsets))
        if len(inside):
            offsets, at = some.offsets[inside], some.at[inside]
            pairs.add(bool(number), offsets, some.hashes[inside])
            self._chunks.append(
                _Chunk(some.where, some.source, (int(offsets.min()), int(offsets.max())), (int(at[0]), int(at[-1])))
            )

    def _check_any(self) -> None:
        for number, sink in enumerate(self._sinks):
            foreign = sum(self._outputs.foreign.topics[topic] for topic in sink.topics)
            if foreign and not self._named[number]:
                raise InvalidOption(
                    f"none of the {foreign:,} output records of sink {sink.sink_id!r} names its input record by "
                    f"{self._origin}",
                    "Have both streams write topic-partition-offset of their input in the same place",
                )

    def _replace(self) -> None:
        """Put the records that were sent again in the place of their letters; who sent one twice has two."""
        hash_of = hash_of_content(self._origin.header)
        for some in by_letters(self._outputs.resent):
            new = bool(self._ledger.number_of(some.letters))
            for place, letter in self._outputs.letters(some):
                pairs = self._pairs.get(place.partition) if place is not None else None
                if place is None or pairs is None or not pairs.inside(np.array([place.offset]))[0]:
                    continue
                mine = some.of(letter.offset)
                if self._outputs.has_read(some.letters, letter.offset):
                    replaced = hash_of(letter, place.partition, some.letters)
                    pairs.replace(new, place.offset, replaced, some.hashes[mine])
                else:
                    pairs.add(new, np.full(len(some.at[mine]), place.offset), some.hashes[mine])
                self._replaced.add((some.letters, letter.offset))
                self._chunks += [
                    _Chunk(some.wheres[which], place.partition, (place.offset, place.offset), (int(at), int(at)))
                    for which, at in zip(some.which[mine], some.at[mine], strict=True)
                ]

    def _doubtful(self, source: Partition, some: Unlike) -> Flags:
        """Return of which of these input records one sink has less, and may have had more."""
        if self._held is None and (some.old != some.new).any():
            ends = self._versions.end
            self._held = self._ledger.held_back({p: (at, ends[p]) for p, at in self._versions.first.items()})
        doubtful = np.zeros(len(some.offsets), np.bool_)
        for number, fewer in enumerate((some.old < some.new, some.new < some.old)):
            if fewer.any():
                before, held = self._ledger.removed[number].before(source), (self._held or {}).get((number, source))
                doubtful |= fewer & (some.offsets < before)
                if held is not None:
                    doubtful |= fewer & held.seen(some.offsets)
        return doubtful

    def _read_again(
        self, wanted: Mapping[Partition, set[int]]
    ) -> Mapping[tuple[Partition, int], tuple[list[Content], list[Content]]]:
        """Return what either sink has of these input records."""
        found: dict[tuple[Partition, int], tuple[list[Content], list[Content]]] = {
            (source, offset): ([], []) for source, offsets in wanted.items() for offset in offsets
        }
        seen = set(self._replaced)
        for chunk in self._chunks:
            low, high = chunk.origins
            if not any(low <= offset <= high for offset in wanted.get(chunk.source, ())):
                continue
            for place, record in self._outputs.again(chunk.where, chunk.at[0], chunk.at[1] + 1):
                both = found.get((place.partition, place.offset)) if place.partition == chunk.source else None
                stands = chunk.where, record.offset
                if both is not None and stands not in seen:
                    seen.add(stands)
                    both[self._ledger.number_of(chunk.where)].append(content_of(record, self._origin.header))
        return found
