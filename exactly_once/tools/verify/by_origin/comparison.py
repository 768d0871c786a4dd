"""The comparison of a stream's output with its input, whole or the newest part, by where each output record came from.

Steps: what must be there (the decisions and the checkpoint), then where the outputs end now, then what may be there
beyond that. So whatever was decided before the read began is judged, and a stream that goes on meanwhile is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from exactly_once.errors import InvalidOption
from exactly_once.kafka.admin import Admin, Partition
from exactly_once.kafka.connection import Connection
from exactly_once.tools.verify.anomalies import Anomaly
from exactly_once.tools.verify.by_origin import counts as c
from exactly_once.tools.verify.by_origin.content import (
    MASK,
    NO_LETTER,
    OTHER_INPUT,
    REPLACES,
    TWICE,
    Arrivals,
    Flags,
    Offsets,
    by_letters,
)
from exactly_once.tools.verify.by_origin.counts import Counts
from exactly_once.tools.verify.by_origin.input import Existing
from exactly_once.tools.verify.by_origin.ledger import Compared, ComparisonResult, OriginLedger, SinkOutput, telling
from exactly_once.tools.verify.by_origin.order import Order
from exactly_once.tools.verify.by_origin.origin import PerInput, SaysOrigin
from exactly_once.tools.verify.by_origin.output import bytes_at_once, origin_hash
from exactly_once.tools.verify.by_origin.tally import FindingTally
from exactly_once.tools.verify.expected import Expected
from exactly_once.tools.verify.report import OnProgress

#: The unit whose outputs are expected in the order of the input.
ORDERS = ("key", "partition", "none")

#: Reasons why a comparison does not judge a record.
NOT_EXACTLY = "input records without an output, because the number of outputs of each is not fixed"
RETENTION = "input offsets that retention has deleted"
OUTPUT_REMOVED = "input records that are in no output, where retention or compaction removed outputs"
NOT_FAR = "input records in no output that was read: those before may hold records of a backfill"
NO_ROOM = "output records of more keys than the order check can remember"
LETTER_REMOVED = "output records that were sent again for what retention or compaction has removed"


@dataclass(frozen=True)
class Question:
    """The form in which the records of a sink name their origin, and what is expected of them. Raises InvalidOption.

    ``order`` is one of :data:`ORDERS`. ``key``: the records of a key keep the order of each input partition;
    ``partition``: all records do; ``none``: the stream shuffles. ``refuse_foreign``: nobody else writes to these
    topics, so a record without an origin is a phantom. ``backfilled``: records from before the stream's first offset
    are a backfill's; else they are phantoms.
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
class ToCompare:
    """The input that is ``expected``, ``existing`` of it, and the outputs of ``ledger``."""

    connection: Connection
    question: Question
    expected: Expected
    existing: Existing
    ledger: OriginLedger


@dataclass(frozen=True)
class Remainder:
    """The records that another reader of both topics leaves to be judged, ``arrivals``, and what it has counted of the
    others: input ``records``, output of batches that are ``under way`` or of ``earlier`` input, and ``unproven`` by
    reason. By input partition, ``complete`` has the blocks of :class:`Counts` of which nothing is left.
    """

    arrivals: Iterable[Arrivals]
    records: int = 0
    under_way: int = 0
    earlier: int = 0
    unproven: Counter[str] = field(default_factory=Counter)
    complete: Mapping[Partition, Iterable[int]] = field(default_factory=dict)


#: A function that reads both topics and counts what is right; it notes in ``ledger.outputs`` which records were read,
#: foreign, and sent again.
ReadsElsewhere = Callable[[ToCompare], Remainder]


def compare_origins(
    connection: Connection,
    topics: Sequence[str],
    question: Question,
    expected: Callable[[], Expected],
    *,
    settle_s: float = 15.0,
    budget_s: float = 60.0,
    on_progress: OnProgress = lambda progress: None,
    elsewhere: ReadsElsewhere | None = None,
) -> ComparisonResult:
    """Compare the outputs with the input.

    ``topics`` are the output topics, which together hold what came from an input record; empty: those that the
    decisions name. ``expected``, called twice, returns the input that the stream has worked off, with a window if only
    the newest part is to be compared. Readers of the outputs may be held back for ``settle_s``: the markers of a batch
    that is decided take a moment. ``budget_s`` is for each question to the brokers; reading takes as long as it takes.
    Without ``elsewhere``, this process reads all records.

    Raises InvalidOption when no record of the outputs names an input record, or nothing names the outputs;
    BrokerUnreachable, NotAuthorized, UnknownTopic or CheckpointUnusable.
    """
    before = expected()
    topics = topics or before.topics
    if not topics:
        raise InvalidOption("no decision names an output topic", "Name the output topics with --topic")
    end = before.end
    compared = Compared((SinkOutput("", tuple(topics), before),), before.first, end)
    with Admin(connection, budget_s) as admin, Admin(connection, budget_s) as input_admin:
        ledger = OriginLedger(admin, compared, question.origin, settle_s, budget_s)
        after = expected()
        reach = {p: max(end.get(p, 0), o) for p, o in {**before.reach, **after.reach}.items()}
        ledger.bounds = {p: (before.first.get(p, 0), offset) for p, offset in reach.items()}
        tell = telling(on_progress, "origins", ledger.length + sum(o - before.wanted[p] for p, o in end.items()))
        existing = Existing(input_admin, end, budget_s, bytes_at_once(len(end)), tell)
        compared_to = ToCompare(connection, question, replace(before, reach=reach), existing, ledger)
        left = Remainder(ledger.outputs.committed(tell)) if elsewhere is None else elsewhere(compared_to)
        return _InputJudge(compared_to, left).result()


class _InputJudge:
    def __init__(self, of: ToCompare, left: Remainder):
        self._question, self._expected, self._existing, self._left = of.question, of.expected, of.existing, left
        self._ledger = ledger = of.ledger
        self._outputs, self._removed, self._short = ledger.outputs, ledger.removed[0], bool(ledger.tails[0].short)
        self._counts = dict[Partition, Counts]()
        self._numbered: bool | None = None
        self._order = Order()
        self._tally = FindingTally(of.expected.batches)
        self._sums = {"earlier": left.earlier, "under way": left.under_way, "sent again": 0}

    def result(self) -> ComparisonResult:
        for some in self._left.arrivals:
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
        unproven.update(self._left.unproven)
        unproven.update(self._ledger.unreadable)
        sums = {
            "input": self._left.records + sum(counts.records for counts in self._counts.values()),
            "output": self._outputs.read,
            "foreign": foreign.count,
            **self._sums,
        }
        findings = tuple(self._tally.findings())
        return ComparisonResult(findings, sums, self._outputs.read, dict(+unproven), self._expected.window)

    # -- while reading --------------------------------------------------------------------------------------------

    def _judge(self, some: Arrivals) -> None:
        ks = self._ks(some)
        if some.source not in self._expected.reach:  # the stream has not read any of it
            self._tally.phantoms(some, np.ones(len(some.at), np.bool_), c.BEYOND)
            return
        counts = self._of_source(some.source)
        open_ = np.arange(len(some.at)) if some.open is None else np.flatnonzero(some.open)
        verdicts = np.full(len(some.at), c.FINE, np.uint8)
        verdicts[open_] = counts.add(some.offsets[open_], None if ks is None else ks[open_])
        self._sums["under way"] += int(((verdicts == c.FINE) & (some.offsets >= counts.end))[open_].sum())
        if self._question.backfilled:
            self._sums["earlier"] += int((verdicts == c.BEFORE).sum())
            verdicts[verdicts == c.BEFORE] = c.FINE
        for kind in (c.OF_NO_RECORD, c.OF_ABORTED, c.BEFORE, c.BEYOND, c.TOO_MANY):
            self._tally.phantoms(some, verdicts == kind, kind)
        self._tally.duplicates(some, verdicts == c.DUPLICATE)
        fine = (verdicts == c.FINE) & (some.offsets >= counts.first)
        if some.open is None:
            self._removed.enter(some, some.offsets[fine])
        self._in_order(some, fine)

    def _ks(self, some: Arrivals) -> Offsets | None:
        """Return, for each record, which output of its input record it is; None when the records do not say."""
        says = some.numbers >= 0
        if self._numbered is None:
            self._numbered = bool(says.any())
        others = np.flatnonzero(says != self._numbered)
        if len(others):
            raise mixed_numbers(some.where, int(some.at[others[0]]), self._numbered)
        return some.numbers if self._numbered else None

    def _in_order(self, some: Arrivals, fine: Flags) -> None:
        kept = np.flatnonzero(fine)
        if self._question.order == "key":
            kept = kept[some.hashes[kept] != 0]
            keys = some.hashes[kept]
        elif self._question.order == "partition":  # all of its records are of one key
            keys = np.full(len(kept), hash((some.where, some.source)) & MASK or 1, np.uint64)
        else:
            return
        for descent in self._order.add(keys, some.offsets[kept]):
            self._tally.out_of_order(some, int(kept[descent.record]), descent.after)

    def _of_source(self, source: Partition) -> Counts:
        """Return the counts of an input partition that the stream has read."""
        if source not in self._counts:
            first = self._expected.first.get(source, 0)
            self._counts[source] = Counts(
                first,
                end=max(first, self._expected.end.get(source, first)),
                reach=self._expected.reach[source],
                outputs=self._question.outputs,
                numbered=bool(self._numbered),
                kinds_of=lambda start, stop: self._existing.kinds(source, start, stop),
                memory=self._ledger.memory,
                wanted=self._expected.wanted.get(source),
                complete=self._left.complete.get(source, ()),
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
        for some in by_letters(self._outputs.resent):
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
        for source in sorted(self._expected.end):
            counts = self._of_source(source)
            unsure = self._removed.before(source)
            for offsets, _ in counts.missing():
                if self._short or not self._question.outputs.exactly:
                    self._tally.unproven[NOT_FAR if self._short else NOT_EXACTLY] += len(offsets)
                    continue
                removed = offsets < unsure
                self._tally.unproven[OUTPUT_REMOVED] += int(removed.sum())
                offsets = offsets[~removed]
                if len(offsets):
                    held = self._ledger.held_back(0, source, offsets)
                    self._tally.missing(Anomaly.UNSEEN, source, offsets[held])
                    self._tally.missing(Anomaly.LOST, source, offsets[~held])
        self._tally.torn(lambda source, start, stop: self._of_source(source).present(start, stop))


def mixed_numbers(where: Partition, at: int, numbered: bool) -> InvalidOption:
    """Return the error over the first record that is not ``numbered`` as those before it, or is and they are not."""
    has, had = ("no #k", "#k") if numbered else ("#k", "no #k")
    return InvalidOption(
        f"the origin of {where[0]}-{where[1]}@{at} ends in {has}, but the origins of earlier records ended in {had}",
        "Make either all output records of the stream say which output of their input record they are (#0, #1, ...), "
        "or none of them",
    )
