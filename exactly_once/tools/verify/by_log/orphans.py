"""Committed transactions of the sink that no decision names: each is an anomaly, and its evidence says which. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from exactly_once.inspection.findings import decided_at, title
from exactly_once.inspection.words import are, plural
from exactly_once.kafka.admin import Partition
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PartId, slot_of
from exactly_once.protocol.records import Aborted, Decision, PreparedTransaction
from exactly_once.tools.verify.anomalies import MOST_PLACES, Anomaly
from exactly_once.tools.verify.by_log.judge import NO_HANDLES, Verdict
from exactly_once.tools.verify.by_log.ledger import Ledger, Span, digest_of, give, name_of
from exactly_once.tools.verify.report import NOT_PROVEN, WRONG, Answer

#: Time after a batch's completed mark by which its end markers are written.
_MARKERS_MS = 60_000

#: Reasons why a transaction that no decision names is not called an orphan.
OLDER = "committed transactions that no decision names, which may be of batches older than the log"


@dataclass(slots=True)
class _Range:
    """The range of a decided batch in a partition: the offsets of its first record and of its last end marker."""

    decision: Decision
    first: int
    end: int


_Ranges = Mapping[Partition, Sequence[_Range]]


def judge_orphans(
    ledger: Ledger,
    decisions: Sequence[Decision],
    log: LogState,
    ids: Mapping[int, str],
    verdict: Verdict,
    also: Sequence[Decision] = (),
) -> None:
    """Add a finding for each orphan, and count the transactions that may be of batches before ``decisions``: at least
    one, oldest first, those that the output was read for. Further ones in ``also`` name transactions in the range;
    ``ids`` has the transactional ids of the sink by producer id. ``log`` was read after the output, so whatever is
    visible there was decided before.
    """
    named = {(h.producer_id, h.epoch) for d in (*decisions, *also, *log.decisions) for h in d.transactions}
    ranges, whole = _ranges(decisions, ledger), from_the_first(decisions, log)
    first = decisions[0]
    first_ms = decided_at(first, log)
    for writer, spans in ledger.spans.items():
        if writer in named or writer[0] not in ids:
            continue
        visible = tuple(s for s in spans if s.committed and s.visible)
        within = {s.where: some[0].first for s in visible if (some := ranges.get(s.where))}
        late_ms = first_ms + _MARKERS_MS
        mine = tuple(s for s in visible if whole or s.marked_ms > late_ms or s.first > within.get(s.where, s.first))
        if mine and not _excused(mine, log):
            anomaly, why, batch = _classify(ids[writer[0]], mine, ranges, decisions, log)
            name = name_of(ids[writer[0]] or "an id that no coordinator knows", writer)
            records = sum(s.visible for s in mine)
            seen = f"{plural(records, 'record')} of the transaction of {name} {are(records)} visible"
            what = f"{seen}, but no decision names it: {why}"
            verdict.find(anomaly, what, None, name, records=records, spans=mine, batch=batch)
        elif mine:
            give(verdict.answers, mine, Answer(NOT_PROVEN, NO_HANDLES))
        elif any(s.where not in ranges or s.marked_ms >= first_ms for s in visible):
            give(verdict.answers, visible, Answer(NOT_PROVEN, OLDER))
            verdict.unproven[OLDER] += 1


def judge_copies(ledger: Ledger, decisions: Sequence[Decision], verdict: Verdict, ids: Mapping[int, str]) -> None:
    """Add a finding for each committed transaction of another writer that has the rows of a decided part; ``ids`` has
    the transactional ids of these writers by producer id, as far as they are known.
    """
    rows = {(h.records, h.digest): (d, h) for d in decisions for h in d.transactions if h.digest}
    for writer, spans in ledger.strangers.items():
        for one in _transactions(spans):
            records, scopes = sum(s.records for s in one), set.intersection(*(set(s.digests) for s in one))
            same = next((found for s in scopes if (found := rows.get((records, digest_of(one, s))))), None)
            if same is None or any(s.where[0] not in same[0].topics for s in one):  # elsewhere it is no copy
                continue
            name = name_of(ids.get(writer[0]) or "another application", writer)
            rows_of = f"the rows of part {same[1].part} of {title(same[0])}"
            what = f"{plural(records, 'record')} of the transaction of {name} {are(records)} {rows_of}"
            verdict.find(Anomaly.DUPLICATE, what, same[0], name, records=records, spans=one)


def _transactions(spans: Sequence[Span]) -> list[list[Span]]:
    """Return the spans of one producer and epoch, transaction by transaction.

    Below transaction.version 2 (KIP-890) a producer keeps its epoch: then the end markers of one transaction are those
    that follow one another in time, at most one in each partition.
    """
    found: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: s.marked_ms):
        if not found or any(s.where == span.where for s in found[-1]):
            found.append([])
        found[-1].append(span)
    return found


def judge_without_decisions(ledger: Ledger, ids: Mapping[int, str], verdict: Verdict) -> tuple[int, tuple[str, ...]]:
    """Answer on the committed transactions of a sink whose commit log holds no decision at all: no decision names them.
    Returns the number of their records, and where they are.
    """
    mine = [s for w, spans in ledger.spans.items() if w[0] in ids for s in spans if s.committed and s.visible]
    give(verdict.answers, mine, Answer(WRONG))
    return sum(s.visible for s in mine), tuple(s.place for s in mine)[:MOST_PLACES]


def from_the_first(decisions: Sequence[Decision], log: LogState) -> bool:
    """Return whether ``decisions`` are all that the sink ever made, its first batch among them: then each committed
    transaction of the sink is in one of them. Only a query from which the sink was taken (``sink.takeover``) can have
    made more.
    """
    batches = [d for d in log.decisions if not d.write_id]
    given = {(d.query_id, d.batch_id) for d in decisions}
    return bool(batches) and log.has_all and (batches[0].query_id, 0) in given


def _classify(
    transactional_id: str, spans: Sequence[Span], ranges: _Ranges, decisions: Sequence[Decision], log: LogState
) -> tuple[Anomaly, str, str]:
    """Return what a committed transaction that no decision names is, why, and the name of its batch."""
    followed = (s for s in spans if any(r.first > s.first for r in ranges.get(s.where, ())))
    span = next(followed, spans[0])  # a batch after it in one partition tells more than none in another one
    first, some = span.first, ranges.get(span.where, ())
    before = next((r for r in reversed(some) if r.first < first), None)
    after = next((r for r in some if r.first > first), None)
    part, same = PartId.parse(transactional_id), _same_rows(spans, decisions)
    if part is not None and before is not None and _superseded(part, before.decision, decisions):
        newer = f"claim {before.decision.token}, which had superseded its driver, wrote records before it"
        return Anomaly.ZOMBIE_VISIBLE, newer, ""
    if same is not None:
        batch = title(same[0])
        return Anomaly.DUPLICATE, f"they are the rows of part {same[1].part} of {batch}", batch
    if part is not None and (given_up := _given_up(part, after, decisions[-1], log)):
        batch = f"batch {given_up.batch_id}"
        return Anomaly.ABORTED_READ, f"the driver gave up this execution of {batch}", batch
    within = before.decision if before is not None and first < before.end else None
    if part is not None and within is not None and (other := _other_attempt(part, within)):
        return Anomaly.MIXED_ATTEMPT, f"the decided attempt of part {part.part} is {other}", title(within)
    if after is not None:
        return Anomaly.PHANTOM, f"it comes before {title(after.decision)}", ""
    last = decisions[-1]
    if before is None and span.marked_ms < decided_at(last, log):
        return Anomaly.PHANTOM, f"it was committed before {title(last)} was decided", ""
    return Anomaly.OUTPUT_AHEAD, f"its batch is not decided; the last decision is of {title(last)}", ""


def _ranges(decisions: Sequence[Decision], ledger: Ledger) -> dict[Partition, list[_Range]]:
    """Return, by partition, the range of each batch, in the order of the partition."""
    ranges: dict[Partition, list[_Range]] = {}
    for d in decisions:
        here: dict[Partition, _Range] = {}
        for h in d.transactions:
            for s in ledger.of((h.producer_id, h.epoch)):
                r = here.setdefault(s.where, _Range(d, s.first, s.end))
                r.first, r.end = min(r.first, s.first), max(r.end, s.end)
        for where, r in here.items():
            ranges.setdefault(where, []).append(r)
    for some in ranges.values():
        some.sort(key=lambda r: r.first)
    return ranges


def _same_rows(spans: Sequence[Span], decisions: Sequence[Decision]) -> tuple[Decision, PreparedTransaction] | None:
    """Return the decided part whose number and digest they have."""
    digests = {digest_of(spans, scope) for scope in set.intersection(*(set(s.digests) for s in spans))}
    records = sum(s.records for s in spans)
    of_all = ((d, h) for d in decisions for h in d.transactions)
    return next(((d, h) for d, h in of_all if h.records == records and h.digest in digests), None)


def _superseded(part: PartId, before: Decision, decisions: Sequence[Decision]) -> bool:
    """Return whether its slot is that of an older claim than the one that wrote right before it."""
    current = {slot_of(d.token) for d in decisions if d.token >= before.token}
    older = {slot_of(token) for token in (before.token - 1, *(d.token for d in decisions))}
    return part.slot in older - current


def _given_up(part: PartId, after: _Range | None, last: Decision, log: LogState) -> Aborted | None:
    """Return the last execution that a driver gave up, if the orphan is of it by its slot and its place."""
    given_up = log.aborted
    if given_up is None or part.slot != slot_of(given_up.token):
        return None
    before_it = given_up.batch_id == after.decision.batch_id if after is not None else given_up.batch_id > last.batch_id
    return given_up if before_it else None


def _other_attempt(part: PartId, decision: Decision) -> str:
    """Return the decided transaction of the same part in another attempt; "" without one."""
    ids = {h.transactional_id: PartId.parse(h.transactional_id) for h in decision.transactions}
    return next((name for name, p in ids.items() if p is not None and p.part == part.part and p != part), "")


def _excused(spans: Sequence[Span], log: LogState) -> bool:
    """Return whether it may be a part of a batch whose handles the log has dropped."""
    for d in log.decisions:
        mark = log.marks.get((d.query_id, d.batch_id))
        if d.totals and mark is not None:
            from_ms = decided_at(d, log)
            if all(from_ms <= s.marked_ms <= mark.completed_ms + _MARKERS_MS for s in spans):
                return True
    return False
