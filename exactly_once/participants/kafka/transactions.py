"""Kafka's share in the steps of the protocol: are the batch's transactions alive, commit them, sweep the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from exactly_once import failpoints
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import ExactlyOnceError, Expired, Expiring, NotAuthorized, Unfinished
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.errors import LOWERED, RAISE
from exactly_once.participant import Proposal
from exactly_once.participants.kafka.checks import check_topics
from exactly_once.participants.kafka.topics import Topics, begin_looking, end_looking, topics_now
from exactly_once.protocol.checksum import not_whole
from exactly_once.protocol.loss import doubtful
from exactly_once.protocol.names import PartId, namespace
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import Decision, PreparedTransaction
from exactly_once.protocol.too_long import SPARE, limit_ms, too_long_error
from exactly_once.txn.coordinators import (
    FENCING_VERSION,
    Description,
    End,
    begin_check_seen,
    check_seen,
    describe,
    end_all,
    end_txn_version,
    initialise,
    list_transactions,
    transaction_level,
)
from exactly_once.txn.evidence import TransactionOutcome, transaction_outcomes
from exactly_once.txn.hanging import end_left_open, was_aborted
from exactly_once.txn.leaders import Hanging, begin_asking, end_asking, mismatches

log = logging.getLogger(__name__)

#: Budget of a sweep. Transactions that keep coming back belong to tasks that still run; the next sweep finds them
#: again.
SWEEP_BUDGET_S = 10.0

#: States in which a transaction holds back read_committed readers until it is ended.
OPEN = ("Ongoing",)

#: Budget for putting the transactions of a recovery in order: most of the budget is for ending them.
_ORDER_BUDGET_S = 5.0

#: Timeout of an id that is initialised in order to fence its producer: no transaction ever begins with it.
_FENCE_TIMEOUT_MS = 10_000

#: The state of an id that a producer has initialised without having begun a transaction.
IDLE = ("Empty",)

#: Budget for asking the coordinators. Two elections of a coordinator fit.
ALIVE_BUDGET_S = 30.0

#: Budget for asking the partition leaders, whose silence forbids nothing; the transactions' time runs meanwhile.
LEADERS_BUDGET_S = 5.0

#: Share of the timeout at which a warning says that batches are getting too long for it.
WARN = 0.5

#: Topics whose ids a decision keeps, those written last: more than one batch names, and with the longest names a third
#: of a megabyte. A topic that was recreated after so many others were written is not recognised.
KEPT_TOPIC_IDS = 1_000


def confirm(
    proposal: Proposal, admin: Admin, adopts: Callable[[str], bool], inputs: Collection[str] = ()
) -> tuple[Decision, str]:
    """Make sure that the decision can be made, and add what the brokers know: when the batch began, its topics and
    their ids.

    Parameters
    ----------
    adopts
        Whether the user adopts the recreated topic with this id.
    inputs
        The topics of this cluster that the batch reads.

    Returns
    -------
    (Decision, str)
        The decision, and why some leaders could not say what is open; "" when all could.

    Raises Expiring, BatchTooLong, TopicRecreated, InputRecreated, BrokerUnreachable or NotAuthorized.
    """
    handles = proposal.decision.transactions
    topics = _topics_of(proposal.decision)
    begun = begin_asking(admin, handles, {*topics, *inputs})
    described = describe(admin.renew(ALIVE_BUDGET_S), (h.transactional_id for h in handles))
    _check_alive(proposal, described, admin)
    leaders, last = Deadline(LEADERS_BUDGET_S), proposal.last
    heard = end_asking(admin, begun)
    ids_of = admin.topic_ids if heard is None else lambda _: heard.ids
    written, read = check_topics(ids_of, proposal.sink_id, last, topics, adopts, inputs)
    found, unasked = mismatches(admin.renew(leaders.left), handles, described, heard)
    if gone := next((h for h in handles if h.transactional_id in found), None):
        raise not_whole(gone.transactional_id, gone.part, found[gone.transactional_id])
    began_ms = min((d.started_ms for d in described.values()), default=0)
    return _named(proposal, began_ms, topics, written, read), unasked


def foresee(proposal: Proposal, inputs: Collection[str] = ()) -> Decision | None:
    """Return what :func:`confirm` will return if output and input are the topics of the last decision, without
    ``began_ms``. None where that one does not have them all.
    """
    last, topics = proposal.last, _topics_of(proposal.decision)
    if last is None or not last.topic_ids.keys() >= set(topics) or not last.input_ids.keys() >= set(inputs):
        return None
    written, read = {t: last.topic_ids[t] for t in topics}, {t: last.input_ids[t] for t in inputs}
    return _named(proposal, 0, topics, written, read)


def _topics_of(decision: Decision) -> list[str]:
    return sorted({*decision.topics, *(t for h in decision.transactions for t in h.topics)})


def _named(
    proposal: Proposal, began_ms: int, topics: list[str], written: Mapping[str, str], read: Mapping[str, str]
) -> Decision:
    last = proposal.last
    return replace(
        proposal.decision,
        began_ms=began_ms,
        topics=tuple(topics),
        topic_ids=kept_topic_ids(last.topic_ids if last else {}, written),
        input_ids=kept_topic_ids(last.input_ids if last else {}, read),
    )


def _check_alive(proposal: Proposal, described: Mapping[str, Description], admin: Admin) -> None:
    """Ask the coordinators: every transaction is open, is the one that was prepared, and has time to spare."""
    broker_now = time.time() * 1000 + proposal.clock_ahead_ms
    oldest = 0.0
    for h in proposal.decision.transactions:
        d = described[h.transactional_id]
        used = (broker_now - d.started_ms) / max(1, d.timeout_ms)
        if not _is_open(h, d) or used > 1 - SPARE:
            raise _expiring(proposal, h, d, broker_now, admin)
        oldest = max(oldest, used)
    if oldest > WARN:
        log.warning(
            "sink %s: EO-WARN-TIMEOUT the batch used %.0f%% of transaction.timeout.ms=%d before its decision; "
            "above %.0f%% the sink does not decide a batch",
            proposal.sink_id,
            oldest * 100,
            proposal.timeout_ms,
            (1 - SPARE) * 100,
        )


def _is_open(h: PreparedTransaction, d: Description) -> bool:
    return (d.state, d.producer_id, d.producer_epoch) == ("Ongoing", h.producer_id, h.epoch)


def _expiring(
    proposal: Proposal, h: PreparedTransaction, d: Description, broker_now: float, admin: Admin
) -> ExactlyOnceError:
    """Return the error of a prepared transaction that is too old to be decided, or gone."""
    name = f"the transaction {h.transactional_id} of part {h.part}"
    if _is_open(h, d):
        took_ms = broker_now - d.started_ms
        why = f"{name} has used {took_ms / 1000:.1f} s of its {d.timeout_ms / 1000:g} s"
    else:
        took_ms = now_ms() - proposal.planned_ms
        found = d.state or "unknown"
        why = f"{name} is gone (the broker reports {found} at epoch {d.producer_epoch}, not {h.epoch})"
        if took_ms < limit_ms(proposal.timeout_ms):
            return Expiring(
                why,
                "Start the stream (or the write) again. If the error repeats, another program or a person ends "
                f"transactions of this id: run exactly-once transactions explain {h.transactional_id} to see its "
                "state",
            )
        why = f"{why}, {took_ms / 1000:.1f} s after the batch was planned"
    admin.renew(LEADERS_BUDGET_S)
    return too_long_error(
        proposal.sink_id,
        proposal.checkpoint,
        proposal.batch,
        why,
        took_ms=took_ms,
        timeout_ms=proposal.timeout_ms,
        before=proposal.too_long,
        longest_ms=admin.longest_transaction_ms(),
    )


def kept_topic_ids(known: Mapping[str, str], written: Mapping[str, str]) -> dict[str, str]:
    """Return the topic ids for the next decision.

    Those just ``written``, and those written last before, as many as :data:`KEPT_TOPIC_IDS` in all.
    """
    others = [item for item in known.items() if item[0] not in written]
    room = max(0, KEPT_TOPIC_IDS - len(written))
    return {**dict(others[len(others) - min(room, len(others)) :]), **written}


def commit_transactions(
    sink_id: str,
    handles: Sequence[PreparedTransaction],
    admin: Admin,
    budget_s: float,
    recovering: bool = False,
    confirmed: bool = False,
) -> list[PreparedTransaction]:
    """Commit the decided transactions of one batch: EndTxn for all at once, and evidence where the answer tells
    nothing.

    When a topic to which the batch wrote was deleted or recreated since its decision, its records there are gone.
    Then all transactions that are open are aborted instead, whichever topics they are in, so that the batch can be
    written again as a whole.

    Parameters
    ----------
    recovering : bool
        An earlier driver decided them, and may have committed some.
    confirmed : bool
        A moment ago each partition had a leader, and the topics were those of the decision. Then they are asked for
        beside EndTxn instead of before it.

    Returns
    -------
    list of PreparedTransaction
        Those that are lost: proven to be aborted, or all of whose topics were recreated.

    Raises
    ------
    NotAuthorized
    Unfinished
        When ``budget_s`` seconds were not enough.
    Expired
        When no one can tell how a transaction ended, or when it was committed before one of the topics was deleted.
    """
    by_id = {h.transactional_id: h for h in handles}
    first = {d.transactional_id: d.partitions for d in (open_ones(handles, admin) if recovering else ())}
    admin.renew(budget_s)
    wrote_to = {p for h in handles for p in first.get(h.transactional_id, h.written)}
    ids = handles[0].topic_ids if handles else {}
    ordered = sorted(handles, key=lambda h: h.transactional_id not in first)
    if confirmed:
        looking = begin_looking(admin, wrote_to, ids)
        outcomes = _end(ordered, admin, True)
        topics = end_looking(admin, looking) or topics_now(admin, wrote_to, ids)
        if topics.away:
            raise _leaderless(sink_id, topics, "had no leader while its transactions ended. Kafka may have written")
    else:
        topics = topics_now(admin, wrote_to, ids)
        if topics.away:
            had = f"has had no leader for {round(budget_s, 1):g} s. If a transaction ended now, Kafka would write"
            raise _leaderless(sink_id, topics, had)
        outcomes = _end(ordered, admin, not topics.changed)
    by: dict[Outcome, list[PreparedTransaction]] = {}
    for transactional_id, outcome in outcomes.items():
        by.setdefault(outcome, []).append(by_id[transactional_id])
    if denied := by.get(Outcome.DENIED):
        raise NotAuthorized(
            f"this principal may not end {denied[0].transactional_id}",
            f"Grant WRITE on the transactional ids that begin with {namespace(sink_id)!r}, and start again",
        )
    done = by.get(Outcome.DONE, []) if topics.changed else []
    lost = [] if confirmed else done
    gone = [h for h in done if topics.changed & {topic for topic, _ in h.written}] if confirmed else []
    unsure = by.get(Outcome.LOST, []) + by.get(Outcome.UNKNOWN, []) + gone
    if not topics.stand:
        lost, unsure = lost + unsure, []
    _end_hanging(admin, unsure)
    ended = transaction_outcomes(admin, [_without_place(h, topics) for h in unsure])
    waiting = by.get(Outcome.RETRY, []) + [
        by_id[i] for i, outcome in ended.items() if outcome is TransactionOutcome.OPEN
    ]
    if waiting:
        why, way_out = _why_waiting(waiting, admin.renew(_ORDER_BUDGET_S))
        raise Unfinished(
            f"{len(waiting)} of {len(by_id)} transactions were not proven committed within {round(budget_s, 1):g} s, "
            f"{waiting[0].transactional_id} among them ({why})",
            f"{way_out}, or run exactly-once recover {sink_id}. Do it before the transactions time out: after that, "
            "only a start of the stream can write their rows (EO-LOST)",
        )
    # a committed transaction may have been in a topic that is gone
    unproven = [TransactionOutcome.UNKNOWN]
    if topics.changed:
        unproven.append(TransactionOutcome.COMMITTED)
    unknown = [by_id[i] for i, outcome in ended.items() if outcome in unproven]
    lost += [by_id[i] for i, outcome in ended.items() if outcome is TransactionOutcome.ABORTED]
    if unknown:  # it names the rolled back ones, too: who accepts the parts in doubt accepts these as well
        raise Expired(
            doubtful([*unknown, *lost], _why(topics, len(lost))),
            "Find out whether the output holds the rows of the parts in doubt, and write the missing rows",
        )
    return lost


def _leaderless(sink_id: str, topics: Topics, had: str) -> Unfinished:
    where = f"{topics.away[0][0]}-{topics.away[0][1]}"
    return Unfinished(
        f"partition {where} {had} no end marker there, and readers would wait for one",
        f"Once partition {where} has a leader, start the stream again, or run exactly-once recover {sink_id}. Do it "
        "before the transactions time out: after that, only a start of the stream can write their rows (EO-LOST)",
    )


def _why_waiting(handles: Sequence[PreparedTransaction], admin: Admin) -> tuple[str, str]:
    """Return why transactions are not ended whose EndTxn got no definite answer, and the way out without its end."""
    with suppress(ExactlyOnceError):
        stuck = any(h.end_txn_version >= FENCING_VERSION for h in handles) and open_of(handles, admin)
        if stuck and transaction_level(admin) == 0:
            return LOWERED, RAISE
        if stuck:
            return (
                "their coordinators answer, describe them as open, and do not end them, as brokers do whose "
                "transaction.version was 0 for a moment",
                "Restart the brokers one after the other, those that are down first, and start the stream again",
            )
    return (
        "the brokers did not answer, or have yet to write the end markers",
        "Once the brokers answer, start the stream again",
    )


def _end_hanging(admin: Admin, handles: Sequence[PreparedTransaction]) -> None:
    """End these where their coordinator has aborted them and Kafka left out a marker: they would look open for ever."""
    if not handles:
        return
    ids = {h.transactional_id for h in handles}
    topics = {topic for h in handles for topic in h.topic_ids} | {h.place.topic for h in handles if h.place}

    def how(h: Hanging, d: Description) -> bool | None:
        return False if was_aborted(h, d, end_txn_version(admin)) else None

    with suppress(ExactlyOnceError):
        end_left_open(admin, topics, ids.__contains__, how)


def _without_place(h: PreparedTransaction, topics: Topics) -> PreparedTransaction:
    """Return the handle without the place of its first record if another topic has that place now."""
    return replace(h, place=None) if h.place is not None and h.place.topic in topics.changed else h


def _why(topics: Topics, rolled_back: int) -> str:
    """Say why no one can tell how transactions ended, ``rolled_back`` others aside."""
    beside = f" ({rolled_back} of them are known to be lost)" if rolled_back else ""
    if topics.changed:
        names = ", ".join(sorted(topics.changed))
        return (
            "these transactions have ended, and topics to which the batch wrote were deleted since, with what "
            f"was committed there: {names}{beside}"
        )
    return f"these transactions have ended, but neither their coordinator nor the output shows how{beside}"


def _end(handles: Sequence[PreparedTransaction], admin: Admin, commit: bool) -> dict[str, Outcome]:
    """Send EndTxn; return the answers by transactional id: each with the version of its first try."""
    outcomes: dict[str, Outcome] = {}
    if failpoints.armed("some-ended") and len(handles) > 1:  # only a test needs a moment at which some are ended
        outcomes |= end_all(admin, [End.of(handles[0])], commit, handles[0].end_txn_version or end_txn_version(admin))
        failpoints.reach("some-ended")
        handles = handles[1:]
    ends: dict[int, list[End]] = {}
    for h in handles:
        ends.setdefault(h.end_txn_version, []).append(End.of(h))
    for version, some in sorted(ends.items()):
        outcomes |= end_all(admin, some, commit, version or end_txn_version(admin))
    return outcomes


def open_ones(handles: Sequence[PreparedTransaction], admin: Admin) -> list[Description]:
    """Return those that are still to be ended, which come first.

    If the budget ends before the last one, the next start must not spend it on what this one has committed. Empty when
    their coordinators do not answer at once.
    """
    try:
        return open_of(handles, admin.renew(_ORDER_BUDGET_S))
    except ExactlyOnceError:
        return []


def sweep(
    sink_id: str,
    admin: Admin,
    mine: Callable[[PartId], bool],
    spare: frozenset[End] = frozenset(),
) -> list[Description]:
    """Abort every open transaction of the sink whose id satisfies ``mine``, save those in ``spare``; repeat until none
    is left or the budget is spent.

    Each abort names the very transaction that was seen, by producer id and epoch: it cannot hit a later one.

    Returns
    -------
    list of Description
        What was aborted.

    Raises
    ------
    NotAuthorized
        When the principal may not see the sink's transactions, or not abort them.
    """
    aborted: list[Description] = []
    seen: Awaitable[object] | None = begin_check_seen(admin, namespace(sink_id))
    for _ in Deadline(SWEEP_BUDGET_S).tries():
        found = [d for d in open_transactions(sink_id, admin, mine) if d.end not in spare]
        if seen is not None:
            check_seen(admin, namespace(sink_id), seen)
            seen = None
        if not found:
            return aborted
        outcomes = end_all(admin, [d.end for d in found], False, end_txn_version(admin))
        aborted += [d for d in found if outcomes[d.transactional_id] is Outcome.DONE]
        if any(o is Outcome.DENIED for o in outcomes.values()):
            raise NotAuthorized(
                f"this principal may not abort open transactions of sink {sink_id!r}",
                f"Grant WRITE and DESCRIBE on the transactional ids that begin with {namespace(sink_id)!r}",
            )
    log.warning(
        "sink %s: transactions are still open after %g s of aborting; the next start or a recovery aborts them",
        sink_id,
        SWEEP_BUDGET_S,
    )
    return aborted


def fence_idle(sink_id: str, admin: Admin, mine: Callable[[PartId], bool], spare: frozenset[str]) -> None:
    """Keep tasks that have initialised an id which satisfies ``mine``, and have not begun, from beginning; save the
    ids in ``spare``.
    """
    for listed in list_transactions(admin, namespace(sink_id), IDLE):
        part = PartId.parse(listed.transactional_id)
        if part is not None and mine(part) and listed.transactional_id not in spare:
            initialise(admin, listed.transactional_id, _FENCE_TIMEOUT_MS)


def open_of(handles: Sequence[PreparedTransaction], admin: Admin) -> list[Description]:
    """Return those transactions of ``handles`` that are still open, as their coordinators describe them."""
    mine = {h.transactional_id: h for h in handles}
    return [d for i, d in describe(admin, mine).items() if _is_open(mine[i], d)]


def open_transactions(sink_id: str, admin: Admin, mine: Callable[[PartId], bool]) -> list[Description]:
    """Return the open transactions of the sink whose id satisfies ``mine``, as their coordinators describe them."""
    listed = [x.transactional_id for x in list_transactions(admin, namespace(sink_id), OPEN)]
    wanted = [i for i in listed if (p := PartId.parse(i)) is not None and p.sink_id == sink_id and mine(p)]
    return [d for d in describe(admin, wanted).values() if d.state in OPEN]
