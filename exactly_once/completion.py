"""Where a transaction is committed: phase 2, and the sweep of what is not to be committed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from exactly_once import failpoints
from exactly_once.deadline import Deadline
from exactly_once.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ExactlyOnceError,
    Expired,
    Lost,
    NotAuthorized,
    ParticipantMissing,
    Unfinished,
)
from exactly_once.kafka.control import Control, Description, End
from exactly_once.kafka.evidence import Evidence, Fate
from exactly_once.participant import Handle, Participant
from exactly_once.protocol.names import PartId, namespace, parse_part_id
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import KAFKA, Decision, PreparedPart, PreparedTransaction

log = logging.getLogger(__name__)

#: Transactions that keep coming back belong to tasks that still run; the next sweep finds them again.
SWEEP_BUDGET_S = 10.0

#: States in which a transaction holds back read_committed readers until somebody acts.
OPEN = ("Ongoing",)

#: What is safe when only the mark is missing that says so.
COMMITTED = "The batch is committed; the next start marks it so and drains its rows"

#: For putting the transactions of a recovery in order: most of the budget is for ending them.
_ORDER_BUDGET_S = 5.0

#: The state of an id that a producer has initialised without having begun a transaction.
IDLE = ("Empty",)


def complete(
    sink_id: str,
    decision: Decision,
    control: Evidence,
    budget_s: float,
    others: Mapping[str, Participant[PreparedPart]] = MappingProxyType({}),
    recovering: bool = False,
) -> list[Handle]:
    """Commit every handle of a decision, participant by participant, until each outcome is proven. Safe to repeat.

    When one participant fails, the rest is committed all the same.

    Parameters
    ----------
    others : mapping
        The participants beside Kafka, by name.
    recovering : bool
        The decision is an earlier driver's.

    Returns
    -------
    list of Handle
        The parts that are proven to be lost: rolled back before their commit, and to be written again.

    Raises
    ------
    Expired
        When nobody can tell what became of a part; everything else is committed first.
    Unfinished
        When some outcome could not be proven within ``budget_s`` seconds.
    ParticipantMissing
    """
    name = decision.title(sink_id)
    lost: list[Handle] = []
    failures: list[ExactlyOnceError] = []
    for participant in decision.by_participant:
        failpoints.reach(f"commit-{participant}")
        try:
            if participant == KAFKA:
                lost += commit_transactions(sink_id, name, decision, control, budget_s, recovering)
            elif participant in others:
                mine = [h for h in decision.others if h.participant == participant]
                output = others[participant]
                lost += output.recover_and_commit(mine) if recovering else output.commit(mine)
            else:
                raise ParticipantMissing(
                    f"{name} is decided, and its participant {participant!r} is not known here",
                    f"Start the stream with a participant of the name {participant!r}: it commits its parts",
                )
        except (BrokerUnreachable, BrokerRefused) as e:
            failures.append(
                Unfinished(f"{name} is decided, and not all of it is proven committed: {e.what}", e.way_out)
            )
        except ExactlyOnceError as e:
            failures.append(decided_error(e))
    for failure in sorted(failures, key=lambda e: isinstance(e, Expired)):
        if isinstance(failure, Expired):
            # whoever accepts the one loss accepts the other; a participant does not know the word for it
            more = f"; and {len(lost)} more are rolled back: {_list(lost)}" if lost else ""
            word = f"sink.accept.lost={decision.word}"
            then = "" if word in failure.way_out else f". Then set the option {word} for one start"
            raise Expired(f"{failure.what}{more}", f"{failure.way_out}{then}", failure.safe)
        raise failure  # what may still be committed comes first: only when nothing else is left may a loss be accepted
    failpoints.reach("all-ended")
    return lost


def decided_error(e: ExactlyOnceError, safe: str = Unfinished.default_safe) -> ExactlyOnceError:
    """``e`` as an error of a batch that is decided: it may not say that nothing was written."""
    return type(e)(e.what, e.way_out, safe) if e.safe == ExactlyOnceError.default_safe else e


def commit_transactions(
    sink_id: str, name: str, decision: Decision, control: Evidence, budget_s: float, recovering: bool = False
) -> list[PreparedTransaction]:
    """Kafka's share of :func:`complete`: EndTxn for all transactions at once, and evidence where the answer tells
    nothing.
    """
    handles = {h.transactional_id: h for h in decision.handles}
    first = open_ones(decision.handles, control) if recovering else frozenset()
    ends = [End.of(h) for h in sorted(decision.handles, key=lambda h: h.transactional_id not in first)]
    control.renew(budget_s)
    outcomes: dict[str, Outcome] = {}
    if failpoints.armed("some-ended") and len(ends) > 1:  # only a test needs a moment at which some are ended
        outcomes |= control.end_all(ends[:1], True, decision.end_txn_version)
        failpoints.reach("some-ended")
        ends = ends[1:]
    outcomes |= control.end_all(ends, True, decision.end_txn_version)
    by: dict[Outcome, list[PreparedTransaction]] = {}
    for transactional_id, outcome in outcomes.items():
        by.setdefault(outcome, []).append(handles[transactional_id])
    if denied := by.get(Outcome.DENIED):
        raise NotAuthorized(
            f"{name} is decided, but this principal may not end {denied[0].transactional_id}",
            f"Grant WRITE on the transactional ids that begin with {namespace(sink_id)!r} and start again",
            safe=Unfinished.default_safe,
        )
    fates = control.fates(by.get(Outcome.LOST, []) + by.get(Outcome.UNKNOWN, []))
    waiting = by.get(Outcome.RETRY, []) + [handles[i] for i, fate in fates.items() if fate is Fate.OPEN]
    if waiting:
        raise Unfinished(
            f"{name}: {len(waiting)} of {len(handles)} transactions are not proven committed within {budget_s:g} s (no "
            f"answer, or their end markers are still to be written), {waiting[0].transactional_id} among them",
            "Start the stream (or the recovery) again when the brokers answer, before the transaction timeout",
        )
    if unknown := [handles[i] for i, fate in fates.items() if fate is Fate.UNKNOWN]:
        raise in_doubt(
            name, decision, unknown, "ended otherwise, and neither their coordinator nor the output can tell how"
        )
    return [handles[i] for i, fate in fates.items() if fate is Fate.ABORTED]


def open_ones(handles: Sequence[PreparedTransaction], control: Control) -> frozenset[str]:
    """The ids of those that are still to be ended, which come first: if the budget ends before the last one, the next
    start must not spend it on what this one has committed. None when their coordinators do not say so at once.
    """
    try:
        control.renew(_ORDER_BUDGET_S)
        return frozenset(d.transactional_id for d in open_of(handles, control))
    except ExactlyOnceError:
        return frozenset()


def lost_parts(sink_id: str, decision: Decision, handles: Sequence[Handle]) -> Lost:
    """The error of a decided batch, or write, of which ``handles`` are proven to be lost."""
    again = (
        f"Run the write {decision.write_id!r} again: it writes exactly these parts again"
        if decision.write_id
        else "Start the stream again: it writes exactly these parts again, from the same micro-batch"
    )
    return Lost(
        f"{decision.title(sink_id)} is decided, but {len(handles)} of its parts were rolled back before their commit, "
        f"by a timeout or by an operator: {_list(handles)}",
        again,
    )


def in_doubt(name: str, decision: Decision, handles: Sequence[Handle], why: str) -> Expired:
    """The error of a decided batch of which nobody can tell, or make good, what became of ``handles``."""
    batch_id, write_id = decision.batch_id, decision.write_id
    origin = f"the write {write_id!r}" if write_id else f"the input {_range(batch_id)} of the checkpoint"
    return Expired(
        f"{name} is decided, but {len(handles)} of its parts are in doubt: {why}: {_list(handles)}",
        f"Their rows come from {origin}: find out whether the output holds them, write what is missing from there, "
        f"then set the option sink.accept.lost={decision.word} for one start",
    )


def _list(handles: Sequence[Handle]) -> str:
    parts = ", ".join(f"part {h.part} ({h.records} records, {h.name})" for h in handles[:5])
    return parts + (f" and {len(handles) - 5} more" if len(handles) > 5 else "")


def _range(batch_id: int) -> str:
    return f"between offsets/{batch_id - 1} and offsets/{batch_id}" if batch_id else "up to offsets/0"


def sweep(
    sink_id: str,
    control: Control,
    version: int,
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
    """
    aborted: list[Description] = []
    for _ in Deadline(SWEEP_BUDGET_S).tries():
        found = [d for d in open_transactions(sink_id, control, mine) if d.end not in spare]
        if not found:
            return aborted
        outcomes = control.end_all([d.end for d in found], False, version)
        aborted += [d for d in found if outcomes[d.transactional_id] is Outcome.DONE]
        if any(o is Outcome.DENIED for o in outcomes.values()):
            raise NotAuthorized(
                f"this principal may not abort open transactions of sink {sink_id!r}",
                f"Grant WRITE and DESCRIBE on the transactional ids that begin with {namespace(sink_id)!r}",
            )
    log.warning("sink %s: transactions are still open after %g s of aborting", sink_id, SWEEP_BUDGET_S)
    return aborted


def open_of(handles: Sequence[PreparedTransaction], control: Control) -> list[Description]:
    """Those of the very transactions in ``handles`` that are open, as their coordinators describe them."""
    mine = {h.transactional_id: h for h in handles}
    return [
        d
        for i, d in control.describe(mine).items()
        if (d.state, d.producer_id, d.producer_epoch) == ("Ongoing", mine[i].producer_id, mine[i].epoch)
    ]


def open_transactions(sink_id: str, control: Control, mine: Callable[[PartId], bool]) -> list[Description]:
    """The open transactions of the sink whose id satisfies ``mine``, as their coordinators describe them."""
    listed = [x.transactional_id for x in control.list_transactions(namespace(sink_id), OPEN)]
    wanted = [i for i in listed if (p := parse_part_id(i)) is not None and p.sink_id == sink_id and mine(p)]
    return [d for d in control.describe(wanted).values() if d.state in OPEN]


def older_slots(token: int, slots: int) -> frozenset[int]:
    """The slots of the claims before ``token`` that its sweep may touch.

    Half of the ring: the other half belongs to claims that come after it, which a sweep that was paused must not harm.
    """
    return frozenset((token - k) % slots for k in range(1, slots // 2 + 1))
