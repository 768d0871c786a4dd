"""The check for late tasks, by the commit log: no task may leave a transaction that no one ends.

Spark's tasks can outlive the execution that they belong to: a killed task's Python process lives on for two seconds, a
second attempt of a task may still run when the batch is decided. What such a task opens after the last sweep would hold
back readers until the next start or the transaction's timeout. So a task asks for the high watermark of the commit log
right before it begins, and again when it has prepared and its transaction is surely known to the coordinator; beyond
``log_end`` of its ticket it reads the log and judges by :func:`too_late`.

That leaves no gap for a task that comes to its end. Whoever ends an execution (a claim, an abort, a decision) writes a
record first, and lists and sweeps open transactions after that. A transaction that was opened before the listing is in
it and is swept; the task of one that was opened after it asks after the record was written, sees it, and aborts the
transaction itself. A task that is killed between its two questions cannot do that. But it has initialised its id
before the first question, so when the record came after that question, the coordinator knows the id before the listing:
an abort also initialises the ids that it finds so, and what was initialised before can begin nothing
(:mod:`exactly_once.coordinator.abort`).

All of this needs somebody who writes. Where Spark's own call of ``abort`` does not come through, the driver aborts when
the query has ended (:meth:`exactly_once.coordinator.micro_batch.Coordinator.close`). When the whole driver dies, what
is open waits for the next start, a recovery, or its timeout.
"""

from __future__ import annotations

from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError, Fenced, PrepareFailed
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import commit_log_topic
from exactly_once.protocol.ticket import Ticket

#: Budget for reading the log, which few tasks ever have to.
READ_BUDGET_S = 10.0


class LateCheck:
    """The commit log's word on one task."""

    def __init__(self, connection: Connection, sink_id: str, ticket: Ticket):
        self._connection = connection
        self._sink_id = sink_id
        self._ticket = ticket
        self.topic = commit_log_topic(sink_id)

    def judge(self, high: int) -> None:
        """Go on when the log, which ends at ``high``, says nothing against this task. Raise Fenced or PrepareFailed
        when it is too late, CommitLogBlocked when somebody else's open transaction hides whether it is.
        """
        if high <= self._ticket.log_end:
            return
        state = CommitLog(self._connection, self._sink_id).read(Deadline(READ_BUDGET_S), whole=True)
        if (error := too_late(self._sink_id, self._ticket, state)) is not None:
            raise error


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
