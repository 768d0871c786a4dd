"""The claim: check everything, fence earlier owners, complete decided batches, sweep undecided transactions."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import psutil

from exactly_once.coordinator.complete import COMMITTED, complete, decided_error
from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.driver_state import DriverState
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import ExactlyOnceError, Expired, InvalidTransactionTimeout, SinkOwned, TopicRecreated
from exactly_once.failpoints import reach
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.commit_log import CommitLog
from exactly_once.kafka.transactions import Description, End, end_txn_version
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS, SinkOptions
from exactly_once.participant import Handle, Participant, Scope
from exactly_once.participants.kafka import check_producer
from exactly_once.participants.kafka_transactions import sweep
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.loss import in_doubt, lost_parts
from exactly_once.protocol.names import SLOTS, incarnation, older_slots
from exactly_once.protocol.planning import Batch, check_binding, plan_batch
from exactly_once.protocol.records import WRITE, Claim, Completed, Decision, PreparedPart
from exactly_once.protocol.ticket import Replay
from exactly_once.protocol.too_long import times_too_long

log = logging.getLogger(__name__)

#: For all of a start: log, resolve, sweep. Two coordinator elections fit.
CLAIM_BUDGET_S = 60.0

#: For the first answer of a broker: long enough for one that restarts, short enough for somebody who mistyped its name.
CONTACT_BUDGET_S = 15.0

#: For proving every outcome of one batch. The rest of the transaction's time stays for the next start.
COMPLETE_BUDGET_S = 60.0


Others = Mapping[str, Participant[PreparedPart]]

#: The participants other than Kafka of a sink that has none.
KAFKA_ALONE: Others = MappingProxyType({})


@dataclass(frozen=True)
class Loss:
    """A decision, and those of its parts that are proven to be rolled back."""

    decision: Decision
    handles: list[Handle]


@dataclass(frozen=True)
class Swept:
    """What was not decided and is gone: Kafka's transactions, and the names of parts by each other output."""

    aborted: list[Description] = field(default_factory=list)
    rolled_back: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class Resolved:
    """The batches of earlier drivers that a claim completed, aborted, found lost, or could not complete."""

    completed: list[Decision] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    swept: Swept = field(default_factory=Swept)
    failures: list[tuple[Decision, ExactlyOnceError]] = field(default_factory=list)


def claim_for_stream(options: SinkOptions, batch: Batch, others: Others, adopts_all: bool = False) -> DriverState:
    """Claim the sink for a query, before its first batch.

    Refuses whatever it must refuse before it writes anything, and before it disturbs another driver. Parts
    of the batch in flight that are decided and lost are to be written again (``replay`` of the state). ``adopts_all``:
    any history of the checkpoint, and recreated topics, are accepted.

    Returns
    -------
    DriverState
        To run under, until something fails.
    """

    consent = Consent.of(options, adopts_all)

    def check(state: LogState) -> None:
        bound = state.owner.query_id if state.owner else None
        taken = bound if bound != batch.query_id and consent.takes_over(bound) else None
        check_binding(options.sink_id, bound, batch.query_id, options.checkpoint, taken)
        last = state.last_decision(batch.query_id)
        adopt = last is None and batch.batch_id > 0 and consent.adopts_history(batch, bound)
        plan_batch(options.sink_id, batch, last, adopt)

    return _claim(options, "stream", batch, check, others, consent)


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
                "Use a separate sink.id for batch writes",
            )

    batch = Batch(f"{WRITE}{options.write_id}", 0, "")
    return _claim(options, "write", batch, check, KAFKA_ALONE, Consent.of(options))


def _claim(
    options: SinkOptions,
    purpose: str,
    batch: Batch,
    check: Callable[[LogState], None],
    others: Others,
    consent: Consent,
) -> DriverState:
    query_id = batch.query_id
    deadline = Deadline(CLAIM_BUDGET_S)
    with Admin(options.connection, CONTACT_BUDGET_S) as control:
        control.renew(CLAIM_BUDGET_S)
        version, timeout_ms = check_cluster(options, control)
        commit_log = CommitLog(options.connection, options.sink_id)

        def make(state: LogState) -> Claim:
            check(state)
            bound = WRITE if purpose == "write" else query_id
            return make_claim(state, bound, now_ms(), purpose, options.checkpoint)

        before = commit_log.read(deadline)
        check(before)
        check_topics(control, before.last_decision(query_id), [options.topic] if options.topic else [], consent)
        _, claim = commit_log.claim(make, deadline)
        ahead = commit_log.clock_ahead_ms
        reach("claimed")
        found = resolve(claim.token, commit_log, control, version, consent, deadline, others)
        _raise_own(options, batch, found)
        log_incarnation = incarnation_of(commit_log, control) if others else ""
        after = commit_log.own(claim.token, deadline)
        last, log_end = after.last_decision(query_id), commit_log.high_watermark
        commit_log.close()
    replay = _replay(options, batch, found.losses)
    consent.say_unneeded(options.sink_id)
    if found.completed or found.swept.aborted or replay:
        log.warning(
            "sink %s: completed decided batches %s and aborted %d undecided transactions of an earlier driver; %d "
            "decided parts are lost and will be written again",
            options.sink_id,
            [d.write_id or d.batch_id for d in found.completed],
            len(found.swept.aborted),
            sum(len(parts) for parts in replay.values()),
        )
    return DriverState(
        claim.token,
        query_id,
        version,
        timeout_ms,
        ahead,
        last.batch_id if last else -1,
        last.offsets_digest if last else "",
        # swept_ms 0: the first batch sweeps again, since a task of the driver before may have outlived it by seconds
        replay=replay,
        replayed=next((x.decision.word for x in found.losses if x.decision.query_id == query_id), ""),
        incarnation=log_incarnation,
        log_end=log_end,
        too_long=times_too_long(after, batch),
    )


def _raise_own(options: SinkOptions, batch: Batch, found: Resolved) -> None:
    """Raise what keeps ``batch`` from running.

    A batch write shares nothing with another write of which parts are lost or in doubt: that one's own next try makes
    it good, and none of its transactions is open any more. One that may still have some open (Unfinished) stops
    everybody, since its ids must not be initialised again.
    """
    for decision, failure in found.failures:
        if not (_of_another_write(decision, batch) and isinstance(failure, Expired)):
            raise failure
        log.warning("sink %s: %s", options.sink_id, failure)
    for loss in found.losses:
        if _of_another_write(loss.decision, batch):
            log.warning("sink %s: %s", options.sink_id, lost_parts(options.sink_id, loss.decision, loss.handles))


def _of_another_write(decision: Decision, batch: Batch) -> bool:
    return bool(decision.write_id) and decision.query_id != batch.query_id


def _replay(options: SinkOptions, batch: Batch, losses: list[Loss]) -> Replay:
    """What ``batch``, which Spark is about to run again, must write again.

    Raises
    ------
    Expired
        When no later run can be compared with what was lost.
    """
    replay: Replay = {}
    for loss in losses:
        d = loss.decision
        if _of_another_write(d, batch):
            continue
        name = d.title(options.sink_id)
        if (d.query_id, d.batch_id) != (batch.query_id, batch.batch_id):
            raise in_doubt(
                name, d, loss.handles, "they were rolled back, and their micro-batch is no longer the one in flight"
            )
        if unknown := [h for h in loss.handles if not h.digest]:
            raise in_doubt(
                name, d, unknown, "they were rolled back, and an older version of this package recorded no digest"
            )
        for h in loss.handles:
            replay.setdefault(h.participant, {})[str(h.part)] = [h.records, h.digest]
    return replay


def check_topics(control: Admin, last: Decision | None, topics: list[str], consent: Consent) -> dict[str, str]:
    """Make sure that ``topics`` are those that the last decision wrote to, not new ones of the same names.

    Returns
    -------
    dict of str to str
        The brokers' ids of the topics.

    Raises
    ------
    TopicRecreated
        Unless the user adopts the new topic, by its id.
    """
    ids = control.topic_ids(topics)
    known = last.topic_ids if last else {}
    for topic, topic_id in ids.items():
        if known.get(topic, topic_id) != topic_id and not consent.adopts_topic(topic_id):
            raise TopicRecreated(
                f"topic {topic!r} was deleted and recreated: the records that earlier batches wrote to it are gone",
                "If this was intended and the stream should continue into the new topic, set the option "
                f"sink.adopt={topic_id} for one start; to write everything again, start with a new checkpoint and a "
                "new sink.id",
            )
    return ids


def check_cluster(options: SinkOptions, control: Admin) -> tuple[int, int]:
    """Check what the cluster must offer: the topic, recent enough brokers, room for the timeout.

    Returns
    -------
    (int, int)
        The EndTxn version, and transaction.timeout.ms: the user's, or the default within the brokers' maximum.

    Raises
    ------
    InvalidOption, UnknownTopic, BrokerTooOld, InvalidTransactionTimeout
    """
    version = end_txn_version(control)
    if options.topic is not None:
        control.topic_partitions([options.topic])
        control.check_rights(options.topic, ("WRITE",))
    longest = int(control.broker_config().get("transaction.max.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS))
    wanted = options.timeout_ms
    if wanted is not None and wanted > longest:
        raise InvalidTransactionTimeout(
            f"kafka.transaction.timeout.ms={wanted} is above the brokers' transaction.max.timeout.ms={longest}",
            f"Lower kafka.transaction.timeout.ms to {longest}, or raise transaction.max.timeout.ms on the brokers",
        )
    timeout_ms = wanted if wanted is not None else min(DEFAULT_TRANSACTION_TIMEOUT_MS, longest)
    check_producer(options, timeout_ms)
    return version, timeout_ms


def resolve(
    token: int,
    commit_log: CommitLog,
    control: Admin,
    version: int,
    consent: Consent,
    deadline: Deadline,
    others: Others,
) -> Resolved:
    """Complete decided batches and abort undecided transactions; see :func:`complete_decided`, :func:`sweep_undecided`.

    When a decision cannot be completed (``failures``), undecided transactions are aborted anyway, since readers wait
    for them.
    """
    found = complete_decided(token, commit_log, control, consent, deadline, others)
    found.swept = sweep_undecided(token, commit_log, control, version, deadline, others)
    return found


def complete_decided(
    token: int,
    commit_log: CommitLog,
    control: Admin,
    consent: Consent,
    deadline: Deadline,
    others: Others,
) -> Resolved:
    """Complete every decision that stands before the claim ``token`` and is not proven, oldest first.

    Returns
    -------
    Resolved
        Those that went through are in ``completed``; those with lost parts in ``losses``, and they stay open, as do
        those in ``failures``: Expired, Unfinished, NotAuthorized, ParticipantMissing.

    Raises
    ------
    Fenced, BrokerUnreachable
        Of the commit log.
    """
    sink_id, found = commit_log.sink_id, Resolved()
    try:
        for decision in commit_log.own(token, deadline).open_before(token):
            try:
                budget_s = min(COMPLETE_BUDGET_S, max(1.0, deadline.left))
                lost = complete(sink_id, decision, control, budget_s, others, recovering=True)
                if lost and not consent.accepts_lost(decision):
                    found.losses.append(Loss(decision, lost))
                    continue
            except ExactlyOnceError as e:
                if not (isinstance(e, Expired) and consent.accepts_lost(decision)):
                    found.failures.append((decision, e))
                    continue
                log.warning("%s: continuing past the parts in doubt, as sink.accept.lost asks", decision.title(sink_id))
            done = Completed(decision.query_id, decision.batch_id, token, now_ms())
            try:
                commit_log.append(done, deadline)
            except ExactlyOnceError as e:
                raise decided_error(e, COMMITTED) from e
            found.completed.append(decision)
    finally:
        again = sum(len(d.rewritten) for d in found.completed)
        count(commit_log, token, deadline, completed=len(found.completed), rewritten=again)
    return found


def sweep_undecided(
    token: int, commit_log: CommitLog, control: Admin, version: int, deadline: Deadline, others: Others
) -> Swept:
    """Abort what older claims than ``token`` left open, save what a decision that is still not completed names.

    Raises
    ------
    Fenced, NotAuthorized, Unfinished
    """
    state, slots = commit_log.own(token, deadline), older_slots(token, SLOTS)
    # not the whole id: a task that began anew under it has ended the decided transaction, and left its own
    decided = frozenset(End.of(h) for d in state.open_before(token) for h in d.transactions)
    control.renew(max(1.0, deadline.left))
    aborted = sweep(commit_log.sink_id, control, version, lambda p: p.slot in slots, decided)
    spare = frozenset(h.name for d in state.open_before(token) for h in d.handles)
    log_incarnation = incarnation_of(commit_log, control) if others else ""
    rolled_back = sweep_others(others, Scope(commit_log.sink_id, token, spare=spare, incarnation=log_incarnation))
    count(commit_log, token, deadline, aborted=len(aborted) + sum(map(len, rolled_back.values())))
    return Swept(aborted, rolled_back)


def sweep_others(others: Others, scope: Scope) -> dict[str, list[str]]:
    """Have each participant roll back what ``scope`` covers of its own parts; their names, where there were some."""
    swept = {p.name: list(p.recover_and_abort(replace(scope, participant=p.name))) for p in others.values()}
    return {participant: names for participant, names in swept.items() if names}


def incarnation_of(commit_log: CommitLog, control: Admin) -> str:
    """The commit log's own name in the names of parts; see :class:`~exactly_once.participant.PartName`."""
    return incarnation(*control.cluster_and_topic_id(commit_log.topic))


def count(
    commit_log: CommitLog,
    token: int,
    deadline: Deadline,
    completed: int = 0,
    aborted: int = 0,
    drained: int = 0,
    rewritten: int = 0,
) -> None:
    """Add to the sink's tally. Never raises: a missing count must not fail a successful commit."""
    if not (completed or aborted or drained or rewritten):
        return
    try:
        tally = commit_log.own(token, deadline).tally
        commit_log.append(tally.plus(token, completed, aborted, drained, rewritten), deadline)
    except ExactlyOnceError as e:
        log.warning("sink %s: the counts in the commit log were not updated: %s", commit_log.sink_id, e)


def make_claim(state: LogState, query_id: str | None, now_ms: int, purpose: str, checkpoint: str = "") -> Claim:
    """The claim that follows ``state``, for the process on this machine that lives as long as the owner: the driver's
    JVM, whose workers come and go, or a recovery's own.
    """
    process = psutil.Process()
    if purpose != "recovery":
        process = next((p for p in process.parents() if p.name().startswith("java")), process)
    token = (state.owner.token if state.owner else 0) + 1
    host = socket.gethostname()
    return Claim(token, query_id, now_ms, purpose, host, process.pid, checkpoint, process.create_time())
