"""Kafka's share of invariant 3: right before the decision, every transaction of the batch is open, is the one that was
prepared, has its records and has time to spare.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from exactly_once.deadline import now_ms
from exactly_once.errors import ExactlyOnceError, Expiring
from exactly_once.kafka.control import Description
from exactly_once.kafka.evidence import Beginnings, Evidence, with_places
from exactly_once.participant import Proposal
from exactly_once.participants.kafka_checks import check_topics
from exactly_once.protocol.records import Decision, PreparedPart, PreparedTransaction, in_order
from exactly_once.protocol.too_long import SPARE, limit_ms, too_long_error

log = logging.getLogger(__name__)

#: For asking the coordinators. Two elections of a coordinator fit.
ALIVE_BUDGET_S = 30.0

#: For evidence that is nearly never needed; the transactions' time runs meanwhile.
PLACES_BUDGET_S = 5.0

#: At this part of the timeout a warning says that batches are getting too long for it.
WARN = 0.5

#: A decision keeps the ids of this many topics, those written last: more than one batch names, and with the longest
#: names a third of a megabyte. A topic that was made again after so many others were written is not recognised.
KEPT_TOPIC_IDS = 1_000


def confirm(proposal: Proposal, control: Evidence, adopts: Callable[[str], bool]) -> tuple[Decision, str]:
    """Make sure that the decision can be made, and add what the brokers know: when the batch began, its topics and
    their ids, where its transactions begin.

    Parameters
    ----------
    adopts
        Whether the user adopts the recreated topic with this id.

    Returns
    -------
    (Decision, str)
        The decision, and why some leaders could not say where transactions begin; "" when all could.

    Raises
    ------
    Expiring, BatchTooLong, TopicRecreated, BrokerUnreachable, NotAuthorized
    """
    handles = proposal.decision.transactions
    described = control.renew(ALIVE_BUDGET_S).describe(h.transactional_id for h in handles)
    _check_alive(proposal, described, control)
    topics = sorted({*proposal.decision.topics, *(t for h in handles for t in h.topics)})
    ids = check_topics(control, proposal.last, topics, adopts)
    found = control.renew(PLACES_BUDGET_S).beginnings(described.values())
    _check_places(handles, found)
    decision = replace(
        proposal.decision,
        handles=_placed(proposal.decision, found),
        began_ms=min((d.started_ms for d in described.values()), default=0),
        topics=tuple(topics),
        topic_ids=kept_topic_ids(proposal.last.topic_ids if proposal.last else {}, ids),
    )
    return decision, found.unasked


def _check_alive(proposal: Proposal, described: Mapping[str, Description], control: Evidence) -> None:
    """By the coordinators: every transaction is open, is the one that was prepared, and has time to spare."""
    broker_now = time.time() * 1000 + proposal.clock_ahead_ms
    oldest = 0.0
    for h in proposal.decision.transactions:
        d = described[h.transactional_id]
        used = (broker_now - d.started_ms) / max(1, d.timeout_ms)
        if not _is_open(h, d) or used > 1 - SPARE:
            raise _expiring(proposal, h, d, broker_now, control)
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
    proposal: Proposal, h: PreparedTransaction, d: Description, broker_now: float, control: Evidence
) -> ExactlyOnceError:
    """The error of a prepared transaction that is too old to be decided, or gone."""
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
                "Start the stream (or the write) again; if the error repeats, find out which operator or "
                "application ends transactions with this id",
            )
        why = f"{why}, {took_ms / 1000:.1f} s after the batch was planned"
    longest = control.renew(PLACES_BUDGET_S).broker_config().get("transaction.max.timeout.ms")
    return too_long_error(
        proposal.sink_id,
        proposal.checkpoint,
        proposal.batch,
        why,
        took_ms,
        proposal.timeout_ms,
        proposal.too_long,
        int(longest) if longest else None,
    )


def _check_places(handles: Iterable[PreparedTransaction], found: Beginnings) -> None:
    """By the partitions' leaders: the records are there. A leader that cannot be asked says nothing."""
    for h in handles:
        if where := found.missing.get(h.transactional_id):
            raise Expiring(
                f"the transaction {h.transactional_id} of part {h.part} is open, but its records are gone: the "
                f"leader of {where[0]}-{where[1]} has no open transaction of producer {h.producer_id} at epoch "
                f"{h.epoch}",
                f"Find out whether topic {where[0]} was deleted and recreated, or whether a broker without the "
                "records became leader (unclean.leader.election.enable); then start again",
            )


def _placed(decision: Decision, found: Beginnings) -> tuple[PreparedTransaction | PreparedPart, ...]:
    others = (h for h in decision.handles if isinstance(h, PreparedPart))
    return in_order([*with_places(decision.transactions, found.places), *others])


def kept_topic_ids(known: Mapping[str, str], written: Mapping[str, str]) -> dict[str, str]:
    """The topic ids for the next decision: those just ``written``, and those written last before, as many as
    :data:`KEPT_TOPIC_IDS` in all.
    """
    others = [item for item in known.items() if item[0] not in written]
    room = max(0, KEPT_TOPIC_IDS - len(written))
    return {**dict(others[len(others) - min(room, len(others)) :]), **written}
