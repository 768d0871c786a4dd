"""The end of Kafka's transactions: the commit of those that are decided, the sweep of the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from exactly_once import failpoints
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError, Expired, NotAuthorized, Unfinished
from exactly_once.kafka.control import Control, Description, End
from exactly_once.kafka.evidence import Evidence, Fate
from exactly_once.protocol.loss import part_list
from exactly_once.protocol.names import PartId, namespace, parse_part_id
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import PreparedTransaction

log = logging.getLogger(__name__)

#: Transactions that keep coming back belong to tasks that still run; the next sweep finds them again.
SWEEP_BUDGET_S = 10.0

#: States in which a transaction holds back read_committed readers until somebody acts.
OPEN = ("Ongoing",)

#: For putting the transactions of a recovery in order: most of the budget is for ending them.
_ORDER_BUDGET_S = 5.0

#: For an id that is initialised in order to fence its producer: no transaction ever begins with it.
_FENCE_TIMEOUT_MS = 10_000

#: The state of an id that a producer has initialised without having begun a transaction.
IDLE = ("Empty",)


def commit_transactions(
    sink_id: str, handles: Sequence[PreparedTransaction], control: Evidence, budget_s: float, recovering: bool = False
) -> list[PreparedTransaction]:
    """Commit decided transactions: EndTxn for all at once, and evidence where the answer tells nothing.

    Parameters
    ----------
    recovering : bool
        An earlier driver decided them, and may have committed some.

    Returns
    -------
    list of PreparedTransaction
        Those that are proven to be aborted.

    Raises
    ------
    NotAuthorized
    Unfinished
        When ``budget_s`` seconds were not enough.
    Expired
        When no one can tell how a transaction ended.
    """
    by_id = {h.transactional_id: h for h in handles}
    first = open_ones(handles, control) if recovering else frozenset()
    control.renew(budget_s)
    outcomes = _end(sorted(handles, key=lambda h: h.transactional_id not in first), control)
    by: dict[Outcome, list[PreparedTransaction]] = {}
    for transactional_id, outcome in outcomes.items():
        by.setdefault(outcome, []).append(by_id[transactional_id])
    if denied := by.get(Outcome.DENIED):
        raise NotAuthorized(
            f"this principal may not end {denied[0].transactional_id}",
            f"Grant WRITE on the transactional ids that begin with {namespace(sink_id)!r}, and start again",
        )
    fates = control.fates(by.get(Outcome.LOST, []) + by.get(Outcome.UNKNOWN, []))
    waiting = by.get(Outcome.RETRY, []) + [by_id[i] for i, fate in fates.items() if fate is Fate.OPEN]
    if waiting:
        raise Unfinished(
            f"{len(waiting)} of {len(by_id)} transactions were not proven committed within {budget_s:g} s, "
            f"{waiting[0].transactional_id} among them (the brokers did not answer, or have yet to write the end "
            "markers)",
            "Start the stream (or the recovery) again when the brokers answer, before the transactions time out",
        )
    if unknown := [by_id[i] for i, fate in fates.items() if fate is Fate.UNKNOWN]:
        raise Expired(
            f"{len(unknown)} of its parts are in doubt: they have ended, and neither their coordinator nor the output "
            f"can tell how: {part_list(unknown)}",
            "Find out whether the output holds the rows of these parts, and write the missing rows",
        )
    return [by_id[i] for i, fate in fates.items() if fate is Fate.ABORTED]


def _end(handles: Sequence[PreparedTransaction], control: Control) -> dict[str, Outcome]:
    """The answers to EndTxn (commit), by transactional id: each with the version of its first try."""
    outcomes: dict[str, Outcome] = {}
    if failpoints.armed("some-ended") and len(handles) > 1:  # only a test needs a moment at which some are ended
        outcomes |= control.end_all([End.of(handles[0])], True, _version(handles[0], control))
        failpoints.reach("some-ended")
        handles = handles[1:]
    for version in sorted({_version(h, control) for h in handles}):
        ends = [End.of(h) for h in handles if _version(h, control) == version]
        outcomes |= control.end_all(ends, True, version)
    return outcomes


def _version(handle: PreparedTransaction, control: Control) -> int:
    return handle.end_txn_version or control.end_txn_version()


def open_ones(handles: Sequence[PreparedTransaction], control: Control) -> frozenset[str]:
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
    control: Control,
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
        outcomes = control.end_all([d.end for d in found], False, control.end_txn_version())
        aborted += [d for d in found if outcomes[d.transactional_id] is Outcome.DONE]
        if any(o is Outcome.DENIED for o in outcomes.values()):
            raise NotAuthorized(
                f"this principal may not abort open transactions of sink {sink_id!r}",
                f"Grant WRITE and DESCRIBE on the transactional ids that begin with {namespace(sink_id)!r}",
            )
    log.warning("sink %s: transactions are still open after %g s of aborting", sink_id, SWEEP_BUDGET_S)
    return aborted


def fence_idle(sink_id: str, control: Control, mine: Callable[[PartId], bool], spare: frozenset[str]) -> None:
    """Keep tasks that have initialised an id which satisfies ``mine``, and have not begun, from beginning; save the
    ids in ``spare``.
    """
    for listed in control.list_transactions(namespace(sink_id), IDLE):
        part = parse_part_id(listed.transactional_id)
        if part is not None and mine(part) and listed.transactional_id not in spare:
            control.fence(listed.transactional_id, _FENCE_TIMEOUT_MS)


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
