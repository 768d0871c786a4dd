"""How somebody becomes the owner: check everything, fence the others, finish what is decided, sweep what is not."""

from __future__ import annotations

import logging
from collections.abc import Callable

from exactly_once.completion import complete, older_slots, sweep
from exactly_once.deadline import Deadline
from exactly_once.driver_state import DriverState
from exactly_once.errors import ExactlyOnceError, Expired, InvalidTransactionTimeout, SinkOwned
from exactly_once.failpoints import reach
from exactly_once.kafka.commit_log import CommitLog, now_ms
from exactly_once.kafka.control import Control, Description
from exactly_once.kafka.transaction import check_settings
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS, SinkOptions
from exactly_once.owner import make_claim
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import SLOTS, part_id
from exactly_once.protocol.planning import Batch, check_binding, plan_batch
from exactly_once.protocol.records import WRITE, Claim, Completed, Decision

log = logging.getLogger(__name__)

#: For all of a start: log, resolve, sweep. Two coordinator elections fit.
CLAIM_BUDGET_S = 60.0

#: For the first answer of a broker: long enough for one that restarts, short enough for somebody who mistyped its name.
CONTACT_BUDGET_S = 15.0

#: For proving every outcome of one batch. The rest of the transaction's time stays for the next start.
COMPLETE_BUDGET_S = 60.0


def claim_for_stream(options: SinkOptions, batch: Batch) -> DriverState:
    """Claim the sink for a query, before its first batch.

    Everything that can be refused is refused before anything is written, and before another driver is disturbed.

    Returns
    -------
    DriverState
        To run under, until something fails.
    """

    def check(state: LogState) -> None:
        bound = state.owner.query_id if state.owner else None
        check_binding(options.sink_id, bound, batch.query_id, options.checkpoint, options.takeover)
        adopt = options.adopt or (options.takeover is not None and options.takeover == bound)
        plan_batch(options.sink_id, batch, state.last_decision(batch.query_id), adopt)

    return _claim(options, "stream", batch.query_id, check)


def claim_for_write(options: SinkOptions) -> DriverState:
    """Claim the sink for one batch write; see :func:`claim_for_stream`.

    Returns
    -------
    DriverState
        Its ``last_batch`` is 0 when the write is decided already, else -1.
    """

    def check(state: LogState) -> None:
        bound = state.owner.query_id if state.owner else None
        if bound not in (None, WRITE):
            raise SinkOwned(
                f"sink {options.sink_id!r} belongs to the streaming query {bound}",
                "Give batch writes a sink.id of their own",
            )

    return _claim(options, "write", f"{WRITE}{options.write_id}", check)


def _claim(options: SinkOptions, purpose: str, query_id: str, check: Callable[[LogState], None]) -> DriverState:
    deadline = Deadline(CLAIM_BUDGET_S)
    with Control(options.connection, CONTACT_BUDGET_S) as control:
        control.renew(CLAIM_BUDGET_S)
        version, timeout_ms = check_cluster(options, control)
        commit_log = CommitLog(options.connection, options.sink_id)

        def make(state: LogState) -> Claim:
            check(state)
            bound = WRITE if purpose == "write" else query_id
            return make_claim(state, bound, now_ms(), purpose, options.checkpoint)

        check(commit_log.read(deadline))
        _, claim = commit_log.claim(make, deadline)
        ahead = commit_log.clock_ahead_ms
        reach("claimed")
        completed, aborted = resolve(claim.token, commit_log, control, version, options.accept_lost, deadline)
        last = commit_log.own(claim.token, deadline).last_decision(query_id)
        commit_log.close()
    if completed or aborted:
        log.warning(
            "sink %s: completed decided batches %s and aborted %d undecided transactions of an earlier driver",
            options.sink_id,
            [d.write_id or d.batch_id for d in completed],
            len(aborted),
        )
    return DriverState(
        claim.token,
        query_id,
        version,
        timeout_ms,
        ahead,
        last.batch_id if last else -1,
        last.offsets_digest if last else "",
        swept_ms=now_ms(),
    )


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


def resolve(
    token: int,
    commit_log: CommitLog,
    control: Control,
    version: int,
    accept_lost: str | None,
    deadline: Deadline,
) -> tuple[list[Decision], list[Description]]:
    """Complete what is decided, then abort what is not; see :func:`complete_decided` and :func:`sweep_undecided`.

    When a decision cannot be completed, what is undecided is aborted all the same, since readers wait for it.
    """
    completed: list[Decision] = []
    failure: ExactlyOnceError | None = None
    try:
        complete_decided(token, commit_log, control, accept_lost, deadline, completed)
    except ExactlyOnceError as e:
        failure = e
    aborted = sweep_undecided(token, commit_log, control, version, deadline)
    if failure is not None:
        raise failure
    return completed, aborted


def complete_decided(
    token: int,
    commit_log: CommitLog,
    control: Control,
    accept_lost: str | None,
    deadline: Deadline,
    completed: list[Decision],
) -> None:
    """Complete every decision that stands before the claim ``token`` and is not proven, oldest first.

    Those that went through are added to ``completed``, also when a later one fails.

    Raises
    ------
    Fenced, Expired, Unfinished, NotAuthorized
    """
    sink_id = commit_log.sink_id
    try:
        for decision in commit_log.own(token, deadline).open_before(token):
            try:
                complete(sink_id, decision, control, min(COMPLETE_BUDGET_S, max(1.0, deadline.left)))
            except Expired:
                name = decision.write_id or str(decision.batch_id)
                if accept_lost != name:
                    raise
                log.warning("sink %s: going past the lost parts of batch %s, as asked", sink_id, name)
            done = Completed(decision.query_id, decision.batch_id, token, now_ms())
            commit_log.append(done, deadline)
            completed.append(decision)
    finally:
        count(commit_log, token, deadline, completed=len(completed))


def sweep_undecided(
    token: int, commit_log: CommitLog, control: Control, version: int, deadline: Deadline
) -> list[Description]:
    """Abort what older claims than ``token`` left open, save what a decision that is still not completed names.

    Raises
    ------
    Fenced, NotAuthorized
    """
    state, slots = commit_log.own(token, deadline), older_slots(token, SLOTS)
    decided = {h.transactional_id for d in state.open_before(token) for h in d.handles}
    control.renew(max(1.0, deadline.left))
    aborted = sweep(commit_log.sink_id, control, version, lambda p: p.slot in slots and part_id(*p) not in decided)
    count(commit_log, token, deadline, aborted=len(aborted))
    return aborted


def count(
    commit_log: CommitLog, token: int, deadline: Deadline, completed: int = 0, aborted: int = 0, drained: int = 0
) -> None:
    """Add to the sink's tally. Never raises: a number that is missing must not stop what went well."""
    if not (completed or aborted or drained):
        return
    try:
        tally = commit_log.own(token, deadline).tally
        commit_log.append(tally.plus(token, completed, aborted, drained), deadline)
    except ExactlyOnceError as e:
        log.warning("sink %s: the tally was not written: %s", commit_log.sink_id, e)
