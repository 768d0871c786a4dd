"""The verdicts on the output by the commit log: every decided part against what stands in the log. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from exactly_once.inspection.findings import batch_name
from exactly_once.kafka.admin import Partition
from exactly_once.participants.kafka.digest_scope import SCOPES, TIMESTAMP, is_computable
from exactly_once.protocol.batch_headers import pair_of
from exactly_once.protocol.checksum import spread_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PartId
from exactly_once.protocol.records import Decision, Extent, PreparedTransaction
from exactly_once.verify.anomalies import MOST_PLACES, Anomaly, Finding
from exactly_once.verify.by_log.ledger import Ledger, Span, digest_of

#: A marker carries the clock of its partition's leader, a decision that of the commit log's: between two brokers they
#: may differ by so much.
CLOCKS_MS = 1_000

#: Why a part is not proven.
NO_HANDLES = "the log keeps no handles of the batch"
OTHER_OUTPUT = "in an output that was not given"
UNDER_WAY = "decided, and its commit is under way"
REMOVED = "retention or compaction removed records"
NO_DIGEST = "its digest cannot be computed from what a reader gets"

#: What is known of a part.
PROVEN, UNPROVEN, WRONG = "proven", "unproven", "wrong"


@dataclass(frozen=True, slots=True)
class PartSpans:
    """The spans that were found of one decided transaction."""

    handle: PreparedTransaction
    spans: tuple[Span, ...]
    topics: tuple[str, ...]
    """Those that its decision names."""
    batch_id: int

    @property
    def other_batches(self) -> set[str]:
        """The batches that its records name in the sink's headers, but for its own; "none" of a record without them,
        where its handle says that each has them.
        """
        part = PartId.parse(self.handle.transactional_id)
        right = pair_of(part.sink_id if part is not None else "", self.batch_id)
        wrong = {pair for s in self.spans for pair in s.named} - {right}
        return {
            " of ".join((value or b"").decode(errors="replace") for _, value in reversed(pair)) or "none"
            for pair in wrong
        }

    @property
    def visible(self) -> int:
        """Records that readers get."""
        return sum(s.visible for s in self.spans if s.committed)

    @property
    def present(self) -> int:
        """Records in the log, visible or not."""
        return sum(s.records for s in self.spans)

    @property
    def open(self) -> bool:
        """True when one of its partitions has no end marker yet, or readers do not get to it."""
        return any(s.committed is None for s in self.spans) or any(s.committed and s.hidden for s in self.spans)

    @property
    def aborted(self) -> list[Span]:
        """The spans that were aborted."""
        return [s for s in self.spans if s.committed is False]

    @property
    def whole(self) -> bool:
        """True when readers get exactly as many records as the handle names."""
        return self.visible == self.handle.records

    @property
    def name(self) -> str:
        """The name of its transaction, for a finding."""
        h = self.handle
        return f"{h.transactional_id} (producer {h.producer_id}, epoch {h.epoch})"

    @property
    def places(self) -> tuple[str, ...]:
        """The places of its records; when it has none, the place of the first of them, as its decision says."""
        first = self.handle.place
        if not self.spans and first is not None:
            return (f"{first.topic}-{first.partition}@{first.offset}",)
        return tuple(s.place for s in self.spans)[:MOST_PLACES]


@dataclass
class Verdict:
    """Findings, and the sums of what was proven.

    Attributes
    ----------
    whole : set
        Query and number of the batches whose every part is proven.
    shown, absent : set
        The batches of which Kafka shows something; those that should be there, and of which it shows nothing.
    """

    findings: list[Finding] = field(default_factory=list)
    whole: set[tuple[str, int]] = field(default_factory=set)
    shown: set[tuple[str, int]] = field(default_factory=set)
    absent: set[tuple[str, int]] = field(default_factory=set)
    parts: int = 0
    records: int = 0
    unproven: Counter[str] = field(default_factory=Counter)

    @property
    def batches(self) -> int:
        """The number of batches that are proven."""
        return len(self.whole)

    def find(self, anomaly: Anomaly, what: str, **more: Any) -> None:
        """Add a finding."""
        self.findings.append(Finding(anomaly, what, **more))


def judge_decisions(
    decisions: Sequence[Decision],
    log: LogState,
    ledger: Ledger,
    removed: Mapping[Partition, int],
    committed_by_spark: frozenset[int] = frozenset(),
) -> Verdict:
    """Judge every part of ``decisions``, oldest first.

    Parameters
    ----------
    log : LogState
        Their log, for marks and times.
    removed : mapping
        By partition of which records may be missing for a good reason, the first offset that is certainly whole:
        retention has deleted what is before it (a very large number: the topic is compacted).
    committed_by_spark : set of int
        The batches in Spark's ``commits/``.
    """
    verdict = Verdict()
    for decision in decisions:
        _judge_batch(decision, log, ledger, removed, committed_by_spark, verdict)
    for query_id in dict.fromkeys(d.query_id for d in decisions):
        _judge_order([d for d in decisions if d.query_id == query_id], ledger, verdict)
    return verdict


def _judge_batch(
    decision: Decision,
    log: LogState,
    ledger: Ledger,
    removed: Mapping[Partition, int],
    committed_by_spark: frozenset[int],
    verdict: Verdict,
) -> None:
    batch = batch_name(decision.query_id, decision.batch_id)
    marked = (decision.query_id, decision.batch_id) in log.marks
    if decision.totals:
        verdict.unproven[NO_HANDLES] += decision.part_count
        return
    parts = [
        PartSpans(h, tuple(ledger.of((h.producer_id, h.epoch))), decision.topics, decision.batch_id)
        for h in decision.transactions
    ]
    gone = [p for p in parts if not p.whole and _may_be_removed(p, decision, removed)]
    verdict.unproven[REMOVED] += len(gone)
    judged = [p for p in parts if p not in gone]
    results = [(p, _judge_part(p, batch, marked, verdict)) for p in judged]
    wrong = [p for p, result in results if result == WRONG]
    if not decision.rewritten:
        for p in parts:
            _judge_time(p, batch, log.decided_ms.get((decision.query_id, decision.batch_id), 0), verdict)
    missing = [p for p in wrong if p.visible < p.handle.records]
    if missing and any(p.visible for p in parts):
        lost = sum(p.handle.records - p.visible for p in missing)
        verdict.find(
            Anomaly.TORN_BATCH,
            f"{batch}: {len(missing)} of {len(parts)} parts are not completely visible, the others are",
            batch=batch,
            transaction=missing[0].name,
            records=lost,
        )
    if missing and marked:
        verdict.find(
            Anomaly.OUTCOME_LIE,
            f"{batch} is marked completed in the commit log, but {missing[0].name} is not completely visible",
            batch=batch,
            transaction=missing[0].name,
        )
    if missing and not decision.write_id and decision.batch_id in committed_by_spark:
        verdict.find(
            Anomaly.CHECKPOINT_AHEAD,
            f"Spark's commits/{decision.batch_id} exists, but {missing[0].name} is not completely visible",
            batch=batch,
            transaction=missing[0].name,
        )
    key = decision.query_id, decision.batch_id
    if any(p.visible for p in parts):
        verdict.shown.add(key)
    elif missing:
        verdict.absent.add(key)
    proven = [p for p, result in results if result == PROVEN]
    if len(proven) == len(parts):
        verdict.whole.add(key)
    verdict.parts += len(proven)
    verdict.records += sum(p.handle.records for p in proven)


def _judge_part(part: PartSpans, batch: str, marked: bool, verdict: Verdict) -> str:
    """Judge one decided transaction: :data:`PROVEN` when readers get exactly its records."""
    h = part.handle
    at: dict[str, Any] = {"batch": batch, "transaction": part.name, "places": part.places}
    of = f"part {h.part} of {batch}"
    if part.whole and not part.open and not part.aborted:
        return _judge_contents(part, of, at, verdict)
    missing = h.records - part.visible
    if missing < 0:
        verdict.find(
            Anomaly.PHANTOM,
            f"{of}: its transaction shows {-missing} more records than its task wrote",
            **at,
            records=-missing,
        )
        return WRONG
    if part.whole and part.aborted:
        more = sum(s.records for s in part.aborted)
        verdict.find(
            Anomaly.TORN_TRANSACTION,
            f"{of}: as many records of its transaction are visible as its task wrote, and {more} more were aborted",
            **{**at, "places": tuple(s.place for s in part.aborted)[:MOST_PLACES]},
            records=more,
        )
        return WRONG
    hidden = sum(s.hidden for s in part.spans if s.committed)
    if not part.aborted and part.present >= h.records:
        if marked or hidden:
            what = f"{of} is decided, and {_unseen(part)}"
            verdict.find(Anomaly.UNSEEN, what, **at, records=part.present - part.visible)
            return WRONG
        verdict.unproven[UNDER_WAY] += 1
        return UNPROVEN
    how = "were aborted" if part.aborted else "are hidden from readers" if hidden else "are not in the log"
    verdict.find(
        Anomaly.LOST,
        f"{of} is decided, and {missing} of its {h.records} records {how}",
        **{**at, "places": tuple(s.place for s in part.aborted)[:MOST_PLACES] or part.places},
        records=missing,
    )
    if part.visible:
        verdict.find(
            Anomaly.TORN_TRANSACTION,
            f"{of}: {part.visible} records of its transaction are visible, and {missing} {how}",
            **at,
            records=missing,
        )
    return WRONG


def _unseen(part: PartSpans) -> str:
    """Describe the records of a transaction that nobody aborted that are in the log, and not visible."""
    due, present, visible = part.handle.records, part.present, part.visible
    if present == due:
        return f"{due - visible} of its {due} records are in the log but not visible"
    more = f"its transaction has {present} records in the log, {present - due} more than its task wrote"
    return f"{more}: {visible} are visible, {present - visible} are not"


def _judge_contents(part: PartSpans, of: str, at: Mapping[str, Any], verdict: Verdict) -> str:
    h = part.handle
    dated = any(s.dated_by_broker for s in part.spans)
    scopes = [scope for scope in ([h.form] if h.form else SCOPES) if is_computable(scope)]
    if outside := {s.where[0] for s in part.spans}.difference(part.topics):
        what = f"{of}: its records are in {', '.join(sorted(outside))}, which its decision does not name"
        verdict.find(Anomaly.CORRUPT, what, **at, records=h.records)
        return WRONG
    stands = {s.where: Extent(s.first, s.records) for s in part.spans}
    if h.spread and spread_of(stands) != h.spread:
        what = (
            f"{of}: its {h.records} visible records are not in the partitions and at the offsets where its task "
            "wrote them"
        )
        verdict.find(Anomaly.CORRUPT, what, **at, records=h.records)
        return WRONG
    if other := part.other_batches:
        what = f"{of}: the headers of its records name other batches of a sink: {', '.join(sorted(other))}"
        verdict.find(Anomaly.CORRUPT, what, **at, records=h.records)
        return WRONG
    if any(digest_of(part.spans, scope) == h.digest for scope in scopes):
        return PROVEN
    if not h.form or not scopes or not h.digest or (dated and TIMESTAMP in h.form):
        verdict.unproven[NO_DIGEST] += 1
        return UNPROVEN
    verdict.find(
        Anomaly.CORRUPT,
        f"{of}: its {h.records} visible records have the digest {digest_of(part.spans, h.form)}, but its task wrote "
        f"{h.digest}",
        **at,
        records=h.records,
    )
    return WRONG


def _judge_time(part: PartSpans, batch: str, decided_ms: int, verdict: Verdict) -> None:
    early = [s for s in part.spans if s.committed and 0 <= s.marked_ms < decided_ms - CLOCKS_MS]
    if early:
        first = min(early, key=lambda s: s.marked_ms)
        verdict.find(
            Anomaly.PRECOMMITTED_READ,
            f"part {part.handle.part} of {batch} was visible {decided_ms - first.marked_ms} ms before its decision",
            batch=batch,
            transaction=part.name,
            places=tuple(s.place for s in early)[:MOST_PLACES],
            records=sum(s.visible for s in early),
        )


def _judge_order(decisions: Sequence[Decision], ledger: Ledger, verdict: Verdict) -> None:
    """Check that in each partition, all of a batch precedes all of the next one."""
    by_partition: dict[Partition, list[tuple[int, int, int]]] = {}
    for decision in decisions:
        ranges: dict[Partition, tuple[int, int]] = {}
        for h in decision.transactions:
            for s in ledger.of((h.producer_id, h.epoch)):
                if s.committed and s.visible:
                    first, last = ranges.get(s.where, (s.first, s.last))
                    ranges[s.where] = min(first, s.first), max(last, s.last)
        for where, (first, last) in ranges.items():
            by_partition.setdefault(where, []).append((decision.batch_id, first, last))
    for (topic, partition), places in by_partition.items():
        for (n, _, last), (later, first, _) in pairwise(sorted(places)):
            if first < last:
                verdict.find(
                    Anomaly.BATCH_REORDER,
                    f"in {topic}-{partition}, batch {later} begins at offset {first}, before batch {n} ends at {last}",
                    batch=f"batch {later}",
                    places=(f"{topic}-{partition}@{first}", f"{topic}-{partition}@{last}"),
                )


def _may_be_removed(part: PartSpans, decision: Decision, removed: Mapping[Partition, int]) -> bool:
    """Return whether retention or compaction explains what is missing.

    A transaction names only one of its partitions.
    """
    place = part.handle.place
    if place is not None and (limit := removed.get(place[:2])) is not None:
        return place.offset < limit
    return place is None and any(topic in decision.topics for topic, _ in removed)


def latest(decisions: Iterable[Decision], later: LogState) -> list[Decision]:
    """Return the decisions as a later read of their log has them.

    Lost parts may have been written again meanwhile. The log may also have dropped the handles, or the decision.
    """
    now = {(d.query_id, d.batch_id): d for d in later.decisions}
    found = [(d, now.get((d.query_id, d.batch_id), d)) for d in decisions]
    return [d if n.totals else n for d, n in found]
