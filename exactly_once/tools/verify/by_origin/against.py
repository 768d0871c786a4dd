"""The comparison of a new version of a stream with the old one that it reads along with: by the content of their
outputs, input record by input record.

Steps: what both have worked off, then where their outputs end now, then both outputs in step. So whatever both had
committed before the read began is compared, and both may go on meanwhile. Of each input record it keeps two counts and
the difference of two sums of hashes; it reads again the first ones that differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from exactly_once.checkpoint import first_offsets
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import CheckpointAway, CheckpointUnusable, InvalidOption
from exactly_once.inspection.words import never_claimed
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.connection import Connection
from exactly_once.tools.verify.by_origin.content import (
    Arrivals,
    Content,
    Flags,
    by_letters,
    content_hash,
    content_of,
    difference,
)
from exactly_once.tools.verify.by_origin.counts import Pairs, Unlike
from exactly_once.tools.verify.by_origin.ledger import Compared, ComparisonResult, OriginLedger, SinkOutput, telling
from exactly_once.tools.verify.by_origin.origin import SaysOrigin, inputs_of
from exactly_once.tools.verify.by_origin.tally import UnlikeTally
from exactly_once.tools.verify.expected import Expected, Positions, expected_input
from exactly_once.tools.verify.report import OnProgress

#: Reasons why the comparison does not judge an input record.
FEWER = "input records of which one sink has less, where outputs were removed, or readers do not reach them yet"


@dataclass(frozen=True)
class Version:
    """One of the two sinks. Without ``topics``, its output topics are those that its decisions name. Without
    ``checkpoint``, the location is what its last claim names, if that can be read; else it counts as having read the
    input from its beginning.
    """

    sink_id: str
    topics: tuple[str, ...] = ()
    checkpoint: str | None = None


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
) -> ComparisonResult:
    """Compare the outputs that two sinks have of the same input: that which both have worked off, or only the newest
    batches of it with at most ``last`` offsets. ``values`` shows what either has where they differ, cut short; the rest
    is as in :func:`~exactly_once.tools.verify.by_origin.comparison.compare_origins`.

    Raises InvalidOption where no record of one of them names its input record, or as :func:`versions_of` does;
    BrokerUnreachable, NotAuthorized, UnknownTopic, CommitLogDamaged or CheckpointUnusable.
    """
    compared = versions_of(connection, old, new, inputs, last, budget_s)
    if compared is None or not compared.first:
        return ComparisonResult(sink_id=old.sink_id)
    with Admin(connection, budget_s) as admin:
        ledger = OriginLedger(admin, compared, origin, settle_s, budget_s)
        return _VersionsJudge(compared, ledger, origin, values).result(telling(on_progress, "against", ledger.length))


class _Chunk(NamedTuple):
    """Output records that were judged together: of which input, and where they stand."""

    where: Partition
    source: Partition
    origins: tuple[int, int]
    at: tuple[int, int]


class _VersionsJudge:
    def __init__(self, compared: Compared, ledger: OriginLedger, origin: SaysOrigin, values: bool):
        self._compared, self._sinks, self._ledger, self._outputs = compared, compared.sinks, ledger, ledger.outputs
        self._origin, self._values = origin, values
        self._pairs = {p: Pairs(first, end, ledger.memory) for p, (first, end) in ledger.bounds.items()}
        self._chunks: list[_Chunk] = []
        self._replaced: set[tuple[Partition, int]] = set()  # of the letters
        self._named: Counter[int] = Counter()

    def result(self, tell: Callable[[int], None]) -> ComparisonResult:
        for some in self._outputs.committed(tell):
            self._take(self._ledger.number_of(some.where), some)
        self._check_any()
        self._replace()
        old, new = self._sinks
        tally = UnlikeTally(old.sink_id, new.sink_id)
        for source, pairs in sorted(self._pairs.items()):
            for unlike in pairs.unlike():
                doubtful = self._doubtful(source, unlike)
                tally.unproven[FEWER] += int(doubtful.sum())
                tally.add(source, unlike.only(~doubtful))
        tally.unproven.update(self._ledger.unreadable)
        records, same = (sum(n) for n in zip(*((p.records, p.same) for p in self._pairs.values()), strict=True))
        contents = self._read_again(tally.examples())
        return ComparisonResult(
            tuple(tally.findings(lambda source, offset: difference(*contents[source, offset], self._values))),
            {"input": records, "same": same, **tally.counts()},
            self._outputs.read,
            dict(+tally.unproven),
            sink_id=old.sink_id,
            offsets=self._compared.offsets,
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
        for some in by_letters(self._outputs.resent):
            new = bool(self._ledger.number_of(some.letters))
            for place, letter in self._outputs.letters(some):
                pairs = self._pairs.get(place.partition) if place is not None else None
                if place is None or pairs is None or not pairs.inside(np.array([place.offset]))[0]:
                    continue
                mine = some.of(letter.offset)
                if self._outputs.has_read(some.letters, letter.offset):
                    replaced = content_hash(letter, self._origin.header)
                    pairs.replace(new, place.offset, replaced, some.hashes[mine])
                else:
                    pairs.add(new, np.full(len(some.at[mine]), place.offset), some.hashes[mine])
                self._replaced.add((some.letters, letter.offset))
                self._chunks += [
                    _Chunk(some.wheres[which], place.partition, (place.offset, place.offset), (int(at), int(at)))
                    for which, at in zip(some.which[mine], some.at[mine], strict=True)
                ]

    def _doubtful(self, source: Partition, some: Unlike) -> Flags:
        """Return which of these input records have fewer outputs in one sink, which may have had more."""
        doubtful = np.zeros(len(some.offsets), np.bool_)
        for number, fewer in enumerate((some.old < some.new, some.new < some.old)):
            if fewer.any():
                doubtful |= fewer & (some.offsets < self._ledger.removed[number].before(source))
                doubtful |= fewer & self._ledger.held_back(number, source, some.offsets)
        return doubtful

    def _read_again(
        self, wanted: Mapping[Partition, set[int]]
    ) -> Mapping[tuple[Partition, int], tuple[list[Content], list[Content]]]:
        """Return what either sink has of these input records."""
        contents: dict[tuple[Partition, int], tuple[list[Content], list[Content]]] = {
            (source, offset): ([], []) for source, offsets in wanted.items() for offset in offsets
        }
        seen = set(self._replaced)
        for chunk in self._chunks:
            low, high = chunk.origins
            if not any(low <= offset <= high for offset in wanted.get(chunk.source, ())):
                continue
            for place, record in self._outputs.again(chunk.where, chunk.at[0], chunk.at[1] + 1):
                both = contents.get((place.partition, place.offset)) if place.partition == chunk.source else None
                stands = chunk.where, record.offset
                if both is not None and stands not in seen:
                    seen.add(stands)
                    both[self._ledger.number_of(chunk.where)].append(content_of(record, self._origin.header))
        return contents


def versions_of(
    connection: Connection,
    old: Version,
    new: Version,
    inputs: Sequence[str] = (),
    last: int | None = None,
    budget_s: float = 60.0,
) -> Compared | None:
    """Read what the two have worked off by now; None where one of them has decided nothing yet.

    Raises InvalidOption for a sink that was never used, where nothing says where the new one began, and where both
    write to one topic; BrokerUnreachable, NotAuthorized, UnknownTopic, CommitLogDamaged or CheckpointUnusable.
    """
    for version in (old, new):
        log = read_log(connection, version.sink_id, budget_s)
        if log.owner is None:
            raise never_claimed(version.sink_id)
        if not log.decisions:
            return None
        if version is old and not old.checkpoint:
            old = replace(old, checkpoint=_with_beginning(log.owner.checkpoint))
    its, other = _worked_off(connection, old, new, inputs, budget_s)
    first, end = common(other, its)
    if last is not None and first:
        its, other = _worked_off(connection, old, new, inputs, budget_s, last, end)
        first, end = common(other, its, end)
    olds, news = apart(old, new, other.topics, its.topics)
    return Compared((SinkOutput(old.sink_id, olds, other), SinkOutput(new.sink_id, news, its)), first, end)


def common(
    old: Expected, new: Expected, until: Positions | None = None
) -> tuple[dict[Partition, int], dict[Partition, int]]:
    """Return the input that both have worked off before ``until``, from its first offset to its end; without empty
    partitions.
    """
    end = {p: min(offset, new.end[p]) for p, offset in old.end.items() if p in new.end}
    if until is not None:
        end = {p: min(offset, end[p]) for p, offset in until.items() if p in end}
    first = {p: max(old.wanted.get(p, offset), new.wanted.get(p, offset)) for p, offset in end.items()}
    return {p: o for p, o in first.items() if o < end[p]}, {p: o for p, o in end.items() if first[p] < o}


def apart(
    old: Version, new: Version, old_named: Sequence[str], new_named: Sequence[str]
) -> tuple[tuple[str, ...], ...]:
    """Return the topics of each version: as given, or as its decisions name them; raise InvalidOption where a record
    may be of either.
    """
    its = new.topics or tuple(new_named)
    other = old.topics or tuple(t for t in old_named if t not in new_named) or tuple(old_named)
    for sink_id, topics in ((old.sink_id, other), (new.sink_id, its)):
        if not topics:
            raise InvalidOption(
                f"no decision of sink {sink_id!r} names an output topic", "Run the command again after its first output"
            )
    if shared := sorted(set(its) & {*other, *old_named}):
        raise InvalidOption(
            f"{old.sink_id} and {new.sink_id} both write to {', '.join(shared)}, and nothing tells whose a record is",
            f"Name with --topic only topics that {new.sink_id} alone has written to, such as its shadow topic",
        )
    return other, its


def _worked_off(
    connection: Connection,
    old: Version,
    new: Version,
    inputs: Sequence[str],
    budget_s: float,
    last: int | None = None,
    stop: Positions | None = None,
) -> tuple[Expected, Expected]:
    """Return what the new version has worked off, and the old one of the same topics."""
    its = expected_input(connection, new.sink_id, new.checkpoint, inputs, budget_s, last, stop)
    read = inputs or inputs_of(its.end)
    return its, expected_input(connection, old.sink_id, old.checkpoint, read, budget_s, last, stop)


def _with_beginning(location: str) -> str | None:
    """Return a location whose checkpoint says where its stream began; None where it does not, or cannot be read."""
    with suppress(CheckpointUnusable, CheckpointAway):
        return location if location and first_offsets(location) else None
    return None
