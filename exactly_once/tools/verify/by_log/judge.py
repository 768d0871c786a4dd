"""The verdicts on the output by the commit log: every decided part against what stands in the log. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from exactly_once.inspection.findings import title
from exactly_once.inspection.words import are, plural
from exactly_once.kafka.admin import Partition
from exactly_once.participants.kafka.digest_scope import SCOPES, TIMESTAMP, has_headers, is_computable
from exactly_once.protocol.batch_headers import pair_of
from exactly_once.protocol.checksum import distribution_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PartId
from exactly_once.protocol.records import Decision, OffsetRange, PreparedTransaction
from exactly_once.protocol.topics import recreated
from exactly_once.tools.verify.anomalies import MOST_PLACES, Anomaly, Finding
from exactly_once.tools.verify.by_log.ledger import (
    Answers,
    Ledger,
    Span,
    digest_of,
    give,
    name_of,
    shorter_digests,
)
from exactly_once.tools.verify.report import NOT_PROVEN, RIGHT, WRONG, Answer

#: Difference of two brokers' clocks: a marker carries that of its partition's leader, a decision that of the commit
#: log's.
CLOCKS_MS = 1_000

#: Reasons why a part is not proven.
NO_HANDLES = "the log keeps no handles of the batch"
OTHER_OUTPUT = "in an output that was not given"
UNDER_WAY = "decided, and its commit is under way"
REMOVED = "retention or compaction removed records"
RECREATED = "the topic was deleted and recreated after the decision"
TOPIC_GONE = "the topic is gone"
NO_DIGEST = "its digest cannot be computed from what a reader gets"

#: The fault of a part that is in the log, but that a hanging transaction before it keeps from readers: its cause is
#: another finding.
HELD = "held back by a hanging transaction"


@dataclass(frozen=True, slots=True)
class PartSpans:
    """The spans that were found of one decided transaction."""

    handle: PreparedTransaction
    spans: tuple[Span, ...]
    decision: Decision

    @property
    def other_batches(self) -> set[str]:
        """The batches that its records name in the sink's headers, but for its own; "none" of a record without them,
        where its handle says that each has them.
        """
        part = PartId.parse(self.handle.transactional_id)
        right = pair_of(part.sink_id if part is not None else "", self.decision.batch_id)
        wrong = {pair for s in self.spans for pair in s.named} - {right}
        return {
            " of ".join((value or b"").decode(errors="replace") for _, value in reversed(pair)) or "none"
            for pair in wrong
        }

    @property
    def visible(self) -> int:
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
        return [s for s in self.spans if s.committed is False]

    def is_held(self, held: Mapping[Partition, int]) -> bool:
        """Return whether all of it is in the log, and a hanging transaction alone keeps readers from the rest."""
        hidden = [s for s in self.spans if s.committed is None or s.hidden]
        behind = all(s.last >= held.get(s.where, s.last + 1) for s in hidden)
        return bool(hidden) and behind and not self.aborted

    @property
    def whole(self) -> bool:
        """True when readers get exactly as many records as the handle names."""
        return self.visible == self.handle.records

    @property
    def scopes(self) -> list[str]:
        """The scopes in which its digest can be computed; several to try where its handle does not say."""
        form = self.handle.form
        return [scope for scope in ([form] if form else SCOPES) if is_computable(scope)]

    @property
    def is_dated(self) -> bool:
        """True when its digest covers timestamps, and brokers have replaced some."""
        return TIMESTAMP in self.handle.form and any(s.dated_by_broker for s in self.spans)

    @property
    def matches(self) -> bool:
        """True when its records have the digest of its handle, or would have it without what an agent added."""
        of = self.spans
        return any(self.handle.digest in {digest_of(of, s), *shorter_digests(of, s)} for s in self.scopes)

    @property
    def settled(self) -> bool:
        """True when readers get exactly its records, and nothing of its transaction is open or aborted."""
        return self.whole and not self.open and not self.aborted

    @property
    def name(self) -> str:
        return name_of(self.handle.transactional_id, (self.handle.producer_id, self.handle.epoch))

    @property
    def of(self) -> str:
        """Its number and its batch, for a finding."""
        return f"part {self.handle.part} of {title(self.decision)}"

    @property
    def places(self) -> tuple[str, ...]:
        """The places of its records; when it has none, the place of the first of them, as its decision says."""
        first = self.handle.place
        if not self.spans and first is not None:
            return (f"{first.topic}-{first.partition}@{first.offset}",)
        return tuple(s.place for s in self.spans)


@dataclass
class Verdict:
    """Findings, and the sums of what was proven.

    Batches are named by query and number: ``whole`` are those whose every part is proven, and ``unmarked`` those of
    them that the log does not mark as completed; Kafka shows something of ``shown``, and nothing of ``absent``, which
    should be there. ``removed`` counts, by reason, the records that the decisions count and that are not in the output
    any more; ``answers`` has the answer on the records of each span.
    """

    findings: list[Finding] = field(default_factory=list)
    whole: set[tuple[str, int]] = field(default_factory=set)
    shown: set[tuple[str, int]] = field(default_factory=set)
    absent: set[tuple[str, int]] = field(default_factory=set)
    unmarked: set[tuple[str, int]] = field(default_factory=set)
    removed: Counter[str] = field(default_factory=Counter)
    answers: Answers = field(default_factory=dict)
    parts: int = 0
    records: int = 0
    unproven: Counter[str] = field(default_factory=Counter)

    @property
    def batches(self) -> int:
        return len(self.whole)

    def find(
        self,
        anomaly: Anomaly,
        what: str,
        decision: Decision | None = None,
        transaction: str = "",
        places: Sequence[str] = (),
        records: int = 0,
        spans: Sequence[Span] = (),
        batch: str = "",
    ) -> Answer:
        """Add a finding; return the answer on the records that it concerns, which those of ``spans`` get."""
        answer, batch = Answer(WRONG), title(decision) if decision else batch
        places = places or [s.place for s in spans]
        self.findings.append(Finding(anomaly, what, batch, transaction, tuple(places[:MOST_PLACES]), records))
        give(self.answers, spans, answer)
        return answer

    def leave(self, why: str) -> Answer:
        """Count a part that is not proven; return the answer on its records."""
        self.unproven[why] += 1
        return Answer(NOT_PROVEN, why)

    def lacks(self, decision: Decision, name: str, what: str, marked: bool, torn: str = "", records: int = 0) -> None:
        """Add the findings for a batch of which an output does not show all: ``name`` is the first missing transaction,
        ``what`` describes it, ``torn`` says which parts are there ("": none, or nobody knows).
        """
        if torn:
            self.find(Anomaly.TORN_BATCH, f"{title(decision)}: {torn}", decision, name, records=records)
        if marked:
            lie = f"{title(decision)} is marked completed in the commit log, but {what}"
            self.find(Anomaly.OUTCOME_LIE, lie, decision, name)


@dataclass(frozen=True)
class OutputState:
    """The state of the topics and of the checkpoint, as far as it explains that records are not there or not read.

    ``removed`` has partitions of which records may be missing for a good reason, with the first offset from which on
    none is (a very large number: the topic is compacted). ``topic_ids`` are the brokers' ids of the output topics now,
    "" of one that is gone. ``held`` has the offset at which a hanging transaction begins: readers come no further.
    ``committed_by_spark`` are the batches in Spark's ``commits/``.
    """

    removed: Mapping[Partition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[Partition, int] = field(default_factory=dict)
    committed_by_spark: frozenset[int] = frozenset()

    def why_gone(self, decision: Decision) -> str:
        """Return why nothing of ``decision`` can be in one of its topics; "" when it can."""
        now = self.topic_ids
        if any(now.get(topic) == "" for topic in decision.topics):
            return TOPIC_GONE
        return RECREATED if recreated(decision.ids_by_topic, now) else ""


def judge_decisions(decisions: Sequence[Decision], log: LogState, ledger: Ledger, output: OutputState) -> Verdict:
    """Judge every part of ``decisions``, oldest first. ``log`` is theirs, for marks and times."""
    judge = _Judge(log, ledger, output)
    for decision in decisions:
        judge.judge_batch(decision)
    for query_id in dict.fromkeys(d.query_id for d in decisions):
        judge.judge_order([d for d in decisions if d.query_id == query_id])
    return judge.verdict


def parts_of(decision: Decision, ledger: Ledger) -> list[PartSpans]:
    """Return the parts of a decision in Kafka, each with what was found of it."""
    return [PartSpans(h, tuple(ledger.of((h.producer_id, h.epoch))), decision) for h in decision.transactions]


def differing(decisions: Iterable[Decision], ledger: Ledger) -> list[Span]:
    """Return the spans of parts that are there with another digest than their handles', and ask for their records
    again: only for those it matters what an agent may have added.
    """
    parts = (part for d in decisions for part in parts_of(d, ledger) if part.settled and part.handle.digest)
    told = (part for part in parts if any(map(has_headers, part.scopes)) and not part.is_dated)
    found = [s for part in told if not part.matches for s in part.spans]
    for span in found:
        span.again = 0
    return found


class _Judge:
    """The judge of one decision after the other, oldest first. ``_whole`` are the partitions in which an earlier batch
    has records: retention has not reached the next one there.
    """

    def __init__(self, log: LogState, ledger: Ledger, output: OutputState):
        self._log, self._ledger, self._output = log, ledger, output
        self._whole: set[Partition] = set()
        self.verdict = Verdict()

    def judge_batch(self, decision: Decision) -> None:
        key, verdict = (decision.query_id, decision.batch_id), self.verdict
        if decision.totals:
            verdict.unproven[NO_HANDLES] += decision.part_count
            return
        parts, marked = parts_of(decision, self._ledger), key in self._log.marks
        results = [(p, self._answer(p, marked)) for p in parts]
        for p, answer in results:
            give(verdict.answers, p.spans, answer)
        if not decision.rewritten:
            for p in parts:
                self._judge_time(p, self._log.decided_ms.get(key, 0))
        missing = [p for p, answer in results if answer == Answer(WRONG) and p.visible < p.handle.records]
        shows_some = any(p.visible for p in parts)
        if missing:
            self._judge_missing(missing, len(parts) if shows_some else 0, decision, marked)
        if shows_some:
            verdict.shown.add(key)
        elif missing:
            verdict.absent.add(key)
        proven = [p for p, answer in results if answer.kind == RIGHT]
        if len(proven) == len(parts):
            verdict.whole.add(key)
            if not marked:
                verdict.unmarked.add(key)
        verdict.parts += len(proven)
        verdict.records += sum(p.handle.records for p in proven)
        removed = self._output.removed
        self._whole |= {s.where for p in parts for s in p.spans if s.last >= removed.get(s.where, 0)}

    def _answer(self, part: PartSpans, marked: bool) -> Answer:
        """Judge one decided transaction, by its records or by what explains that they are not there."""
        decision, due = part.decision, part.handle.records
        gone = "" if part.whole or part.aborted else self._output.why_gone(decision)
        if gone and not marked and not part.spans:
            what = f"decided and not marked completed, and {gone}: its {plural(due, 'record')} {are(due)} nowhere"
            return self.verdict.find(Anomaly.LOST, f"{part.of} is {what}", decision, part.name, records=due)
        if not gone and not part.whole and self._may_be_removed(part):
            gone = REMOVED
        if part.is_held(self._output.held):
            return Answer(WRONG, HELD)
        if not gone:
            return self._judge_part(part, marked)
        self.verdict.removed[gone] += max(0, due - part.present)
        return self.verdict.leave(gone)

    def _judge_missing(self, missing: Sequence[PartSpans], torn_of: int, decision: Decision, marked: bool) -> None:
        """Add the findings for a batch of which some parts are not completely visible; ``torn_of`` is the number of its
        parts where something of it is visible, else 0.
        """
        name, records = missing[0].name, sum(p.handle.records - p.visible for p in missing)
        what = f"{name} is not completely visible"
        torn = f"{len(missing)} of {torn_of} parts are not completely visible, the others are" if torn_of else ""
        self.verdict.lacks(decision, name, what, marked, torn, records)
        if not decision.write_id and decision.batch_id in self._output.committed_by_spark:
            ahead = f"Spark's commits/{decision.batch_id} exists, but {what}"
            self.verdict.find(Anomaly.CHECKPOINT_AHEAD, ahead, decision, name)

    def _judge_part(self, part: PartSpans, marked: bool) -> Answer:
        """Judge one decided transaction: right when readers get exactly its records."""
        find, due, of = self.verdict.find, part.handle.records, part.of
        at = part.decision, part.name, part.places
        if part.settled:
            return self._judge_contents(part)
        missing, aborted = due - part.visible, part.aborted
        if missing < 0:
            more = f"{of}: its transaction shows {plural(-missing, 'record')} more than its task wrote"
            return find(Anomaly.PHANTOM, more, *at, -missing)
        if part.whole and aborted:
            extra = sum(s.records for s in aborted)
            what = f"as many records of its transaction are visible as its task wrote, and {extra} more were aborted"
            return find(Anomaly.TORN_TRANSACTION, f"{of}: {what}", *at[:2], records=extra, spans=aborted)
        hidden = sum(s.hidden for s in part.spans if s.committed)
        if not aborted and part.present >= due:
            if marked or hidden:
                unseen = f"{of} is decided, and {_unseen(part)}"
                return find(Anomaly.UNSEEN, unseen, *at, part.present - part.visible)
            return self.verdict.leave(UNDER_WAY)
        how = "were aborted" if aborted else "are hidden from readers" if hidden else "are not in the log"
        lost = f"{of} is decided, and {missing} of its {due} records {how}"
        answer = find(Anomaly.LOST, lost, *at[:2], [s.place for s in aborted] or part.places, missing)
        if part.visible:
            seen = f"{plural(part.visible, 'record')} of its transaction {are(part.visible)} visible"
            find(Anomaly.TORN_TRANSACTION, f"{of}: {seen}, and {missing} {how}", *at, missing)
        return answer

    def _judge_contents(self, part: PartSpans) -> Answer:
        h = part.handle
        stands = {s.where: OffsetRange(s.first, s.records) for s in part.spans}
        visible = f"its {h.records} visible records"
        if outside := {topic for topic, _ in stands}.difference(part.decision.topics):
            wrong = f"its records are in {', '.join(sorted(outside))}, which its decision does not name"
        elif h.distribution and distribution_of(stands) != h.distribution:
            wrong = f"{visible} are not in the partitions and at the offsets where its task wrote them"
        elif other := part.other_batches:
            wrong = f"the headers of its records name other batches of a sink: {', '.join(sorted(other))}"
        elif part.matches:
            return Answer(RIGHT)
        elif not h.form or not part.scopes or not h.digest or part.is_dated:
            return self.verdict.leave(NO_DIGEST)
        elif has_headers(h.form) and any(s.again != s.records for s in part.spans):  # gone before they were read again
            return self.verdict.leave(REMOVED)
        else:
            wrong = (
                f"{visible} have the digest {digest_of(part.spans, h.form)}, but its task wrote {h.digest}; an "
                "interceptor of the producer (kafka.interceptor.classes), or an agent in its JVM, that changes records "
                "causes the same"
            )
        at = part.decision, part.name, part.places, h.records
        return self.verdict.find(Anomaly.CORRUPT, f"{part.of}: {wrong}", *at)

    def _judge_time(self, part: PartSpans, decided_ms: int) -> None:
        early = [s for s in part.spans if s.committed and 0 <= s.marked_ms < decided_ms - CLOCKS_MS]
        if early:
            before_ms, records = decided_ms - min(s.marked_ms for s in early), sum(s.visible for s in early)
            what = f"{part.of} was visible {before_ms} ms before its decision"
            at = part.decision, part.name
            self.verdict.find(Anomaly.PRECOMMITTED_READ, what, *at, records=records, spans=early)

    def judge_order(self, decisions: Sequence[Decision]) -> None:
        """Check that in each partition, all of a batch precedes all of the next one."""
        by_partition: dict[Partition, list[tuple[int, list[Span]]]] = {}
        for decision in sorted(decisions, key=lambda d: d.batch_id):
            here: dict[Partition, list[Span]] = {}
            for s in (s for p in parts_of(decision, self._ledger) for s in p.spans if s.committed and s.visible):
                here.setdefault(s.where, []).append(s)
            for where, spans in here.items():
                by_partition.setdefault(where, []).append((decision.batch_id, spans))
        for (topic, partition), batches in by_partition.items():
            for (n, before), (later, spans) in pairwise(batches):
                first, last = min(s.first for s in spans), max(s.last for s in before)
                if first < last:
                    at = f"{topic}-{partition}"
                    what = f"in {at}, batch {later} begins at offset {first}, before batch {n} ends at {last}"
                    places, batch = (f"{at}@{first}", f"{at}@{last}"), f"batch {later}"
                    self.verdict.find(Anomaly.BATCH_REORDER, what, places=places, spans=spans, batch=batch)

    def _may_be_removed(self, part: PartSpans) -> bool:
        """Return whether retention or compaction explains what is missing.

        A transaction names only one of its partitions, and may have begun in any. Where an earlier batch still has
        records, or where it names its own beginning, retention has not come to it. It aborts nothing.
        """
        if part.aborted or part.present >= part.handle.records:
            return False
        place, removed, whole = part.handle.place, self._output.removed, self._whole
        if place is not None and place[:2] in removed and place.offset >= removed[place[:2]]:
            whole = {*whole, place[:2]}
        return any(where[0] in part.decision.topics and where not in whole for where in removed)


def _unseen(part: PartSpans) -> str:
    """Describe the records of a transaction that nobody aborted that are in the log, and not visible."""
    due, present, visible = part.handle.records, part.present, part.visible
    if present == due:
        return f"{due - visible} of its {due} records are in the log but not visible"
    more = f"its transaction has {plural(present, 'record')} in the log, {present - due} more than its task wrote"
    return f"{more}: {visible} are visible, {present - visible} are not"


def latest(decisions: Iterable[Decision], later: LogState) -> list[Decision]:
    """Return the decisions as a later read of their log has them.

    Lost parts may have been written again meanwhile. The log may also have dropped the handles, or the decision.
    """
    now = {(d.query_id, d.batch_id): d for d in later.decisions}
    found = [(d, now.get((d.query_id, d.batch_id), d)) for d in decisions]
    return [d if n.totals else n for d, n in found]
