"""The plan for a micro-batch, given the decisions so far: write it, drain it, or refuse it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from exactly_once.errors import AlreadyDecided, CheckpointRewound
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.named_sources import NamedSources
from exactly_once.protocol.names import offsets_group
from exactly_once.protocol.records import Decision


class Plan(Enum):
    """The plan of a batch: what its tasks do with their rows."""

    WRITE = "write"
    DRAIN = "drain"
    REPLAY = "replay"
    """The batch is decided, and some of its parts are lost: the tasks write these and drain the others."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A micro-batch as Spark's checkpoint names it.

    The query, the batch id, the digest of ``offsets/<batch id>``, the lines of its Kafka sources, and its whole text
    ("" when that is too long for a decision to keep); and what it reads of named sources, None where Spark counts them.
    """

    query_id: str
    batch_id: int
    offsets_digest: str
    sources: tuple[str, ...] = ()
    offsets: str = ""
    named: NamedSources | None = None


def history_consent(batch: Batch) -> str:
    """Return the value of ``sink.adopt`` that continues a checkpoint at ``batch``, and at no later one."""
    return f"{batch.query_id}/{batch.batch_id}"


def plan_batch(sink_id: str, batch: Batch, last: Decision | None, adopt: bool) -> Plan:
    """Decide what happens to ``batch``.

    Parameters
    ----------
    last : Decision or None
        The last decision of the same query, None when there is none.
    adopt : bool
        Whether the user consents that a sink without history continues a checkpoint with history.

    Raises
    ------
    CheckpointRewound
        When writing could duplicate, or draining could lose.
    """
    if last is None:
        if batch.batch_id > 0 and not adopt:
            raise CheckpointRewound(
                f"the checkpoint is at batch {batch.batch_id}, but sink {sink_id!r} has no decision of query "
                f"{batch.query_id}: the commit log was deleted, or the checkpoint comes from another sink",
                "If this query never wrote with this sink id (a switch from another sink), set the option "
                f"sink.adopt={history_consent(batch)} for one start, which writes the batch. If the commit log was "
                f"lost, first make sure that the output does not already hold batch {batch.batch_id}; then set "
                f"sink.adopt={history_consent(batch)} for one start",
            )
        return Plan.WRITE
    if batch.batch_id > last.batch_id:
        return Plan.WRITE
    if batch.batch_id == last.batch_id:
        if batch.offsets_digest == last.offsets_digest:
            return Plan.DRAIN
        raise CheckpointRewound(
            f"batch {batch.batch_id} of query {batch.query_id} was decided with source offsets that differ from "
            f"those in offsets/{batch.batch_id} now: the checkpoint was restored or edited",
            f"Put back the checkpoint that belongs to this sink (if only offsets/{batch.batch_id} was deleted, run "
            f"exactly-once checkpoint repair LOCATION --sink {sink_id}), or start with a new checkpoint and a new "
            "sink.id",
            safe=f"The output holds batch {batch.batch_id} as it was first decided; nothing was written again",
        )
    raise CheckpointRewound(
        f"the checkpoint is at batch {batch.batch_id}, but batch {last.batch_id} of query {batch.query_id} is already "
        "decided: the checkpoint was rewound or restored from a copy",
        "Put back the newest checkpoint; if only its newest files are gone, exactly-once checkpoint repair LOCATION "
        f"--sink {sink_id} says what it can rebuild. Or, to write old input again on purpose, start with a new "
        "checkpoint and a new sink.id. If no driver of this sink can have made that decision, run exactly-once log "
        f"{sink_id} to see the record, its writer, and how to undo it",
        safe="The output is correct up to the decided batch; nothing was written again",
    )


def forgotten_by(published: int | None, last: Decision | None) -> bool:
    """Return whether the log has lost decisions: the consumer group got the offsets of the batch ``published`` in the
    transaction of its decision, and ``last`` is the newest decision in the log.
    """
    return published is not None and (last is None or last.batch_id < published)


def check_published(
    sink_id: str, batch: Batch, last: Decision | None, published: int | None, adopts: Callable[[], bool]
) -> None:
    """Refuse a batch whose decision only the sink's consumer group still knows.

    Parameters
    ----------
    published : int or None
        The last batch of this query whose offsets the group has; None when it names none.
    adopts
        Whether the user consents that ``batch`` is written all the same; asked only when that is needed.

    Raises
    ------
    CheckpointRewound
        When the batch was decided: writing it could duplicate.
    """
    if published is None or batch.batch_id > published or not forgotten_by(published, last) or adopts():
        return  # a batch after the published one is undecided, whatever the log has lost
    group = offsets_group(sink_id)
    newest = "has no decision of this query" if last is None else f"ends with the decision of batch {last.batch_id}"
    raise CheckpointRewound(
        f"batch {published} of query {batch.query_id} was decided, as the consumer group {group} says, but the commit "
        f"log {newest}: its newest records are lost (a broker without them became leader, or it was restored)",
        "Commit what is still open of that batch (exactly-once transactions list, exactly-once transactions "
        f"commit), and start with a new checkpoint at the offsets of the group {group}. Only if its transactions "
        f"were rolled back, so that nothing of it is in the output, set the option sink.adopt={history_consent(batch)} "
        "for one start, which then writes the batch",
    )


def check_undecided(sink_id: str, proposed: Decision, state: LogState, amended: Decision | None = None) -> None:
    """Make sure that ``proposed`` may be written to a log of this state: invariant 2, by the log itself.

    The plan was made perhaps minutes ago, from the log as it was then.

    Parameters
    ----------
    amended : Decision or None
        The decision of the same batch whose lost parts ``proposed`` replaces.

    Raises
    ------
    AlreadyDecided
        When the batch, or a later one of its query, is decided; or when ``amended`` is no longer the last decision.
    """
    last = state.last_decision(proposed.query_id)
    if last is None or last.batch_id < proposed.batch_id:
        return
    mark = state.marks.get((last.query_id, last.batch_id))
    if amended is not None and last.batch_id == proposed.batch_id and last.handles == amended.handles and mark is None:
        return
    raise AlreadyDecided(
        f"{last.title(sink_id)} is already decided, under claim {last.token}"
        + (f", so batch {proposed.batch_id} may not be decided" if last.batch_id > proposed.batch_id else ""),
        "Run the write again: it finds the decision and writes nothing"
        if last.write_id
        else "Start the stream again: the next start finds the decision and drains the batch",
    )


def owned_sink(sink_id: str, operator: str) -> str:
    """Name a sink that belongs to somebody else, for an error."""
    return f"sink {sink_id!r}{f' (last operated by {operator})' if operator else ''}"


def of_checkpoint(checkpoint: str) -> str:
    """Return the checkpoint of a sink's query, in words that follow the query; "" when the claim does not name it."""
    return f" (checkpoint {checkpoint})" if checkpoint else ""
