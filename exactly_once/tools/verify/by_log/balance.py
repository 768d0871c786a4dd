"""The balance of a commit log: every batch is decided once, every part is in one decision, and every committed
transaction of the sink is in one of them. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from exactly_once.checkpoint import Checkpoint
from exactly_once.inspection.findings import batch_name, title
from exactly_once.inspection.words import are, plural
from exactly_once.kafka.admin import Partition
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import (
    KEPT_DECISIONS,
    Completed,
    Decision,
    PreparedPart,
    PreparedTransaction,
    identity,
)
from exactly_once.protocol.topics import recreated
from exactly_once.tools.verify.anomalies import Anomaly
from exactly_once.tools.verify.by_log.judge import OutputState, Verdict, judge_decisions
from exactly_once.tools.verify.by_log.ledger import Ledger, Span, give
from exactly_once.tools.verify.by_log.orphans import judge_copies, judge_orphans
from exactly_once.tools.verify.expected import Positions, input_of
from exactly_once.tools.verify.report import WRONG, Answer

#: Reasons why a batch without a decision is not called lost, why a checkpoint leaves something open, why a repaired
#: batch is not proven, and why the input of a batch is not judged.
UNDECIDED = "batches that no decision names, which a weaker guarantee or another sink may have written"
TOO_FEW = "batches that the log should still keep before its first one: another sink wrote them, or they are gone"
UNCOMMITTED = "completed batches that Spark has not committed in the checkpoint: the next start drains them"
COMMITS_LACK = "batches whose file is missing among those of the checkpoint's commits/"
ALIKE = "parts of a repaired batch with one number and the same rows: two of one, or two alike"
BEGINS_ANYWHERE = "batches of a query that took the sink over, where nothing says at which input offset it began"


def judge_log(
    decisions: Sequence[Decision],
    log: LogState,
    ledger: Ledger,
    ids: Mapping[int, str],
    output: OutputState,
    also: Sequence[Decision] = (),
    others: Mapping[int, str] | None = None,
) -> Verdict:
    """Judge the output by the commit log, which was read after it.

    ``decisions`` are those that the output was read for, oldest first; ``also`` are those that the log has dropped
    since: they name transactions, too. ``ids`` and ``others`` map producer ids to transactional ids: of the sink, and
    of other writers.
    """
    verdict = judge_decisions(decisions, log, ledger, output)
    if decisions:
        judge_orphans(ledger, decisions, log, ids, verdict, also)
        judge_copies(ledger, decisions, verdict, others or {})
    _judge_numbers(log.decisions, verdict)
    _judge_names(log.decisions, ledger, verdict)
    _judge_marks(log.widowed, verdict)
    return verdict


def judge_balance(checkpoint: Checkpoint, earlier: LogState, verdict: Verdict) -> None:
    """Count what the checkpoint lacks, as long as a start goes on from it; ``earlier`` was read before it."""
    done = [b for query_id, b in earlier.marks if query_id == checkpoint.query_id]
    behind = sum(b > (-1 if checkpoint.last_commit is None else checkpoint.last_commit) for b in done)
    drained = min(behind, 1) if checkpoint.query_id is not None else 0
    verdict.unproven[UNCOMMITTED] += drained
    verdict.unproven[COMMITS_LACK] += checkpoint.commits_lack
    if behind > 1 and checkpoint.query_id is not None and checkpoint.last_offsets == max(done):
        verdict.unproven[COMMITS_LACK] += behind - 1


def judge_input(decisions: Sequence[Decision], began: Mapping[str, Positions], verdict: Verdict) -> None:
    """Find input that two queries of the sink have decided, by the offsets in their decisions; ``began`` is where the
    first batch of a query began to read, as far as a checkpoint tells.
    """
    queries: dict[str, list[Decision]] = {}
    for d in decisions:
        if not d.write_id:
            queries.setdefault(d.query_id, []).append(d)
    taken: dict[Partition, list[tuple[int, int, Decision]]] = {}
    for query_id, mine in queries.items() if len(queries) > 1 else ():
        read = list(_ranges(sorted(mine, key=lambda d: d.batch_id), began.get(query_id)))
        unknown = any(d.batch_id == 0 and input_of(d) for d in mine) and query_id not in began
        verdict.unproven[BEGINS_ANYWHERE] += bool(taken) and unknown
        for d, ranges in read:
            twice = {
                (where, max(start, first)): (min(end, last) - max(start, first), other)
                for where, (start, end) in ranges.items()
                for first, last, other in taken.get(where, ())
                if max(start, first) < min(end, last) and where[0] not in recreated(d.input_ids, other.input_ids)
            }
            if twice:
                other = next(iter(twice.values()))[1]
                what = (
                    f"input decided twice: {title(d)} of query {d.query_id} has read offsets that {title(other)} of "
                    f"query {other.query_id} had read"
                )
                places = [f"{topic}-{p}@{first}" for (topic, p), first in twice]
                verdict.find(Anomaly.DUPLICATE, what, d, "", places, sum(n for n, _ in twice.values()))
        for d, ranges in read:
            for where, (start, end) in ranges.items():
                taken.setdefault(where, []).append((start, end, d))


def _ranges(
    batches: Sequence[Decision], began: Positions | None
) -> Iterator[tuple[Decision, dict[Partition, tuple[int, int]]]]:
    """Yield the input of each batch, as far as it is known: of a later batch whose predecessor the log has dropped, the
    last offset of each partition.
    """
    before, number = began, -1
    for d in batches:
        end = input_of(d)
        if before is not None and d.batch_id == number + 1:  # a partition that came later is read from its beginning
            yield d, {where: (before.get(where, 0), offset) for where, offset in end.items()}
        elif d.batch_id and d.records:
            yield d, {where: (offset - 1, offset) for where, offset in end.items()}
        before, number = end or None, d.batch_id


def _judge_marks(widowed: Iterable[Completed], verdict: Verdict) -> None:
    """Find decisions that are gone although a mark says that their batch was completed."""
    for mark in widowed:
        batch = batch_name(mark.query_id, mark.batch_id)
        what = f"the commit log marks {batch} as completed, and holds no decision of it: somebody removed the record"
        verdict.find(Anomaly.LOST_DECISION, what, batch=batch)


def _judge_numbers(decisions: Sequence[Decision], verdict: Verdict) -> None:
    """Check that the batches of a query follow one another, in the order of the log.

    A weaker guarantee decides nothing, and takes two claims: one on the way down, one on the way back.
    """
    for query_id in dict.fromkeys(d.query_id for d in decisions if not d.write_id):
        mine = [d for d in decisions if d.query_id == query_id]
        for before, after in pairwise(mine):
            missing = after.batch_id - before.batch_id - 1
            if missing and after.token - before.token >= 2:
                verdict.unproven[UNDECIDED] += abs(missing)
            elif missing > 0:
                gap = f"the log holds batch {before.batch_id}, and then batch {after.batch_id}"
                lost = f"{plural(missing, 'batch')} {are(missing)} in no decision: {gap}"
                verdict.find(Anomaly.LOST, lost, batch=f"batch {before.batch_id + 1}")
            elif missing < 0:
                what = f"the log holds the decision of batch {after.batch_id} after that of batch {before.batch_id}"
                verdict.find(Anomaly.BATCH_REORDER, what, after)
        first, span = mine[0].batch_id, mine[-1].batch_id - mine[0].batch_id + 1
        verdict.unproven[TOO_FEW] += max(0, min(first, KEPT_DECISIONS - span))


def _judge_names(decisions: Sequence[Decision], ledger: Ledger, verdict: Verdict) -> None:
    """Check that a decision names each part once, and that each transaction is in one decision."""
    owner: dict[tuple[str | int, ...], Decision] = {}
    for d in decisions:
        _judge_parts(d, ledger, verdict)
        for h in d.handles:
            other = owner.setdefault(identity(h), d)
            if other is not d:
                what = f"{title(d)} is decided with {h.name}, which the decision of {title(other)} names already"
                verdict.find(Anomaly.OUTCOME_LIE, what, d, h.name, (), h.records)
                give(verdict.answers, _spans(h, ledger), Answer(WRONG))


def _judge_parts(d: Decision, ledger: Ledger, verdict: Verdict) -> None:
    """Check that a decision names each part once.

    A part that was lost and written again may have the number of one that was kept: Spark gave its rows to another
    task (:mod:`exactly_once.protocol.replay`). Its transaction and its rows are others then.
    """
    again = Counter(part.partition("/")[0] for part in d.rewritten)
    same: dict[tuple[str, int], list[PreparedTransaction | PreparedPart]] = {}
    for h in d.handles:
        same.setdefault((h.participant, h.part), []).append(h)
    for (participant, part), handles in same.items():
        again[participant] -= len(handles) - 1
        transactions, rows = {identity(h) for h in handles}, {(h.records, h.digest) for h in handles}
        if len(handles) == 1 or (again[participant] >= 0 and len(rows) == len(handles)):
            continue
        if again[participant] >= 0 and len(transactions) == len(handles):
            verdict.unproven[ALIKE] += len(handles) - len(rows)
            continue
        what = f"the decision of {title(d)} names part {part} of {participant} {len(handles)} times"
        verdict.find(Anomaly.MIXED_ATTEMPT, what, d)
        for h in handles:
            give(verdict.answers, _spans(h, ledger), Answer(WRONG))


def _spans(handle: PreparedTransaction | PreparedPart, ledger: Ledger) -> list[Span]:
    return ledger.of((handle.producer_id, handle.epoch)) if isinstance(handle, PreparedTransaction) else []
