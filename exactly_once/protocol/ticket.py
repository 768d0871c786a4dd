"""The ticket that a driver gives to the tasks of one execution of a batch, and the test for a task that is too late."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from exactly_once.errors import ExactlyOnceError, Fenced, PrepareFailed
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.planning import Batch, Plan

#: Participant -> part (as text) -> [records, digest] of decided parts that were lost and are to be written again.
Replay = dict[str, dict[str, list[Any]]]


@dataclass(frozen=True, slots=True)
class Ticket:
    """The instructions for the tasks of one execution of one batch; travel to them inside the pickled writer.

    Attributes
    ----------
    batch : Batch
    plan : Plan
    token : int
        The claim of the driver.
    execution : str
        This run of the batch's tasks.
    timeout_ms : int
        transaction.timeout.ms of every part.
    replay : Replay
        What is to be written again, and nothing else of the batch.
    replayed : str
        The decision whose parts these are, by its word for ``sink.accept.lost``.
    incarnation : str
        Of the commit log, in the names of parts; "" when there are no outputs other than Kafka.
    log_end : int
        The high watermark of the commit log when the tasks were sent out: beyond it stands what they do not know.
    too_long : int
        How many executions of this very batch, one after the other, were too long before this one.
    """

    batch: Batch
    plan: Plan
    token: int
    execution: str
    timeout_ms: int
    replay: Replay = field(default_factory=dict)
    replayed: str = ""
    incarnation: str = ""
    log_end: int = 0
    too_long: int = 0


def too_late(sink_id: str, ticket: Ticket, state: LogState) -> ExactlyOnceError | None:
    """What the commit log says against a task that runs with ``ticket``; None when the task may go on.

    Its execution is over when a later claim exists, when its driver has marked the execution as aborted, or when its
    batch is decided under its own claim: then the results of all tasks that count had been with the driver before. The
    decision that a replay amends stands under an older claim. Everything else in the log is not the task's affair.
    """
    owner, aborted = state.owner, state.aborted
    name = f"batch {ticket.batch.batch_id} of sink {sink_id!r}"
    if owner is not None and owner.token > ticket.token:
        return Fenced(
            f"this task of {name} runs for claim {ticket.token}, but claim {owner.token} ({owner.purpose} on "
            f"{owner.host}, process {owner.pid}) has taken the sink",
            "If the newer owner is the right one, stop this driver; otherwise start the stream here again to take the "
            "sink back",
        )
    if aborted is not None and aborted.execution == ticket.execution:
        return PrepareFailed(
            f"this task is too late: its driver has aborted this execution of {name}",
            "No action is needed: the task has ended its own transaction, and the next start writes the batch",
        )
    if any(
        d.token >= ticket.token and (d.query_id, d.batch_id) == (ticket.batch.query_id, ticket.batch.batch_id)
        for d in state.decisions
    ):
        return PrepareFailed(
            f"this task is too late: {name} is decided with the results of other attempts",
            "No action is needed: the task has ended its own transaction, and the output holds its rows once",
            safe="The batch is decided; the records of this attempt are not visible to a read_committed reader",
        )
    return None
