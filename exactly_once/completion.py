"""Where a transaction is committed: phase 2, and the sweep of what is not to be committed."""

from __future__ import annotations

import logging
from collections.abc import Callable

from exactly_once import failpoints
from exactly_once.deadline import Deadline
from exactly_once.errors import Expired, NotAuthorized, Unfinished
from exactly_once.kafka.control import Control, Description, End
from exactly_once.protocol.names import PartId, namespace, parse_part_id
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import Decision, PreparedTransaction

log = logging.getLogger(__name__)

#: Transactions that keep coming back belong to tasks that still run; the next sweep finds them again.
SWEEP_BUDGET_S = 10.0

#: States in which a transaction holds back read_committed readers until somebody acts.
OPEN = ("Ongoing",)


def complete(sink_id: str, decision: Decision, control: Control, budget_s: float) -> None:
    """Commit every handle of a decision, in parallel, until each outcome is proven. Safe to repeat.

    Raises
    ------
    Expired
        When a transaction was ended otherwise; all others are committed first.
    Unfinished
        When some outcome could not be proven within ``budget_s`` seconds.
    """
    handles = {h.transactional_id: h for h in decision.handles}
    ends = [End(h.transactional_id, h.producer_id, h.epoch) for h in decision.handles]
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
    name = f"batch {decision.batch_id} of sink {sink_id!r}"
    # what may still be committed comes first: only when nothing else is left may somebody accept a loss
    if denied := by.get(Outcome.DENIED):
        raise NotAuthorized(
            f"{name} is decided, but this principal may not end {denied[0].transactional_id}",
            f"Grant WRITE on the transactional ids that begin with {namespace(sink_id)!r} and start again",
            safe=Unfinished.default_safe,
        )
    if waiting := by.get(Outcome.RETRY):
        raise Unfinished(
            f"{name}: {len(waiting)} of {len(handles)} transactions gave no answer within {budget_s:g} s, "
            f"{waiting[0].transactional_id} among them",
            "Start the stream (or the recovery) again when the brokers answer, before the transaction timeout",
        )
    if lost := by.get(Outcome.LOST, []) + by.get(Outcome.UNKNOWN, []):
        raise _expired(name, decision, lost, by.get(Outcome.UNKNOWN, []))
    failpoints.reach("all-ended")


def _expired(
    name: str, decision: Decision, lost: list[PreparedTransaction], unknown: list[PreparedTransaction]
) -> Expired:
    parts = ", ".join(f"part {h.part} ({h.records} records, {h.transactional_id})" for h in lost[:5])
    more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
    doubt = f"; of {len(unknown)} of these the broker can no longer tell whether they were committed" if unknown else ""
    return Expired(
        f"{name} is decided, but {len(lost)} of its {len(decision.handles)} transactions were ended before their "
        f"commit, by their timeout or by an operator: {parts}{more}{doubt}",
        f"Their rows come from the input {_range(decision.batch_id)} of the checkpoint: write what is missing from "
        f"there, then set the option sink.accept.lost={decision.batch_id} for one start",
    )


def _range(batch_id: int) -> str:
    return f"between offsets/{batch_id - 1} and offsets/{batch_id}" if batch_id else "up to offsets/0"


def sweep(sink_id: str, control: Control, version: int, mine: Callable[[PartId], bool]) -> list[Description]:
    """Abort every open transaction of the sink whose id satisfies ``mine``; repeat until none is left or the budget is
    spent.

    Each abort names the very transaction that was seen, by producer id and epoch: it cannot hit a later one.

    Returns
    -------
    list of Description
        What was aborted.
    """
    aborted: list[Description] = []
    for _ in Deadline(SWEEP_BUDGET_S).tries():
        found = open_transactions(sink_id, control, mine)
        if not found:
            return aborted
        ends = [End(d.transactional_id, d.producer_id, d.producer_epoch) for d in found]
        outcomes = control.end_all(ends, False, version)
        aborted += [d for d in found if outcomes[d.transactional_id] is Outcome.DONE]
        if any(o is Outcome.DENIED for o in outcomes.values()):
            raise NotAuthorized(
                f"this principal may not abort open transactions of sink {sink_id!r}",
                f"Grant WRITE and DESCRIBE on the transactional ids that begin with {namespace(sink_id)!r}",
            )
    log.warning("sink %s: transactions are still open after %g s of aborting", sink_id, SWEEP_BUDGET_S)
    return aborted


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
