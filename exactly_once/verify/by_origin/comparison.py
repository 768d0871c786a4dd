"""The comparison of a stream's output with its input, whole or the newest part, by where each output record came from.

Steps: what must be there (the decisions and the checkpoint), then where the outputs end now, then what may be there
beyond that. So whatever was decided before the read began is judged, and a stream that goes on meanwhile is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from exactly_once.errors import InvalidOption
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.connection import Connection
from exactly_once.verify.anomalies import Anomaly, Finding
from exactly_once.verify.by_origin import counts as c
from exactly_once.verify.by_origin.blocks import Memory
from exactly_once.verify.by_origin.content import hash_of_key
from exactly_once.verify.by_origin.counts import Counts, Flags, Offsets
from exactly_once.verify.by_origin.ends import compacted, settled
from exactly_once.verify.by_origin.input import Existing
from exactly_once.verify.by_origin.order import Order
from exactly_once.verify.by_origin.origin import PerInput, Places, SaysOrigin, inputs_of
from exactly_once.verify.by_origin.output import Arrivals, Outputs, bytes_at_once, origin_hash
from exactly_once.verify.by_origin.removed import Removed
from exactly_once.verify.by_origin.resent import NO_LETTER, OTHER_INPUT, REPLACES, TWICE
from exactly_once.verify.by_origin.tails import Tails, tails
from exactly_once.verify.by_origin.tally import FindingTally
from exactly_once.verify.expected import Expected
from exactly_once.verify.report import OnProgress, Progress
from exactly_once.verify.window import Window

#: What is expected to keep the order of the input.
ORDERS = ("key", "partition", "none")

#: Why a comparison says nothing of a record.
NOT_EXACTLY = "input records without an output, because the number of outputs of each is not fixed"
RETENTION = "input offsets that retention has deleted"
OUTPUT_REMOVED = "input records that are in no output, where retention or compaction removed outputs"
NOT_FAR = "input records in no output that was read: those before may hold records of a backfill"
NO_ROOM = "output records of more keys than the order check can remember"
UNREADABLE = "output records whose origin cannot be read"
LETTER_REMOVED = "output records that were sent again for what retention or compaction has removed"


@dataclass(frozen=True)
class Question:
    """The form in which the records of a sink name their origin, and what is expected of them.

    Attributes
    ----------
    origin : SaysOrigin
        Such as an :class:`~exactly_once.verify.by_origin.origin.Origin`.
    outputs : PerInput
    order : str
        Of :data:`ORDERS`. ``key``: the records of a key keep the order of each input partition. ``partition``: all
        records do. ``none``: the stream shuffles.
    refuse_foreign : bool
        Nobody else writes to these topics: a record without an origin is a phantom.
    backfilled : bool
        Records from before the stream's first offset are a backfill's; else they are phantoms.

    Raises InvalidOption.
    """

    origin: SaysOrigin
    outputs: PerInput = field(default_factory=PerInput)
    order: str = "key"
    refuse_foreign: bool = False
    backfilled: bool = False

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise InvalidOption(f"{self.order!r} is not an order", f"Use {', '.join(ORDERS)}")


@dataclass(frozen=True)
class OriginResult:
    """The result of the comparison.

    Attributes
    ----------
    by_origin : mapping
        ``input`` records expected; ``output`` records read, of which so many are ``foreign``, came from ``earlier``
        input, or from input of batches that are ``under way``, or were ``sent again`` in the place of others.
    read : int
        Output records that were read.
    unproven : mapping
        By reason, what it says nothing of.
    window : Window or None
        The part of the input that was compared; None for all of it.
    """

    findings: tuple[Finding, ...] = ()
    by_origin: Mapping[str, int] = field(default_factory=dict)
    read: int = 0
    unproven: Mapping[str, int] = field(default_factory=dict)
    window: Window | None = None


def compare_origins(
    connection: Connection,
    topics: Sequence[str],
    question: Question,
    expected: Callable[[], Expected],
    *,
    settle_s: float = 15.0,
    budget_s: float = 60.0,
    on_progress: OnProgress = lambda progress: None,
) -> OriginResult:
    """Compare the outputs with the input.

    Parameters
    ----------
    topics : sequence of str
        The output topics; together they hold what came from an input record. Empty: those that the decisions name.
    expected : callable
        Returns the input that the stream has worked off, with a window if only the newest part is to be compared;
        called twice.
    settle_s : float
        For how long readers of the outputs may be held back: the markers of a batch that is decided take a moment.
    budget_s : float
        For each question to the brokers; reading takes as long as it takes.

    Raises
    ------
    BrokerUnreachable, NotAuthorized, UnknownTopic, CheckpointUnusable
    InvalidOption
        When no record of the outputs names an input record, or nothing names the outputs.
    """
    before = expected()
    topics = topics or before.topics
    if not topics:
        raise InvalidOption("no decision names an output topic", "Name the output topics with --topic")
    with Admin(connection, budget_s) as admin, Admin(connection, budget_s) as input_admin:
        for topic in topics:
            admin.check_rights(topic, ("READ",))
        marks = settled(admin, topics, settle_s, budget_s)
        after = expected()
        tail = Tails.whole(marks)
        if before.window is not None:
            places = Places(inputs_of(before.end))
            tail = tails(admin, marks, before.window, before.first, question.origin, places, budget_s)
        reach = {p: max(before.end.get(p, 0), o) for p, o in {**before.reach, **after.reach}.items()}
        first, end = before.first, before.end
        of = sum(w.last_stable - w.low for w in tail.marks.values())
        tell = telling(on_progress, "origins", of + sum(o - before.wanted[p] for p, o in end.items()))
        existing = Existing(input_admin, end, budget_s, bytes_at_once(len(end)), tell)
        outputs = Outputs(
            admin,
            tail.marks,
            {where: w.low for where, w in marks.items()},
            question.origin,
            inputs_of(end),
            lambda source, offset: min(offset, reach.get(source, 0)) - first.get(source, 0),
            hash_of_key if question.order == "key" else None,
            tell,
        )
        removed = Removed(tail.truncated, before.batches, end, compacted(admin.renew(budget_s), topics))
        return _Comparison(question, replace(before, reach=reach), tail.short, existing, outputs, removed).result()


def telling(on_progress: OnProgress, step: str, of: int) -> Callable[[int], None]:
    """Return what is told how many offsets were read, of so many that this step will read."""
    done = 0

    def tell(offsets: int) -> None:
        nonlocal done
        done += offsets
        on_progress(Progress(step, min(done, of), of))

    return tell


class _Comparison:
    def __init__(
        self,
        question: Question,
        expected: Expected,
        short: frozenset[Partition],
        existing: Existing,
        outputs: Outputs,
        removed: Removed,
    ):
        self._question, self._expected, self._short = question, expected, short
        self._existing, self._outputs, self._removed = existing, outputs, removed
        self._memory, self._counts = Memory(), dict[Partition, Counts]()
        self._numbered: bool | None = None
        self._order, self._last = Order(), dict[tuple[Partition, Partition], int]()
        self._tally = FindingTally(expected.batches)
        self._sums = {"earlier": 0, "under way": 0, "sent again": 0}

    def result(self) -> OriginResult:
        """Read everything, and judge."""
        for some in self._outputs.committed():
            self._judge(some)
        foreign = self._outputs.foreign
        if not self._question.refuse_foreign:
            self._check_any()
        elif foreign.count:
            self._tally.foreign(foreign.count, foreign.first)
        self._judge_resent()
        self._account_for()
        unproven = self._tally.unproven
        unproven[RETENTION] += sum(
            min(end, self._existing.removed.get(p, 0)) - self._expected.wanted[p]
            for p, end in self._expected.end.items()
            if self._existing.removed.get(p, 0) > self._expected.wanted[p]
        )
        unproven[NO_ROOM] += self._order.unchecked
        if foreign.unreadable:
            unproven[f"{UNREADABLE}, first {foreign.places[0]}"] = foreign.unreadable
        sums = {
            "input": sum(counts.records for counts in self._counts.values()),
            "output": self._outputs.read,
            "foreign": foreign.count,
            **self._sums,
        }
        findings, known = tuple(self._tally.findings()), {why: n for why, n in unproven.items() if n}
        return OriginResult(findings, sums, self._outputs.read, known, self._expected.window)

    # -- while reading --------------------------------------------------------------------------------------------

    def _judge(self, some: Arrivals) -> None:
        ks = self._ks(some)
        counts = self._of_source(some.source)
        if counts is None:
            self._tally.phantoms(some, np.ones(len(some.at), np.bool_), c.BEYOND)
            return
        verdicts = counts.add(some.offsets, ks)
        self._sums["under way"] += int(((verdicts == c.FINE) & (some.offsets >= counts.end)).sum())
        if self._question.backfilled:
            self._sums["earlier"] += int((verdicts == c.BEFORE).sum())
            verdicts[verdicts == c.BEFORE] = c.FINE
        for kind in (c.OF_NO_RECORD, c.OF_ABORTED, c.BEFORE, c.BEYOND, c.TOO_MANY):
            self._tally.phantoms(some, verdicts == kind, kind)
        self._tally.duplicates(some, verdicts == c.DUPLICATE)
        fine = (verdicts == c.FINE) & (some.offsets >= counts.first)
        self._removed.enter(some, some.offsets[fine])
        self._in_order(some, fine)

    def _ks(self, some: Arrivals) -> Offsets | None:
        """Return, for each record, which output of its input record it is; None when the records do not say."""
        if self._numbered is None:
            self._numbered = bool((some.ks >= 0).any())
        if not self._numbered and (some.ks >= 0).any():
            self._numbered_late(some, int(np.flatnonzero(some.ks >= 0)[0]))
        if self._numbered and (some.ks < 0).any():
            self._numbered_late(some, int(np.flatnonzero(some.ks < 0)[0]))
        return some.ks if self._numbered else None

    def _numbered_late(self, some: Arrivals, index: int) -> None:
        place = f"{some.where[0]}-{some.where[1]}@{some.at[index]}"
        has, had = ("#k", "no #k") if some.ks[index] >= 0 else ("no #k", "#k")
        raise InvalidOption(
            f"the origin of {place} ends in {has}, but the origins of earlier records ended in {had}",
            "Make either all output records of the stream say which output of their input record they are (#0, #1, "
            "...), or none of them",
        )

    def _in_order(self, some: Arrivals, fine: Flags) -> None:
        kept = np.flatnonzero(fine)
        if self._question.order == "key":
            kept = kept[some.hashes[kept] != 0]
            for descent in self._order.add(some.hashes[kept], some.offsets[kept]):
                self._tally.out_of_order(some, int(kept[descent.record]), descent.after)
        elif self._question.order == "partition" and len(kept):
            key = some.where, some.source
            offsets = some.offsets[kept]
            before = np.r_[self._last.get(key, -1), offsets[:-1]]
            self._last[key] = int(offsets[-1])
            for index in np.flatnonzero(offsets < before):
                self._tally.out_of_order(some, int(kept[index]), int(before[index]))

    def _of_source(self, source: Partition) -> Counts | None:
        """Return the counts of an input partition; None when the stream has not read any of it."""
        if source not in self._counts:
            if source not in self._expected.reach:
                return None
            first = self._expected.first.get(source, 0)
            self._counts[source] = Counts(
                first,
                max(first, self._expected.end.get(source, first)),
                self._expected.reach[source],
                self._question.outputs,
                bool(self._numbered),
                lambda start, stop: self._existing.kinds(source, start, stop),
                self._memory,
                self._expected.wanted.get(source),
            )
        return self._counts[source]

    # -- afterwards -----------------------------------------------------------------------------------------------

    def _check_any(self) -> None:
        read, foreign = self._outputs.read, self._outputs.foreign
        if not read or foreign.count < read:
            return
        why = foreign.places[0] if foreign.places else f"{foreign.first[0]}, for one, has none"
        raise InvalidOption(
            f"none of the {read:,} output records names its input record by {self._question.origin} ({why})",
            "Name the header, key or field in which the stream writes topic-partition-offset of its input",
        )

    def _judge_resent(self) -> None:
        """Look again at the letters that were replaced: each is there, once, and came from the same input."""
        for some in self._outputs.resent.by_letters():
            found = [(letter.offset, origin_hash(place)) for place, letter in self._outputs.letters(some)]
            letters, origins = np.array(found, np.int64).reshape(-1, 2).T
            verdicts = some.judged(letters, origins)
            low, _ = self._outputs.ends_of(some.letters)
            gone = (verdicts == NO_LETTER) & (self._removed.everywhere | (some.offsets < low))
            for kind in (TWICE, NO_LETTER, OTHER_INPUT):
                self._tally.sent_again(some, (verdicts == kind) & ~gone, kind)
            self._tally.unproven[LETTER_REMOVED] += int(gone.sum())
            self._sums["sent again"] += int((verdicts == REPLACES).sum())

    def _account_for(self) -> None:
        """Name what is not in the outputs: lost, held back, or removed since."""
        unseen: dict[Partition, Counts] | None = None
        for source in sorted(self._expected.end):
            counts = self._of_source(source)
            assert counts is not None
            unsure = self._removed.before(source)
            for offsets, _ in counts.missing():
                if self._short or not self._question.outputs.exactly:
                    self._tally.unproven[NOT_FAR if self._short else NOT_EXACTLY] += len(offsets)
                    continue
                removed = offsets < unsure
                self._tally.unproven[OUTPUT_REMOVED] += int(removed.sum())
                offsets = offsets[~removed]
                if len(offsets):
                    if unseen is None:
                        unseen = self._held_back()
                    self._missing(source, offsets, unseen.get(source))
        self._tally.torn(lambda source, start, stop: self._of_source_now(source).present(start, stop))

    def _missing(self, source: Partition, offsets: Offsets, unseen: Counts | None) -> None:
        held = np.zeros(len(offsets), np.bool_) if unseen is None else unseen.seen(offsets)
        self._tally.missing(Anomaly.UNSEEN, source, offsets[held])
        self._tally.missing(Anomaly.LOST, source, offsets[~held])

    def _of_source_now(self, source: Partition) -> Counts:
        found = self._of_source(source)
        assert found is not None
        return found

    def _held_back(self) -> dict[Partition, Counts]:
        """Return the input records whose outputs are in the log, where readers do not get to."""
        found: dict[Partition, Counts] = {}
        for some in self._outputs.held_back():
            known = self._counts.get(some.source)
            if known is None:
                continue
            if some.source not in found:
                found[some.source] = Counts(
                    known.first,
                    known.first,
                    known.reach,
                    PerInput(None, False),
                    False,
                    lambda start, stop: np.full(stop - start, c.UNKNOWN, np.uint8),
                    self._memory,
                )
            found[some.source].add(some.offsets)
        return found
