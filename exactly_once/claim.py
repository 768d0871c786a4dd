"""How a driver becomes the owner: check everything, fence the others, finish what is decided, sweep what is not."""

from __future__ import annotations

import logging
import os
import socket
from dataclasses import dataclass, field
from typing import Any

from exactly_once.completion import complete, older_slots, open_transactions, sweep
from exactly_once.deadline import Deadline
from exactly_once.driver_state import DriverState
from exactly_once.errors import ExactlyOnceError, Expired, InvalidTransactionTimeout
from exactly_once.failpoints import reach
from exactly_once.kafka.commit_log import CommitLog, now_ms
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.control import Control
from exactly_once.kafka.transaction import check_settings
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS, SinkOptions
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import SLOTS, part_id
from exactly_once.protocol.planning import Batch, check_binding, plan_batch
from exactly_once.protocol.records import Claim, Completed, Decision

log = logging.getLogger(__name__)

#: For all of a start: log, resolve, sweep. Two coordinator elections fit.
CLAIM_BUDGET_S = 60.0

#: For the first answer of a broker: long enough for one that restarts, short enough for somebody who mistyped its name.
CONTACT_BUDGET_S = 15.0

#: For proving every outcome of one batch. The rest of the transaction's time stays for the next start.
COMPLETE_BUDGET_S = 60.0


@dataclass
class Resolved:
    """What a claim found and did."""

    claim: Claim
    completed: list[Decision] = field(default_factory=list)
    aborted: list[Any] = field(default_factory=list)
    left_open: list[Any] = field(default_factory=list)


def claim_for_stream(options: SinkOptions, batch: Batch) -> DriverState:
    """Claim the sink for a query, before its first batch.

    Everything that can be refused is refused before anything is written, and before another driver is disturbed.

    Returns
    -------
    DriverState
        To run under, until something fails.
    """
    deadline = Deadline(CLAIM_BUDGET_S)
    with Control(options.connection, CONTACT_BUDGET_S) as control:
        control.renew(CLAIM_BUDGET_S)
        version, timeout_ms = check_cluster(options, control)
        commit_log = CommitLog(options.connection, options.sink_id)

        def check(state: LogState) -> None:
            bound = state.owner.query_id if state.owner else None
            check_binding(options.sink_id, bound, batch.query_id, options.checkpoint, options.takeover)
            adopt = options.adopt or (options.takeover is not None and options.takeover == bound)
            plan_batch(options.sink_id, batch, state.last_decision(batch.query_id), adopt)

        def make(state: LogState) -> Claim:
            check(state)
            return _claim(state, batch.query_id, "stream", options.checkpoint)

        check(commit_log.read(deadline))
        before, claim = commit_log.claim(make, deadline)
        ahead = commit_log.clock_ahead_ms
        reach("claimed")
        resolved = _resolve(options.sink_id, before, claim, commit_log, control, version, options.accept_lost, deadline)
        commit_log.close()
    if resolved.completed or resolved.aborted:
        log.warning(
            "sink %s: completed decided batches %s and aborted %d undecided transactions of an earlier driver",
            options.sink_id,
            [d.batch_id for d in resolved.completed],
            len(resolved.aborted),
        )
    last = before.last_decision(batch.query_id)
    return DriverState(
        claim.token,
        batch.query_id,
        version,
        timeout_ms,
        ahead,
        last.batch_id if last else -1,
        last.offsets_digest if last else "",
        swept_ms=now_ms(),
    )


def claim_for_recovery(connection: Connection, sink_id: str, budget_s: float) -> Resolved | None:
    """Claim the sink without a query, resolve and sweep; None for a sink that was never used."""
    deadline = Deadline(budget_s)
    with Control(connection, min(budget_s, CONTACT_BUDGET_S)) as control:
        control.renew(budget_s)
        version = control.end_txn_version()
        commit_log = CommitLog(connection, sink_id)
        found = commit_log.read(deadline)
        if found.owner is None:
            return None

        def make(state: LogState) -> Claim:
            owner = state.owner
            return _claim(state, owner.query_id if owner else None, "recovery", owner.checkpoint if owner else "")

        before, claim = commit_log.claim(make, deadline)
        resolved = _resolve(sink_id, before, claim, commit_log, control, version, None, deadline)
        commit_log.close()
        control.renew(max(1.0, deadline.left))
        resolved.left_open = open_transactions(sink_id, control, lambda p: True)
        return resolved


def check_cluster(options: SinkOptions, control: Control) -> tuple[int, int]:
    """What the cluster must offer: the topic, recent enough brokers, room for the timeout.

    Returns
    -------
    (int, int)
        The EndTxn version, and transaction.timeout.ms: the user's, or the default within the brokers' maximum.

    Raises
    ------
    InvalidOption, UnknownTopic, BrokerTooOld, InvalidTransactionTimeout
    """
    check_settings(options.connection, options.producer)
    version = control.end_txn_version()
    if options.topic is not None:
        control.topic_partitions([options.topic])
    longest = int(control.broker_config().get("transaction.max.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS))
    wanted = options.timeout_ms
    if wanted is not None and wanted > longest:
        raise InvalidTransactionTimeout(
            f"kafka.transaction.timeout.ms={wanted} is above the brokers' transaction.max.timeout.ms={longest}",
            f"Lower it to {longest}, or raise the brokers' maximum",
        )
    return version, wanted if wanted is not None else min(DEFAULT_TRANSACTION_TIMEOUT_MS, longest)


def _claim(state: LogState, query_id: str | None, purpose: str, checkpoint: str) -> Claim:
    token = (state.owner.token if state.owner else 0) + 1
    return Claim(token, query_id, now_ms(), purpose, socket.gethostname(), os.getpid(), checkpoint)


def _resolve(
    sink_id: str,
    before: LogState,
    claim: Claim,
    commit_log: CommitLog,
    control: Control,
    version: int,
    accept_lost: int | None,
    deadline: Deadline,
) -> Resolved:
    """Complete every decision that stands before ``claim``, oldest first; only then abort what older claims left.

    When one cannot be completed, what is undecided is aborted all the same, since readers wait for it.
    """
    resolved, slots = Resolved(claim), older_slots(claim.token, SLOTS)
    open_before = before.open_before(claim.token)
    decided = {h.transactional_id for d in open_before for h in d.handles}
    failure: ExactlyOnceError | None = None
    for decision in open_before:
        try:
            complete(sink_id, decision, control, min(COMPLETE_BUDGET_S, max(1.0, deadline.left)))
        except ExactlyOnceError as e:
            if not isinstance(e, Expired) or accept_lost != decision.batch_id:
                failure = e
                break
            log.warning("sink %s: going past the lost parts of batch %d, as asked", sink_id, decision.batch_id)
        done = Completed(decision.query_id, decision.batch_id, claim.token, now_ms())
        commit_log.append(done, deadline)
        resolved.completed.append(decision)
    still_decided = decided if failure else set[str]()
    control.renew(max(1.0, deadline.left))
    resolved.aborted = sweep(sink_id, control, version, lambda p: p.slot in slots and part_id(*p) not in still_decided)
    if failure is not None:
        raise failure
    return resolved
