"""Phase 2: commit decided parts, participant by participant."""

from __future__ import annotations

from exactly_once import failpoints
from exactly_once.commitlog.progress import ProgressRecord, progress_of
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline
from exactly_once.errors import (
    BrokerRefused,
    BrokerUnreachable,
    ExactlyOnceError,
    Expired,
    ParticipantMissing,
    Unfinished,
)
from exactly_once.participant import Handle
from exactly_once.protocol.loss import origin, part_list
from exactly_once.protocol.records import Claim, Decision

#: The safe statement when only the completed mark is missing.
COMMITTED = "The batch is committed; the next start records that, and writes none of its rows again"


def complete(session: Session, decision: Decision, recovering: bool = False) -> list[Handle]:
    """Commit every handle of a decision, participant by participant, until each outcome is proven. Safe to repeat.
    Return the parts that are proven to be lost: rolled back before their commit, and to be written again.

    When one participant fails, the others are committed anyway.

    Parameters
    ----------
    recovering : bool
        The decision is an earlier driver's.

    Raises
    ------
    Expired
        When no one can tell how a part ended; everything else is committed first.
    Unfinished
        When some outcome could not be proven in time.
    ParticipantMissing
    """
    lost: list[Handle] = []
    failures: list[ExactlyOnceError] = []
    for name in decision.by_participant:
        failpoints.reach(f"commit-{name}")
        try:
            lost += _commit(session, decision, name, recovering)
        except ExactlyOnceError as e:
            failures.append(_of_decision(e, decision.title(session.sink_id)))
    # parts that may still be committed come first: a loss may be accepted only when nothing else is left
    for failure in sorted(failures, key=lambda e: isinstance(e, Expired)):
        raise _with_way_past(failure, decision, lost) if isinstance(failure, Expired) else failure
    failpoints.reach("all-ended")
    return lost


def progress_to_tell(
    session: Session, decision: Decision, owner: Claim | None, deadline: Deadline
) -> ProgressRecord | None:
    """Return the progress record to publish with the completed mark of ``decision``; None when the ``owner`` has no
    progress topic. Errors of the brokers are re-raised; they say that the batch is committed.
    """
    if owner is None or not owner.progress:
        return None
    try:
        return progress_of(session.kafka.admin(max(1.0, deadline.left)), owner.progress, decision)
    except ExactlyOnceError as e:
        raise decided_error(e, COMMITTED) from e


def _commit(session: Session, decision: Decision, name: str, recovering: bool) -> list[Handle]:
    """Commit one participant's parts; return those that are lost."""
    participant = session.participants.get(name)
    if participant is None:
        raise ParticipantMissing(
            f"this process has no participant {name!r}",
            f"Start the stream with a participant named {name!r}, which then commits its parts",
        )
    mine = decision.parts_of(name)
    return list(participant.recover_and_commit(mine) if recovering else participant.commit(mine))


def _of_decision(e: ExactlyOnceError, title: str) -> ExactlyOnceError:
    """Turn a participant's error into the error of the decided batch."""
    kind = Unfinished if isinstance(e, BrokerUnreachable | BrokerRefused) else type(e)
    decided = kind(f"{title} is decided, but not all of its parts are proven committed: {e.what}", e.way_out, e.safe)
    return decided_error(decided)


def _with_way_past(e: Expired, decision: Decision, lost: list[Handle]) -> Expired:
    """Add the option that continues past the decision: whoever accepts the parts in doubt accepts the lost ones too."""
    more = f"; and {len(lost)} more were rolled back: {part_list(lost)}" if lost else ""
    way_past = (
        f"The rows come from {origin(decision)}. Then set the option sink.accept.lost={decision.consent} for one start"
    )
    return Expired(f"{e.what}{more}", f"{e.way_out}. {way_past}", e.safe)


def decided_error(e: ExactlyOnceError, safe: str = Unfinished.default_safe) -> ExactlyOnceError:
    """Turn ``e`` into the error of a decided batch, which must not say that nothing was written."""
    return type(e)(e.what, e.way_out, safe) if e.safe == ExactlyOnceError.default_safe else e
