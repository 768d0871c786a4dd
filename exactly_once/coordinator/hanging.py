"""A claim ends the hanging transactions of older claims: readers wait for them, and no coordinator ends them."""

from __future__ import annotations

import logging

from exactly_once.coordinator.session import Session
from exactly_once.errors import ExactlyOnceError
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import SLOTS, PartId, older_slots
from exactly_once.protocol.records import COMMITTED
from exactly_once.txn.coordinators import Description, end_txn_version
from exactly_once.txn.hanging import END_BUDGET_S, end_left_open, was_aborted
from exactly_once.txn.leaders import Hanging

log = logging.getLogger(__name__)


def end_hanging(session: Session, token: int, state: LogState) -> list[str]:
    """End what hangs of claims before ``token``, on the topics that the log and the options name. Never raises: readers
    waited before, and the next claim asks again.

    It touches the ids that a sweep of this claim may touch, save those that an open decision names.

    Returns
    -------
    list of str
        The transactional ids of what was aborted.
    """
    topics = session.kafka.topics | {topic for d in state.decisions for topic in d.topics}
    spare = {h.name for d in state.open_decisions for h in d.transactions}
    slots = older_slots(token, SLOTS)

    def mine(transactional_id: str) -> bool:
        part = PartId.parse(transactional_id)
        own = part is not None and part.sink_id == session.sink_id and part.slot in slots
        return own and transactional_id not in spare

    try:
        admin = session.kafka.admin(END_BUDGET_S)
        hung = end_left_open(admin, topics, mine, lambda h, d: to_commit(h, d, end_txn_version(admin), state))
    except ExactlyOnceError as e:
        _warn(session.sink_id, e.what)
        return []
    if hung.ended:
        names = ", ".join(h.name for h in hung.ended)
        log.warning("sink %s: ended hanging transactions that kept readers waiting: %s", session.sink_id, names)
    if hung.left or hung.why:
        left = ", ".join(h.name for h in hung.left)
        _warn(session.sink_id, "; ".join(text for text in (hung.why, left and f"left: {left}") if text))
    named = [h for h in hung.ended if state.naming(h.producer_id, h.producer_epoch)]  # it was committed
    return sorted({str(h.transactional_id) for h in hung.ended if h not in named})


def to_commit(h: Hanging, d: Description, version: int, state: LogState) -> bool | None:
    """Return whether a hanging transaction of the sink is to be committed (True) or aborted; None when that is not
    known, or for a person to say.

    Parameters
    ----------
    d : Description
        Its coordinator's view of its id.
    version : int
        Of EndTxn on this cluster.
    state : LogState
        What the commit log says.
    """
    if named := state.naming(h.producer_id, h.producer_epoch):
        mark = state.marks.get((named[0].query_id, named[0].batch_id))
        return True if mark is not None and mark.how == COMMITTED else None
    undecided = was_aborted(h, d, version) or state.would_name(h.producer_id, h.producer_epoch, h.last_timestamp_ms)
    return False if undecided else None


def _warn(sink_id: str, why: str) -> None:
    log.warning(
        "sink %s: EO-WARN-HANGING hanging transactions of this sink may keep readers waiting (%s): run exactly-once "
        "transactions list --hanging --sink %s",
        sink_id,
        why,
        sink_id,
    )
