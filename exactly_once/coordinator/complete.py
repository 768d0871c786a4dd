"""Phase 2: commit decided parts, participant by participant."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

from exactly_once import failpoints
from exactly_once.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ExactlyOnceError,
    Expired,
    ParticipantMissing,
    Unfinished,
)
from exactly_once.kafka.admin import Admin
from exactly_once.participant import Handle, Participant
from exactly_once.participants.kafka_transactions import commit_transactions
from exactly_once.protocol.loss import part_list
from exactly_once.protocol.records import KAFKA, Decision, PreparedPart

log = logging.getLogger(__name__)

#: What is safe when only the mark is missing that says so.
COMMITTED = "The batch is committed; the next start marks it so and drains its rows"


def complete(
    sink_id: str,
    decision: Decision,
    control: Admin,
    budget_s: float,
    others: Mapping[str, Participant[PreparedPart]] = MappingProxyType({}),
    recovering: bool = False,
) -> list[Handle]:
    """Commit every handle of a decision, participant by participant, until each outcome is proven. Safe to repeat.

    When one participant fails, the others are committed anyway.

    Parameters
    ----------
    others : mapping
        The participants other than Kafka, by name.
    recovering : bool
        The decision is an earlier driver's.

    Returns
    -------
    list of Handle
        The parts that are proven to be lost: rolled back before their commit, and to be written again.

    Raises
    ------
    Expired
        When no one can tell how a part ended; everything else is committed first.
    Unfinished
        When some outcome could not be proven within ``budget_s`` seconds.
    ParticipantMissing
    """
    name = decision.title(sink_id)
    lost: list[Handle] = []
    failures: list[ExactlyOnceError] = []
    for participant, handles in decision.by_participant.items():
        failpoints.reach(f"commit-{participant}")
        try:
            if participant == KAFKA:
                lost += commit_transactions(sink_id, name, decision, control, budget_s, recovering)
            elif participant in others:
                mine = [h for h in handles if isinstance(h, PreparedPart)]
                output = others[participant]
                lost += output.recover_and_commit(mine) if recovering else output.commit(mine)
            else:
                raise ParticipantMissing(
                    f"{name} is decided, but this process has no participant {participant!r}",
                    f"Start the stream with a participant named {participant!r}, which then commits its parts",
                )
        except (BrokerUnreachable, BrokerRefused) as e:
            failures.append(
                Unfinished(f"{name} is decided, but not all of its parts are proven committed: {e.what}", e.way_out)
            )
        except ExactlyOnceError as e:
            failures.append(decided_error(e))
    for failure in sorted(failures, key=lambda e: isinstance(e, Expired)):
        if isinstance(failure, Expired):
            # whoever accepts the one loss accepts the other; a participant does not know the word for it
            more = f"; and {len(lost)} more were rolled back: {part_list(lost)}" if lost else ""
            word = f"sink.accept.lost={decision.word}"
            then = "" if word in failure.way_out else f"; then set the option {word} for one start"
            raise Expired(f"{failure.what}{more}", f"{failure.way_out}{then}", failure.safe)
        raise failure  # what may still be committed comes first: only when nothing else is left may a loss be accepted
    failpoints.reach("all-ended")
    return lost


def decided_error(e: ExactlyOnceError, safe: str = Unfinished.default_safe) -> ExactlyOnceError:
    """``e`` as an error of a batch that is decided: it may not say that nothing was written."""
    return type(e)(e.what, e.way_out, safe) if e.safe == ExactlyOnceError.default_safe else e
