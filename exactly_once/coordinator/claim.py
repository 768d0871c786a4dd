"""The claim: check everything, fence earlier owners, complete decided batches, sweep undecided transactions."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial

import psutil

from exactly_once.checkpoint import begins_of
from exactly_once.commitlog.log_reader import SEARCH_BUDGET_S, Holder, holder_of
from exactly_once.commitlog.progress import ensure
from exactly_once.coordinator.consent import Consent
from exactly_once.coordinator.driver_state import DriverState
from exactly_once.coordinator.machine import this_machine
from exactly_once.coordinator.named import checked_ends
from exactly_once.coordinator.resolve import Loss, Resolved, resolve
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import CheckpointRewound, ExactlyOnceError, Expired, SinkOwned
from exactly_once.failpoints import reach
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.groups import Committed, begin_published, published_offsets
from exactly_once.options import SinkOptions
from exactly_once.participants.kafka.checks import (
    check_cluster,
    check_topics,
    input_topics,
    warn_of_elections,
    warn_of_lost_input,
)
from exactly_once.protocol.checkpoint_text import kafka_offsets
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.loss import in_doubt, lost_parts
from exactly_once.protocol.named_sources import Ends
from exactly_once.protocol.names import offsets_group
from exactly_once.protocol.planning import (
    Batch,
    Plan,
    check_published,
    forgotten_by,
    of_checkpoint,
    owned_sink,
    plan_batch,
)
from exactly_once.protocol.records import WRITE, Claim, Decision
from exactly_once.protocol.replay import Replay
from exactly_once.protocol.takeover import check_binding, check_not_retired, check_takeover
from exactly_once.protocol.too_long import times_too_long
from exactly_once.txn.coordinators import FENCING_VERSION, refuse_lowered

log = logging.getLogger(__name__)

#: Budget of all of a start: log, resolve, sweep. Two coordinator elections fit.
CLAIM_BUDGET_S = 60.0

#: Budget within it for the consumer group, and for the input: they tell of damage, and must not keep a whole stream
#: waiting.
GROUP_BUDGET_S = 5.0


def claim_for_stream(session: Session, options: SinkOptions, batch: Batch, adopts_all: bool = False) -> DriverState:
    """Claim the sink for a query, before its first batch.

    Every refusal comes before the first write, and before another driver is disturbed. The batch in flight writes its
    decided and lost parts again (``replay`` of the state). With ``adopts_all`` the claim accepts any history of the
    checkpoint, and recreated topics.

    Returns
    -------
    DriverState
        To run under, until something fails. ``session`` has written the claim, and goes on to write as its owner.
    """

    consent = Consent.of(options, adopts_all)

    def holder(query_id: str) -> Holder | None:
        return holder_of(session.kafka.beside(SEARCH_BUDGET_S), query_id, options.sink_id)

    def check(state: LogState, forgotten: int | None) -> None:
        ids, lost = session.kafka.admin().topic_ids, partial(lost_ends, options, session.kafka.beside)
        check_stream(options, batch, state, consent, forgotten, holder, ids, lost)

    return _claim(session, options, "stream", batch, check, consent)


def check_write(options: SinkOptions, state: LogState) -> None:
    """Raise SinkOwned for a batch write to a sink that belongs to a stream."""
    owner = state.owner
    if owner is not None and owner.query_id not in (None, WRITE):
        raise SinkOwned(
            f"{owned_sink(options.sink_id, owner.operator)} belongs to the streaming query {owner.query_id}"
            f"{of_checkpoint(owner.checkpoint)}",
            "Use a separate sink.id for batch writes",
        )


def check_stream(
    options: SinkOptions,
    batch: Batch,
    state: LogState,
    consent: Consent,
    published: int | None = None,
    holder: Callable[[str], Holder | None] | None = None,
    ids: Callable[[list[str]], Mapping[str, str]] | None = None,
    lost: Callable[[str, int], Ends] = lambda query_id, known: {},
) -> None:
    """Refuse a batch that the sink's log, in this state, does not allow, or of which the log has lost the decision; and
    every batch of a sink that is retired.

    ``holder`` finds the sink that holds a query of which this log knows nothing, for the refusal. A query that takes
    the sink asks for the ``ids`` of the topics that it reads, as the brokers say, and for what :func:`lost_ends` does.
    """
    check_not_retired(options.sink_id, state)
    last = state.last_decision(batch.query_id)
    try:
        _check_history(options, batch, state, consent, published, ids, lost)
    except (SinkOwned, CheckpointRewound) as e:
        held = holder(batch.query_id) if holder and last is None and batch.query_id else None
        if held is None:
            raise
        raise type(e)(
            f"{e.what}. {held.title[0].upper()}{held.title[1:]}",
            f"Set sink.id back to {held.sink_id}. Otherwise: {e.way_out}",
        ) from None


def _check_history(
    options: SinkOptions,
    batch: Batch,
    state: LogState,
    consent: Consent,
    published: int | None,
    ids: Callable[[list[str]], Mapping[str, str]] | None,
    lost: Callable[[str, int], Ends],
) -> None:
    owner = state.owner
    bound = owner.query_id if owner else None
    taken = bound if bound != batch.query_id and consent.takes_over(bound) else None
    check_binding(options.sink_id, owner, batch.query_id, options.checkpoint, taken, state.decisions)
    if taken and batch.sources:
        begins, now = begins_of(options.checkpoint, batch.batch_id), ids(input_topics(options, batch)) if ids else {}
        before = state.last_decision(taken)
        committed = partial(lost, taken, before.batch_id if before is not None else -1)
        adopts = partial(consent.adopts_batch, batch)
        check_takeover(options.sink_id, taken, batch, begins, state.decisions, now, adopts, committed)
    last = state.last_decision(batch.query_id)
    adopt = last is None and batch.batch_id > 0 and consent.adopts_history(batch, bound)
    adopts_history = partial(consent.adopts_history, batch, bound)
    plan = plan_batch(options.sink_id, batch, last, adopt)
    check_published(options.sink_id, batch, last, published, adopts_history)
    if plan is Plan.WRITE:
        checked_ends(options, batch, last, adopts_history)


def lost_ends(options: SinkOptions, ask: Callable[[float], Admin], query_id: str, known: int) -> Ends:
    """Return where the input of a batch of the query ended that the sink's consumer group knows, and that came behind
    the batch ``known``; nothing without one, and where nobody can tell. ``ask`` returns the connection with a budget.
    """
    with suppress(ExactlyOnceError):
        if options.input_offsets:
            published = published_offsets(ask(GROUP_BUDGET_S), offsets_group(options.sink_id), settled=True)
            return published.offsets if published.batches.get(query_id, -1) > known else {}
    return {}


def claim_for_write(session: Session, options: SinkOptions) -> DriverState:
    """Claim the sink for one batch write; see :func:`claim_for_stream`."""
    batch = Batch(f"{WRITE}{options.write_id}", 0, "")
    return _claim(session, options, "write", batch, lambda state, _: check_write(options, state), Consent.of(options))


def _claim(
    session: Session,
    options: SinkOptions,
    purpose: str,
    batch: Batch,
    check: Callable[[LogState, int | None], None],
    consent: Consent,
) -> DriverState:
    deadline = Deadline(CLAIM_BUDGET_S)
    with session.trace.step("claim"), session.within(deadline):
        version, timeout_ms, longest_ms = check_cluster(options, session.kafka.admin())

        def make(state: LogState) -> Claim:
            # checked again: the earlier driver's last transaction has ended now, and soon will on the group's partition
            check(state, _forgotten(options, batch, session, state, deadline, settled=True))
            bound = WRITE if purpose == "write" else batch.query_id
            told = options.operator, options.progress_topic
            return make_claim(state, bound, now_ms(), purpose, options.checkpoint, *told)

        begun = None
        if _tells(options, batch):  # asked while the log is read
            begun = begin_published(session.kafka.admin(), offsets_group(options.sink_id))
        before = session.log.read(deadline)
        check(before, _forgotten(options, batch, session, before, deadline, settled=False, begun=begun))
        if version < FENCING_VERSION:
            refuse_lowered(session.kafka.admin(), [d.end_txn_version for d in before.decisions])
        decision = before.last_decision(batch.query_id)
        topics, inputs = [options.topic] if options.topic else [], input_topics(options, batch)
        decided = decision is not None and decision.batch_id == batch.batch_id
        undone = decision if decision in before.open_decisions else None
        adopts, read = consent.adopts_topic, () if decided else inputs
        check_topics(session.kafka.admin().topic_ids, options.sink_id, decision, topics, adopts, read, undone)
        if options.progress_topic:
            ensure(session.kafka.admin(), options.progress_topic, deadline)
        _, claim = session.log.claim(make, deadline)
        ahead = session.log.clock_ahead_ms
        reach("claimed")
        with session.trace.step("recover"):
            resolved = resolve(session, claim.token, consent, deadline)
            aborted = sum(map(len, resolved.rolled_back.values()))
            session.trace.say(completed_batches=len(resolved.completed), aborted_parts=aborted)
        _raise_own(options, batch, resolved)
        # read again: a count that could not be written has closed the log, whose end goes out with the ticket
        after = session.log.own(claim.token, deadline)
        last = after.last_decision(batch.query_id)
        if decided:  # checked only now: decided batches had to be committed first, whatever became of their input
            check_topics(session.kafka.admin().topic_ids, options.sink_id, last, (), consent.adopts_topic, inputs)
        state = DriverState(
            claim.token,
            batch,
            version,
            timeout_ms,
            ahead,
            last,
            # swept_ms 0: the first batch sweeps again: a task of the driver before may have outlived it by seconds
            replay=_replay(options, batch, resolved.losses),
            incarnation=session.incarnation(),
            log_end=session.log.high_watermark,
            too_long=times_too_long(after, batch),
            longest_ms=longest_ms,
        )
        written = topics or (decision.topics if decision else ())
        dead = [options.dead_letters.topic] if options.dead_letters else []
        about, admin = {session.log.topic, *written, *dead}, session.kafka.beside(GROUP_BUDGET_S)
        session.submit(partial(warn_of_elections, options.sink_id, admin, about))  # while the tasks begin
        warn_of_lost_input(options, batch, session.kafka.admin(GROUP_BUDGET_S), after)
    consent.say_unneeded(options.sink_id)
    _tell(options.sink_id, resolved, state)
    return state


def _tells(options: SinkOptions, batch: Batch) -> bool:
    """Return whether the sink's consumer group knows its batches."""
    return bool(options.input_offsets and kafka_offsets(batch.sources))


def _forgotten(
    options: SinkOptions,
    batch: Batch,
    session: Session,
    state: LogState,
    deadline: Deadline,
    settled: bool,
    begun: Awaitable[Committed] | None = None,
) -> int | None:
    """Return the batch whose decision the sink's consumer group knows, and the log, in this state, does not; None
    without one, and where nothing tells it: the input is not Kafka, or the group cannot be asked now.
    """
    if not _tells(options, batch):
        return None
    published, group = None, offsets_group(options.sink_id)
    with suppress(ExactlyOnceError):
        admin = session.kafka.admin(GROUP_BUDGET_S)
        published = published_offsets(admin, group, settled, begun).batches.get(batch.query_id)
    if not forgotten_by(published, state.last_decision(batch.query_id)):
        return None
    now = session.log.read(deadline, whole=True)  # a driver that lives may have decided between the two looks
    return published if forgotten_by(published, now.last_decision(batch.query_id)) else None


def _tell(sink_id: str, found: Resolved, state: DriverState) -> None:
    rolled_back = sum(map(len, found.rolled_back.values()))
    if found.completed or rolled_back or state.replay:
        log.warning(
            "sink %s: completed decided batches %s and aborted %d undecided transactions of an earlier driver; %d "
            "decided parts are lost and will be written again",
            sink_id,
            [d.write_id or d.batch_id for d in found.completed],
            rolled_back,
            sum(len(parts) for parts in state.replay.values()),
        )


def _raise_own(options: SinkOptions, batch: Batch, found: Resolved) -> None:
    """Raise what keeps ``batch`` from running.

    A batch write is independent of other writes with lost or doubtful parts: their next try repairs them. A write that
    may still have open transactions (Unfinished) stops every claim, since its ids must not be initialised again.
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
    """Return the parts that ``batch``, which Spark is about to run again, must write again; raise Expired when no later
    run can be compared with what was lost.
    """
    replay: Replay = {}
    for loss in losses:
        d = loss.decision
        if _of_another_write(d, batch):
            continue
        name = d.title(options.sink_id)
        if (d.query_id, d.batch_id) != (batch.query_id, batch.batch_id):
            raise in_doubt(
                name,
                d,
                loss.handles,
                "these parts were rolled back, or lost with their topic, and Spark has moved past their micro-batch",
            )
        if unknown := [h for h in loss.handles if not h.digest]:
            raise in_doubt(
                name,
                d,
                unknown,
                "these parts were rolled back, and the older version that wrote them recorded no digest",
            )
        for h in loss.handles:
            replay.setdefault(h.participant, {})[str(h.part)] = [h.records, h.digest]
    return replay


def make_claim(
    state: LogState,
    query_id: str | None,
    now_ms: int,
    purpose: str,
    checkpoint: str = "",
    operator: str = "",
    progress: str = "",
) -> Claim:
    """Return the claim that follows ``state``, for the process that owns the sink from now on.

    That process is on this machine and lives as long as the owner: the driver's JVM where it has started this process,
    or else the driver's Python, or a recovery's own. ``operator`` says who operates it; ``progress`` is the topic that
    tells readers which batches are whole.
    """
    process = psutil.Process()
    if purpose != "recovery":
        process = next((p for p in process.parents() if p.name().startswith("java")), process)
    token = (state.owner.token if state.owner else 0) + 1
    return Claim(
        token,
        query_id,
        now_ms,
        purpose,
        host=socket.gethostname(),
        pid=process.pid,
        checkpoint=checkpoint,
        pid_started=process.create_time(),
        operator=operator,
        machine=this_machine(),
        progress=progress,
    )
