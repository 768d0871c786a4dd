"""The owner of a hanging transaction, by the commit logs: pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from exactly_once.inspection.findings import Decided, sink_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import commit_log_topic
from exactly_once.txn.leaders import Hanging


@dataclass(frozen=True)
class Attributed:
    """A hanging transaction and its owner.

    ``owner`` is ``ours`` (its producer id belongs to a sink of this package), ``foreign`` (it belongs to another
    transactional id) or ``unknown`` (no coordinator knows the producer id). ``decided`` is set when a commit log wants
    exactly this transaction committed, and ``completed`` says how that log's mark ended the batch: ``committed``, or
    ``accepted`` when a person gave up parts of it; "" without the mark. ``told`` is False for one of ours when the log
    may have dropped its decision: it keeps the newest ones.
    """

    hanging: Hanging
    owner: str
    sink_id: str | None = None
    decided: Decided | None = None
    completed: str = ""
    told: bool = True


def attribute(hanging: Hanging, logs: Mapping[str, LogState]) -> Attributed:
    """Find the owner of a hanging transaction, by the coordinators' ids and the commit logs (by sink id)."""
    sink_id = sink_of(hanging.transactional_id) if hanging.transactional_id is not None else None
    for candidate, log in logs.items():
        if named := log.naming(hanging.producer_id, hanging.producer_epoch):
            mark = log.marks.get((named[0].query_id, named[0].batch_id))
            return Attributed(hanging, "ours", candidate, Decided(*named), mark.how if mark else "")
        if any(h.producer_id == hanging.producer_id for d in log.decisions for h in d.transactions):
            sink_id = candidate  # a producer id stays with its transactional id; another epoch is another transaction
    if sink_id is not None:
        own = logs.get(sink_id)
        mine = hanging.producer_id, hanging.producer_epoch, hanging.last_timestamp_ms
        told = hanging.topic == commit_log_topic(sink_id) or (own is not None and own.would_name(*mine))
        return Attributed(hanging, "ours", sink_id, told=told)
    return Attributed(hanging, "foreign" if hanging.transactional_id is not None else "unknown")
