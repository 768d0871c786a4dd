"""The comparison of a new version of a stream with the old one that it reads along with: by the content of their
outputs, input record by input record.

Steps: what both have worked off, then where their outputs end now, then both outputs in step. So whatever both had
committed before the read began is compared, and both may go on meanwhile. Of each input record it keeps two counts and
the difference of two sums of hashes; it reads again the first ones that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from exactly_once.errors import InvalidOption
from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.kafka.connection import Connection
from exactly_once.verify.anomalies import Finding
from exactly_once.verify.by_origin.blocks import Memory
from exactly_once.verify.by_origin.comparison import UNREADABLE, telling
from exactly_once.verify.by_origin.content import Content, content_of, hash_of_content
from exactly_once.verify.by_origin.counts import Flags, Offsets
from exactly_once.verify.by_origin.ends import compacted, of_topics, settled
from exactly_once.verify.by_origin.origin import Places, SaysOrigin, inputs_of
from exactly_once.verify.by_origin.output import Arrivals, Outputs
from exactly_once.verify.by_origin.pairs import Pairs, Unlike, difference
from exactly_once.verify.by_origin.removed import Removed
from exactly_once.verify.by_origin.tails import Tails, tails
from exactly_once.verify.by_origin.tally import UnlikeTally
from exactly_once.verify.by_origin.versions import Version, VersionOutput, Versions, versions_of
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
    topics = (*found.old.topics, *found.new.topics)
    with Admin(connection, budget_s) as admin:
        for topic in topics:
            admin.check_rights(topic, ("READ",))
        marks = settled(admin, topics, settle_s, budget_s)
        parts: dict[Partition, Watermarks] = {}
        removed: dict[bool, Removed] = {}
        for new_one, side in found.sides().items():
            its = _tails(admin, of_topics(marks, side.topics), found, side, origin, budget_s)
            parts |= its.marks
            gone = bool(its.short) or compacted(admin.renew(budget_s), side.topics)
            removed[new_one] = Removed(its.truncated, side.expected.batches, found.end, gone)
        outputs = Outputs(
            admin,
            parts,
            {where: w.low for where, w in marks.items()},
            origin,
            inputs_of({**found.old.expected.end, **found.new.expected.end}),
            lambda source, offset: min(offset, found.end.get(source, 0)) - found.first.get(source, 0),
            hash_of_content(origin.header),
            telling(on_progress, "against", sum(w.last_stable - w.low for w in parts.values())),
        )
        return _Comparison(found, outputs, removed, origin, values).result()


def _tails(
    admin: Admin,
    marks: Mapping[Partition, Watermarks],
    versions: Versions,
    side: VersionOutput,
    origin: SaysOrigin,
    budget_s: float,
) -> Tails:
    """Return the parts of one sink's outputs to read."""
    window = side.expected.window
    if window is None:
        return Tails.whole(marks)
    ahead = sum(side.expected.end[p] - end for p, end in versions.end.items())  # what only this one has read so far
    window = replace(window, last=window.last + ahead)
    places = Places(inputs_of(side.expected.end))
    return tails(admin, marks, window, side.expected.first, origin, places, budget_s)


class _Chunk(NamedTuple):
    """Output records that were judged together: of which input, and where they stand."""

    where: Partition
    source: Partition
    origins: tuple[int, int]
    at: tuple[int, int]


class _Comparison:
    def __init__(
        self, versions: Versions, outputs: Outputs, removed: Mapping[bool, Removed], origin: SaysOrigin, values: bool
    ):
        memory = Memory()
        self._versions, self._outputs, self._removed = versions, outputs, removed
        self._origin, self._values = origin, values
        self._pairs = {p: Pairs(first, versions.end[p], memory) for p, first in versions.first.items()}
        self._chunks: list[_Chunk] = []
        self._replaced: set[tuple[Partition, int]] = set()  # of the letters
        self._named: Counter[bool] = Counter()
        self._held: dict[bool, dict[Partition, Offsets]] | None = None

    def result(self) -> AgainstResult:
        """Read everything, and judge."""
        for some in self._outputs.committed():
            self._take(some)
        self._check_any()
        self._replace()
        tally, unproven = UnlikeTally(self._versions.old.sink_id, self._versions.new.sink_id), Counter[str]()
        for source, pairs in sorted(self._pairs.items()):
            for unlike in pairs.unlike():
                doubtful = self._doubtful(source, unlike)
                unproven[FEWER] += int(doubtful.sum())
                tally.add(source, unlike.only(~doubtful))
        foreign = self._outputs.foreign
        if foreign.unreadable:
            unproven[f"{UNREADABLE}, first {foreign.places[0]}"] = foreign.unreadable
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

    def _take(self, some: Arrivals) -> None:
        new, pairs = self._versions.is_new(some.where[0]), self._pairs.get(some.source)
        self._named[new] += len(some.at)
        if pairs is None:
            return
        began = self._versions.sides()[new].expected.first.get(some.source, 0)
        self._removed[new].enter(some, some.offsets[some.offsets >= began])
        inside = np.flatnonzero(pairs.inside(some.offsets))
        if len(inside):
            offsets, at = some.offsets[inside], some.at[inside]
            pairs.add(new, offsets, some.hashes[inside])
            self._chunks.append(
                _Chunk(some.where, some.source, (int(offsets.min()), int(offsets.max())), (int(at[0]), int(at[-1])))
            )

    def _check_any(self) -> None:
        for new, side in self._versions.sides().items():
            foreign = sum(self._outputs.foreign.topics[topic] for topic in side.topics)
            if foreign and not self._named[new]:
                raise InvalidOption(
                    f"none of the {foreign:,} output records of sink {side.sink_id!r} names its input record by "
                    f"{self._origin}",
                    "Have both streams write topic-partition-offset of their input in the same place",
                )

    def _replace(self) -> None:
        """Put the records that were sent again in the place of their letters; who sent one twice has two."""
        hash_of = hash_of_content(self._origin.header)
        for some in self._outputs.resent.by_letters():
            new = self._versions.is_new(some.letters[0])
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
        doubtful = np.zeros(len(some.offsets), np.bool_)
        for new, fewer in ((False, some.old < some.new), (True, some.new < some.old)):
            if not fewer.any():
                continue
            before = self._removed[new].before(source)
            held = self._held_back()[new].get(source, np.zeros(0, np.int64))
            doubtful |= fewer & ((some.offsets < before) | np.isin(some.offsets, held))
        return doubtful

    def _held_back(self) -> Mapping[bool, Mapping[Partition, Offsets]]:
        """Return, for each sink, the input records whose outputs are in the log, where readers do not get to."""
        if self._held is None:
            found: dict[bool, dict[Partition, Offsets]] = {False: {}, True: {}}
            for some in self._outputs.held_back():
                its = found[self._versions.is_new(some.where[0])]
                its[some.source] = np.union1d(its.get(some.source, some.offsets), some.offsets)
            self._held = found
        return self._held

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
                    both[self._versions.is_new(chunk.where[0])].append(content_of(record, self._origin.header))
        return found
