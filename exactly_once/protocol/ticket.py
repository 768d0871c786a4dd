"""The ticket that a driver gives to the tasks of an execution of a batch, the test for one that is too late, and their
results.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from exactly_once.errors import ExactlyOnceError, Fenced, PrepareFailed
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import PreparedPart, PreparedTransaction
from exactly_once.protocol.replay import Replay


@dataclass(frozen=True, slots=True)
class Ticket:
    """The instructions for the tasks of one execution of one batch. Each task gets them from Spark.

    Attributes
    ----------
    token : int
        The claim of the driver.
    execution : str
        This run of the batch's tasks.
    timeout_ms : int
        transaction.timeout.ms of every part.
    replay : Replay
        The parts to write again; the tasks keep nothing else of the batch.
    incarnation : str
        The commit log's, for the names of parts; "" without outputs other than Kafka.
    log_end : int
        The high watermark of the commit log when the tasks were sent out: they know no record from there on.
    too_long : int
        How many executions of this very batch in a row, before this one, were too long.
    """

    batch: Batch
    plan: Plan
    token: int
    execution: str
    timeout_ms: int
    replay: Replay = field(default_factory=dict)
    incarnation: str = ""
    log_end: int = 0
    too_long: int = 0


def too_late(sink_id: str, ticket: Ticket, state: LogState) -> ExactlyOnceError | None:
    """Return the error for a task with ``ticket`` that is too late according to the commit log; None when it is not.

    Its execution is over when a later claim exists, when its driver has marked the execution as aborted, or when its
    batch is decided under its own claim: the driver then already had the results of all tasks that count. The decision
    that a replay amends was written under an older claim. Nothing else in the log concerns the task.
    """
    owner, aborted = state.owner, state.aborted
    name = f"batch {ticket.batch.batch_id} of sink {sink_id!r}"
    if owner is not None and owner.token > ticket.token:
        return Fenced(
            f"this task of {name} runs for claim {ticket.token}, but {owner.title} has taken the sink",
            "If the newer owner is the right one, stop this driver; otherwise start the stream here again to take "
            f"the sink back. If nobody knows that owner, run exactly-once log {sink_id} to see who wrote the claim",
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


@dataclass(frozen=True, slots=True)
class Part:
    """The result of one task of an execution. A part without rows, or a drained one, has no ``handles``.

    ``refused`` is what was wrong with its first row that cannot be written, and the way out; () when all can be.
    """

    execution: str
    run_id: str
    part: int
    attempt: str
    plan: Plan
    handles: tuple[PreparedTransaction | PreparedPart, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def topics(self) -> set[str]:
        """The topics that its transactions wrote to."""
        return {t for h in self.handles if isinstance(h, PreparedTransaction) for t in h.topics}

    @property
    def dead_letters(self) -> int:
        """The number of its rows that are dead letters."""
        return sum(h.dead for h in self.handles if isinstance(h, PreparedTransaction))


def empty_part(ticket: Ticket) -> Part:
    """Make the single, empty part of a batch without tasks: the sink decides a batch without rows too."""
    return Part(ticket.execution, "", 0, "0.0", ticket.plan)
