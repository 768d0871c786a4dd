"""The balance of a commit log: every batch is decided once, every part is in one decision, and every committed
transaction of the sink is in one of them. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from exactly_once.checkpoint import Checkpoint
from exactly_once.inspection.findings import batch_name
from exactly_once.kafka.admin import Partition
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.records import KEPT_DECISIONS, Decision, identity
from exactly_once.verify.anomalies import Anomaly
from exactly_once.verify.by_log.judge import Verdict, judge_decisions
from exactly_once.verify.by_log.ledger import Ledger
from exactly_once.verify.by_log.orphans import judge_orphans

#: Why a batch without a decision is not called lost.
UNDECIDED = "batches that no decision names, which a weaker guarantee or another sink may have written"
TOO_FEW = "batches that the log should still keep before its first one: another sink wrote them, or they are gone"

#: What a checkpoint leaves open.
UNCOMMITTED = "completed batches that Spark has not committed in the checkpoint: the next start drains them"
COMMITS_LACK = "batches whose file is missing among those of the checkpoint's commits/"


def judge_log(
    decisions: Sequence[Decision],
    log: LogState,
    ledger: Ledger,
    ids: Mapping[int, str],
    removed: Mapping[Partition, int],
    committed_by_spark: frozenset[int] = frozenset(),
    also: Sequence[Decision] = (),
) -> Verdict:
    """Judge the output by the commit log.

    Parameters
    ----------
    decisions : sequence of Decision
        Those that the output was read for, oldest first.
    log : LogState
        Read after the output.
    ids : mapping
        Producer id -> transactional id, of all ids of the sink.
    removed, committed_by_spark
        As for :func:`exactly_once.verify.by_log.judge.judge_decisions`.
    also : sequence of Decision
        Decisions that the log has dropped since: they name transactions, too.
    """
    verdict = judge_decisions(decisions, log, ledger, removed, committed_by_spark)
    if decisions:
        judge_orphans(ledger, decisions, log, ids, verdict, also)
    _judge_numbers(log.decisions, verdict)
    _judge_names(log.decisions, verdict)
    return verdict


def judge_balance(checkpoint: Checkpoint, earlier: LogState, verdict: Verdict) -> None:
    """Count what the checkpoint lacks; ``earlier`` was read before it."""
    done = [b for query_id, b in earlier.marks if query_id == checkpoint.query_id]
    behind = sum(b > (-1 if checkpoint.last_commit is None else checkpoint.last_commit) for b in done)
    verdict.unproven[UNCOMMITTED] += behind if checkpoint.query_id is not None else 0
    verdict.unproven[COMMITS_LACK] += checkpoint.commits_lack


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
                verdict.find(
                    Anomaly.LOST,
                    f"{missing} batches are in no decision: the log holds batch {before.batch_id}, and then batch "
                    f"{after.batch_id}",
                    batch=f"batch {before.batch_id + 1}",
                )
            elif missing < 0:
                verdict.find(
                    Anomaly.BATCH_REORDER,
                    f"the log holds the decision of batch {after.batch_id} after that of batch {before.batch_id}",
                    batch=f"batch {after.batch_id}",
                )
        first, span = mine[0].batch_id, mine[-1].batch_id - mine[0].batch_id + 1
        verdict.unproven[TOO_FEW] += max(0, min(first, KEPT_DECISIONS - span))


def _judge_names(decisions: Sequence[Decision], verdict: Verdict) -> None:
    """Check that a decision names each part once, and that each transaction is in one decision."""
    owner: dict[tuple[str | int, ...], Decision] = {}
    for d in decisions:
        batch = batch_name(d.query_id, d.batch_id)
        parts = Counter((h.participant, h.part) for h in d.handles)
        for (participant, part), times in parts.items():
            if times > 1:
                what = f"the decision of {batch} names part {part} of {participant} {times} times"
                verdict.find(Anomaly.MIXED_ATTEMPT, what, batch=batch)
        for h in d.handles:
            other = owner.setdefault(identity(h), d)
            if other is not d:
                name = batch_name(other.query_id, other.batch_id)
                what = f"{batch} is decided with {h.name}, which the decision of {name} names already"
                verdict.find(Anomaly.OUTCOME_LIE, what, batch=batch, transaction=h.name, records=h.records)
