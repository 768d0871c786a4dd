"""Operations on the transactions of a sink, within the rules: commit, abort, recover, end hanging ones.

A commit or an abort ends exactly the transaction that was described, by producer id and epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator.recover import RecoveryReport, recover
from exactly_once.errors import NotAuthorized, Unfinished
from exactly_once.inspection.findings import sink_of
from exactly_once.inspection.hanging import Attributed, Decided, attribute, decided_as
from exactly_once.inspection.processes import AliveOf
from exactly_once.inspection.sink import RECOVERY_BUDGET_S, UNDER_WAY, owner_of, sinks
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.operation.model import BUDGET_S
from exactly_once.operation.rules import Refused, check_abort, check_commit, check_hanging, check_owner, part_sink
from exactly_once.protocol.names import commit_log_topic
from exactly_once.protocol.outcomes import Outcome
from exactly_once.txn.coordinators import Description, describe, end_one, end_txn_version, list_transactions
from exactly_once.txn.leaders import OLDER_THAN_S, abort_hanging, commit_hanging, find_hanging, written


@dataclass(frozen=True)
class EndedTransaction:
    """An ended transaction: its description before, its decision if any, and the phrase that overruled the rules."""

    transaction: Description
    committed: bool
    decided: Decided | None = None
    forced: str | None = None


@dataclass(frozen=True)
class AbortedTransaction:
    """An abort: the transaction's description before, and the recovery that aborted it (None: decided, and forced)."""

    transaction: Description
    report: RecoveryReport | None = None
    forced: str | None = None


def commit(
    connection: Connection, transactional_id: str, force: str | None = None, budget_s: float = BUDGET_S
) -> EndedTransaction:
    """Commit the decided transaction of a part. Harmless while a driver does the same.

    Raises
    ------
    Refused
        See :func:`check_commit`.
    Unfinished
        The brokers gave no definite answer in time.
    BrokerUnreachable, NotAuthorized
    """
    sink_id = part_sink(transactional_id)
    with Admin(connection, budget_s) as admin:
        transaction = describe(admin, [transactional_id])[transactional_id]
        log = read_log(connection, sink_id, budget_s)
        decided = decided_as(transaction, log)
        written = None
        if decided is None and transaction.state in UNDER_WAY:
            written = _written(admin.renew(budget_s), transaction)
        decided = check_commit(transaction, log, written, force)
        version = decided.decision.end_txn_version if decided else end_txn_version(admin)
        _end(admin.renew(budget_s), transaction, True, version, decided)
    return EndedTransaction(transaction, True, decided, None if decided else force)


def abort(
    connection: Connection,
    transactional_id: str,
    force: str | None = None,
    budget_s: float = BUDGET_S,
    recovery_budget_s: float = RECOVERY_BUDGET_S,
    operator: str = "",
    alive_of: AliveOf | None = None,
) -> AbortedTransaction:
    """Abort the transaction of a part.

    A driver might decide an undecided transaction meanwhile, so this runs a recovery, which takes the sink from the
    driver first and aborts every undecided transaction. With ``force``, aborts a decided transaction, and that one
    alone; the next start of the stream writes its rows again (EO-LOST).

    Parameters
    ----------
    operator : str
        Who operates the recovery, for its claim.
    alive_of : callable, optional
        Is asked first whether the driver is alive (:func:`~exactly_once.inspection.sink.owner_of`).

    Raises
    ------
    Refused
        See :func:`check_abort` and :func:`check_owner`.
    Unfinished
        The transaction is still open.
    InvalidOption, BrokerUnreachable, NotAuthorized, Expired, Fenced
    """
    sink_id = part_sink(transactional_id)
    with Admin(connection, budget_s) as admin:
        transaction = describe(admin, [transactional_id])[transactional_id]
        log = read_log(connection, sink_id, budget_s)
        decided = check_abort(transaction, log, force)
        if decided is not None:
            _end(admin.renew(budget_s), transaction, False, decided.decision.end_txn_version, decided)
            return AbortedTransaction(transaction, None, force)
        owner = owner_of(log, alive_of)
        check_owner(sink_id, owner, force)
        report = recover(connection, sink_id, recovery_budget_s, operator=operator)
        after = describe(admin.renew(budget_s), [transactional_id])[transactional_id]
    if (after.state, after.producer_epoch) == (transaction.state, transaction.producer_epoch):
        raise Unfinished(
            f"the transaction of {transactional_id} is still {after.state}",
            "Run the recovery again, and read in its report what became of this transaction",
            safe="The transaction is not decided; none of it is visible to a read_committed reader",
        )
    return AbortedTransaction(transaction, report, force if owner is not None and owner.works is not False else None)


def list_hanging(
    connection: Connection,
    sink_id: str | None = None,
    topics: Iterable[str] = (),
    older_than_s: float = OLDER_THAN_S,
    budget_s: float = BUDGET_S,
) -> list[Attributed]:
    """List the hanging transactions on ``topics`` and on the topics of the sink (of every sink when none is named),
    each with its owner.

    Raises
    ------
    BrokerUnreachable, NotAuthorized
        See :func:`exactly_once.txn.leaders.find_hanging`. Each sink, and the search, gets ``budget_s``.
    """
    logs = {s: read_log(connection, s, budget_s) for s in ([sink_id] if sink_id else sinks(connection, budget_s))}
    wanted = set(topics) | {t for log in logs.values() for d in log.decisions for t in d.topics}
    with Admin(connection, budget_s) as admin:
        ids = [t.transactional_id for t in list_transactions(admin, "eo:", UNDER_WAY)]
        ours = describe(admin, (i for i in ids if sink_of(i) in logs))
    wanted |= {topic for t in ours.values() for topic, _ in t.partitions}
    return [attribute(h, logs) for h in find_hanging(connection, wanted, older_than_s, budget_s)]


def end_hanging(
    connection: Connection,
    name: str,
    force: str | None = None,
    older_than_s: float = OLDER_THAN_S,
    budget_s: float = BUDGET_S,
    *,
    commit: bool | None = None,
) -> tuple[Attributed, bool]:
    """End the hanging transaction ``name`` (``topic-partition@start offset``) in its partition: commit it if it is
    decided, else abort it.

    Parameters
    ----------
    commit : bool, optional
        See :func:`check_hanging`.

    Returns
    -------
    tuple
        The transaction, and whether it was committed.

    Raises
    ------
    Refused
        When no hanging transaction has this name; see also :func:`check_hanging`.
    BrokerUnreachable, NotAuthorized, CommitLogBlocked
    """
    topic = name.rpartition("@")[0].rpartition("-")[0]
    gone = Refused(
        f"no hanging transaction is named {name!r}",
        "Run exactly-once transactions list --hanging and use a name from it; names are topic-partition@start_offset",
    )
    found = [f for f in list_hanging(connection, None, [topic], older_than_s, budget_s) if f.hanging.name == name]
    if not topic or not found:
        raise gone
    chosen = found[0]
    if chosen.sink_id is not None and topic != commit_log_topic(chosen.sink_id):
        # a decision may be hidden from observers, behind an open transaction in the log
        log = read_log(connection, chosen.sink_id, budget_s, whole=True)
        chosen = attribute(chosen.hanging, {chosen.sink_id: log})
    commit = check_hanging(chosen, force, commit)
    if not (commit_hanging if commit else abort_hanging)(connection, chosen.hanging, budget_s):
        raise gone
    return chosen, commit


def _written(admin: Admin, transaction: Description) -> int | None:
    try:
        return written(admin, transaction)
    except NotAuthorized:  # without READ on the topic, the phrase says that the number is unknown
        return None


def _end(admin: Admin, transaction: Description, commit: bool, version: int, decided: Decided | None) -> None:
    # an end that is under way already may have raised the epoch since the decision
    epoch = decided.handle.epoch if decided else transaction.producer_epoch
    outcome = end_one(admin, transaction.transactional_id, transaction.producer_id, epoch, commit, version)
    if outcome is not Outcome.DONE:
        raise Unfinished(
            f"the {'commit' if commit else 'abort'} of {transaction.transactional_id} ended as {outcome.name}",
            "Start the stream or run the recovery; either finds out how the transaction ended",
            safe=None if decided else "The transaction is not decided",
        )
