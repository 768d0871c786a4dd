"""How somebody becomes the owner: check everything, fence the others, finish what is decided, sweep what is not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from exactly_once.completion import complete, in_doubt, lost_parts, older_slots, sweep
from exactly_once.deadline import Deadline
from exactly_once.driver_state import DriverState, Replay
from exactly_once.errors import ExactlyOnceError, Expired, InvalidTransactionTimeout, SinkOwned, TopicRecreated
from exactly_once.failpoints import reach
from exactly_once.kafka.commit_log import CommitLog, now_ms
from exactly_once.kafka.control import Control, Description
from exactly_once.kafka.evidence import Evidence
from exactly_once.kafka.sender import check_settings
from exactly_once.options import DEFAULT_TRANSACTION_TIMEOUT_MS, SinkOptions
from exactly_once.owner import make_claim
from exactly_once.participant import Handle, Participant, Scope
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import SLOTS, part_id
from exactly_once.protocol.planning import Batch, check_binding, plan_batch
from exactly_once.protocol.records import WRITE, Claim, Completed, Decision, PreparedPart

log = logging.getLogger(__name__)

#: For all of a start: log, resolve, sweep. Two coordinator elections fit.
CLAIM_BUDGET_S = 60.0

#: For the first answer of a broker: long enough for one that restarts, short enough for somebody who mistyped its name.
CONTACT_BUDGET_S = 15.0

#: For proving every outcome of one batch. The rest of the transaction's time stays for the next start.
COMPLETE_BUDGET_S = 60.0


Others = Mapping[str, Participant[PreparedPart]]

#: The participants beside Kafka of a sink that has none.
KAFKA_ALONE: Others = MappingProxyType({})


@dataclass(frozen=True)
class Loss:
    """A decision, and those of its parts that are proven to be rolled back."""

    decision: Decision
    handles: list[Handle]

    def error(self, sink_id: str) -> ExactlyOnceError:
        """What to say of it."""
        return lost_parts(f"batch {self.decision.batch_id} of sink {sink_id!r}", self.handles)


@dataclass
class Resolved:
    """What a claim found of earlier drivers: what it completed, what it aborted, and what is lost."""

    completed: list[Decision] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    aborted: list[Description] = field(default_factory=list)


def claim_for_stream(options: SinkOptions, batch: Batch, others: Others) -> DriverState:
    """Claim the sink for a query, before its first batch.

    Everything that can be refused is refused before anything is written, and before another driver is disturbed. Parts
    of the batch in flight that are decided and lost are to be written again (``replay`` of the state).

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

    return _claim(options, "stream", batch.query_id, check, others, batch)


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

    query_id = f"{WRITE}{options.write_id}"
    return _claim(options, "write", query_id, check, KAFKA_ALONE, Batch(query_id, 0, ""))


def _claim(
    options: SinkOptions,
    purpose: str,
    query_id: str,
    check: Callable[[LogState], None],
    others: Others,
    batch: Batch,
) -> DriverState:
    deadline = Deadline(CLAIM_BUDGET_S)
    with Evidence(options.connection, CONTACT_BUDGET_S) as control:
        control.renew(CLAIM_BUDGET_S)
        version, timeout_ms = check_cluster(options, control)
        commit_log = CommitLog(options.connection, options.sink_id)

        def make(state: LogState) -> Claim:
            check(state)
            bound = WRITE if purpose == "write" else query_id
            return make_claim(state, bound, now_ms(), purpose, options.checkpoint)

        before = commit_log.read(deadline)
        check(before)
        check_topics(control, before.last_decision(query_id), [options.topic] if options.topic else [], options.adopt)
        _, claim = commit_log.claim(make, deadline)
        ahead = commit_log.clock_ahead_ms
        reach("claimed")
        found = resolve(claim.token, commit_log, control, version, options.accept_lost, deadline, others)
        last = commit_log.own(claim.token, deadline).last_decision(query_id)
        commit_log.close()
    replay = _replay(options, batch, found.losses)
    if found.completed or found.aborted or replay:
        log.warning(
            "sink %s: completed decided batches %s and aborted %d undecided transactions of an earlier driver; %d "
            "decided parts are lost and will be written again",
            options.sink_id,
            [d.write_id or d.batch_id for d in found.completed],
            len(found.aborted),
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
    )


def _replay(options: SinkOptions, batch: Batch, losses: list[Loss]) -> Replay:
    """What ``batch``, which Spark is about to run again, must write again.

    Raises
    ------
    Lost
        When another batch has to come first.
    Expired
        When no later run can be compared with what was lost.
    """
    replay: Replay = {}
    for loss in losses:
        d = loss.decision
        name = f"batch {d.batch_id} of sink {options.sink_id!r}"
        if (d.query_id, d.batch_id) != (batch.query_id, batch.batch_id):
            if d.write_id:
                raise loss.error(options.sink_id)  # the try of that write makes it good
            raise in_doubt(
                name, d, loss.handles, "rolled back, and their micro-batch is not the one in flight any more"
            )
        if unknown := [h for h in loss.handles if not h.digest]:
            raise in_doubt(name, d, unknown, "rolled back, and an older version of this package recorded no digest")
        for h in loss.handles:
            replay.setdefault(h.participant, {})[str(h.part)] = [h.records, h.digest]
    return replay


def check_topics(control: Control, last: Decision | None, topics: list[str], adopt: bool) -> dict[str, str]:
    """Make sure that ``topics`` are those that the last decision wrote to, not new ones of the same names.

    Returns
    -------
    dict of str to str
        The brokers' ids of the topics.

    Raises
    ------
    TopicRecreated
        Unless the user says ``sink.adopt``.
    """
    ids = control.topic_ids(topics)
    known = last.topic_ids if last else {}
    for topic, topic_id in ids.items():
        if known.get(topic, topic_id) != topic_id and not adopt:
            raise TopicRecreated(
                f"topic {topic!r} was deleted and made again: what earlier batches wrote to it is gone",
                "If that was on purpose and the stream shall go on into the new topic, set the option sink.adopt=true "
                "for one start; to write everything again, start with a new checkpoint and a new sink.id",
            )
    return ids


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
        control.check_rights(options.topic, ("WRITE",))
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
    control: Evidence,
    version: int,
    accept_lost: str | None,
    deadline: Deadline,
    others: Others,
) -> Resolved:
    """Complete what is decided, then abort what is not; see :func:`complete_decided` and :func:`sweep_undecided`.

    When a decision cannot be completed, what is undecided is aborted all the same, since readers wait for it.
    """
    found = Resolved()
    failure: ExactlyOnceError | None = None
    try:
        complete_decided(token, commit_log, control, accept_lost, deadline, others, found)
    except ExactlyOnceError as e:
        failure = e
    found.aborted = sweep_undecided(token, commit_log, control, version, deadline, others)
    if failure is not None:
        raise failure
    return found


def complete_decided(
    token: int,
    commit_log: CommitLog,
    control: Evidence,
    accept_lost: str | None,
    deadline: Deadline,
    others: Others,
    found: Resolved,
) -> None:
    """Complete every decision that stands before the claim ``token`` and is not proven, oldest first.

    Those that went through are added to ``found.completed``, also when a later one fails; those with lost parts to
    ``found.losses``, and they stay open.

    Raises
    ------
    Fenced, Expired, Unfinished, NotAuthorized, ParticipantMissing
    """
    sink_id = commit_log.sink_id
    try:
        for decision in commit_log.own(token, deadline).open_before(token):
            name = decision.write_id or str(decision.batch_id)
            try:
                budget_s = min(COMPLETE_BUDGET_S, max(1.0, deadline.left))
                lost = complete(sink_id, decision, control, budget_s, others, recovering=True)
            except Expired:
                if accept_lost != name:
                    raise
                lost = []
                log.warning("sink %s: going past the parts of batch %s that are in doubt, as asked", sink_id, name)
            if lost and accept_lost != name:
                found.losses.append(Loss(decision, lost))
                continue
            done = Completed(decision.query_id, decision.batch_id, token, now_ms())
            commit_log.append(done, deadline)
            found.completed.append(decision)
    finally:
        count(commit_log, token, deadline, completed=len(found.completed))


def sweep_undecided(
    token: int, commit_log: CommitLog, control: Control, version: int, deadline: Deadline, others: Others
) -> list[Description]:
    """Abort what older claims than ``token`` left open, save what a decision that is still not completed names.

    Raises
    ------
    Fenced, NotAuthorized, Unfinished
    """
    state, slots = commit_log.own(token, deadline), older_slots(token, SLOTS)
    decided = {h.transactional_id for d in state.open_before(token) for h in d.handles}
    control.renew(max(1.0, deadline.left))
    aborted = sweep(commit_log.sink_id, control, version, lambda p: p.slot in slots and part_id(*p) not in decided)
    spare = frozenset(h.name for d in state.open_before(token) for h in d.others)
    swept = [
        name for p in others.values() for name in p.recover_and_abort(Scope(commit_log.sink_id, token, spare=spare))
    ]
    count(commit_log, token, deadline, aborted=len(aborted) + len(swept))
    return aborted


def count(
    commit_log: CommitLog,
    token: int,
    deadline: Deadline,
    completed: int = 0,
    aborted: int = 0,
    drained: int = 0,
    rewritten: int = 0,
) -> None:
    """Add to the sink's tally. Never raises: a number that is missing must not stop what went well."""
    if not (completed or aborted or drained or rewritten):
        return
    try:
        tally = commit_log.own(token, deadline).tally
        commit_log.append(tally.plus(token, completed, aborted, drained, rewritten), deadline)
    except ExactlyOnceError as e:
        log.warning("sink %s: the tally was not written: %s", commit_log.sink_id, e)
