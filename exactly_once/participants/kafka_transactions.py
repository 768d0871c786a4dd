"""The end of Kafka's transactions: the commit of those that are decided, the sweep of the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from exactly_once import failpoints
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError, NotAuthorized, Unfinished
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.evidence import Fate, fates
from exactly_once.kafka.transactions import Description, End, describe, end_all, list_transactions
from exactly_once.protocol.loss import in_doubt
from exactly_once.protocol.names import PartId, namespace, parse_part_id
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import Decision, PreparedTransaction

log = logging.getLogger(__name__)

#: Transactions that keep coming back belong to tasks that still run; the next sweep finds them again.
SWEEP_BUDGET_S = 10.0

#: States in which a transaction holds back read_committed readers until somebody acts.
OPEN = ("Ongoing",)

#: For putting the transactions of a recovery in order: most of the budget is for ending them.
_ORDER_BUDGET_S = 5.0

#: The state of an id that a producer has initialised without having begun a transaction.
IDLE = ("Empty",)


def commit_transactions(
    sink_id: str, name: str, decision: Decision, control: Admin, budget_s: float, recovering: bool = False
) -> list[PreparedTransaction]:
    """Kafka's share of :func:`complete`: EndTxn for all transactions at once, and evidence where the answer tells
    nothing.
    """
    handles = {h.transactional_id: h for h in decision.transactions}
    first = open_ones(decision.transactions, control) if recovering else frozenset()
    ends = [End.of(h) for h in sorted(decision.transactions, key=lambda h: h.transactional_id not in first)]
    control.renew(budget_s)
    outcomes: dict[str, Outcome] = {}
    if failpoints.armed("some-ended") and len(ends) > 1:  # only a test needs a moment at which some are ended
        outcomes |= end_all(control, ends[:1], True, decision.end_txn_version)
        failpoints.reach("some-ended")
        ends = ends[1:]
    outcomes |= end_all(control, ends, True, decision.end_txn_version)
    by: dict[Outcome, list[PreparedTransaction]] = {}
    for transactional_id, outcome in outcomes.items():
        by.setdefault(outcome, []).append(handles[transactional_id])
    if denied := by.get(Outcome.DENIED):
        raise NotAuthorized(
            f"{name} is decided, but this principal may not end {denied[0].transactional_id}",
            f"Grant WRITE on the transactional ids that begin with {namespace(sink_id)!r}, and start again",
            safe=Unfinished.default_safe,
        )
    ended = fates(control, by.get(Outcome.LOST, []) + by.get(Outcome.UNKNOWN, []))
    waiting = by.get(Outcome.RETRY, []) + [handles[i] for i, fate in ended.items() if fate is Fate.OPEN]
    if waiting:
        raise Unfinished(
            f"{name}: {len(waiting)} of {len(handles)} transactions were not proven committed within {budget_s:g} s, "
            f"{waiting[0].transactional_id} among them (the brokers did not answer, or have yet to write the end "
            "markers)",
            "Start the stream (or the recovery) again when the brokers answer, before the transactions time out",
        )
    if unknown := [handles[i] for i, fate in ended.items() if fate is Fate.UNKNOWN]:
        raise in_doubt(
            name, decision, unknown, "they have ended, and neither their coordinator nor the output can tell how"
        )
    return [handles[i] for i, fate in ended.items() if fate is Fate.ABORTED]


def open_ones(handles: Sequence[PreparedTransaction], control: Admin) -> frozenset[str]:
    """The ids of those that are still to be ended, which come first: if the budget ends before the last one, the next
    start must not spend it on what this one has committed. None when their coordinators do not say so at once.
    """
    try:
        control.renew(_ORDER_BUDGET_S)
        return frozenset(d.transactional_id for d in open_of(handles, control))
    except ExactlyOnceError:
        return frozenset()


def sweep(
    sink_id: str,
    control: Admin,
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
        outcomes = end_all(control, [d.end for d in found], False, version)
        aborted += [d for d in found if outcomes[d.transactional_id] is Outcome.DONE]
        if any(o is Outcome.DENIED for o in outcomes.values()):
            raise NotAuthorized(
                f"this principal may not abort open transactions of sink {sink_id!r}",
                f"Grant WRITE and DESCRIBE on the transactional ids that begin with {namespace(sink_id)!r}",
            )
    log.warning("sink %s: transactions are still open after %g s of aborting", sink_id, SWEEP_BUDGET_S)
    return aborted


def open_of(handles: Sequence[PreparedTransaction], control: Admin) -> list[Description]:
    """Those of the very transactions in ``handles`` that are open, as their coordinators describe them."""
    mine = {h.transactional_id: h for h in handles}
    return [
        d
        for i, d in describe(control, mine).items()
        if (d.state, d.producer_id, d.producer_epoch) == ("Ongoing", mine[i].producer_id, mine[i].epoch)
    ]


def open_transactions(sink_id: str, control: Admin, mine: Callable[[PartId], bool]) -> list[Description]:
    """The open transactions of the sink whose id satisfies ``mine``, as their coordinators describe them."""
    listed = [x.transactional_id for x in list_transactions(control, namespace(sink_id), OPEN)]
    wanted = [i for i in listed if (p := parse_part_id(i)) is not None and p.sink_id == sink_id and mine(p)]
    return [d for d in describe(control, wanted).values() if d.state in OPEN]
