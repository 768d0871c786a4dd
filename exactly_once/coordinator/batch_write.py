"""One batch write, named by the user: however many attempts it takes, the output holds its rows once.

``df.write.format("kafka_exactly_once").option("write.id", ...)``. Each attempt claims the sink again, so of two
concurrent attempts the later one continues; a decided write is drained; the commit log keeps the decision forever,
under the write id.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from exactly_once.coordinator.claim import claim_for_write
from exactly_once.coordinator.driver_state import DriverState, MemoryStore
from exactly_once.coordinator.micro_batch import Committer
from exactly_once.coordinator.session import Session
from exactly_once.deadline import now_ms
from exactly_once.errors import ProtocolViolation
from exactly_once.kafka.commit_log import read_log
from exactly_once.kafka.connection import Connection
from exactly_once.options import SinkOptions
from exactly_once.participants.kafka import CONTACT_BUDGET_S
from exactly_once.protocol.part import Part, empty_part
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import Decision
from exactly_once.protocol.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Write:
    """One try of a batch write: the state that its tasks and its commit share. ``state`` is None when the write was
    already proven committed: then the try claims nothing and fences no driver.
    """

    ticket: Ticket
    state: DriverState | None


def written(connection: Connection, sink_id: str, write_id: str, timeout_s: float = 10.0) -> Decision | None:
    """The decision of a batch write; None when there is no visible decision yet: then write the rows.

    None proves nothing: the decision may be in flight, or another writer's transaction on the log may hide it from
    observers. The write itself reads the log again, behind every other writer. A completed decision has totals in
    place of handles.

    A decided write may still have to be completed (see ``open_decisions`` of the log): the next write of the sink, or
    the recovery, does that.

    Raises
    ------
    BrokerUnreachable, CommitLogDamaged, NotAuthorized
    """
    return read_log(connection, sink_id, timeout_s).write(write_id)


def plan_write(options: SinkOptions) -> Write:
    """Claim the sink for this try, unless the write is done.

    Raises
    ------
    ExactlyOnceError
        Whatever has to be refused; nothing is written then.
    """
    execution = uuid.uuid4().hex
    log_state = read_log(options.connection, options.sink_id, CONTACT_BUDGET_S)
    done = log_state.write(options.write_id)
    if done is not None and done not in log_state.open_decisions:
        return Write(Ticket(Batch(done.query_id, 0, ""), Plan.DRAIN, done.token, execution, 0), None)
    state = claim_for_write(options)
    plan = Plan.WRITE if state.last_batch < 0 else Plan.REPLAY if state.replay else Plan.DRAIN
    batch = Batch(state.query_id, 0, "")
    ticket = Ticket(
        batch,
        plan,
        state.token,
        execution,
        state.timeout_ms,
        state.replay,
        log_end=state.log_end,
        too_long=state.too_long,
    )
    return Write(ticket, state.planned(execution, batch, now_ms(), {}))


def commit_write(options: SinkOptions, write: Write, parts: Sequence[Part | None]) -> Decision | None:
    """Decide and complete; None when the write was decided before.

    Raises
    ------
    Fenced, Expiring, BatchTooLong, Expired, Lost, Unfinished, ProtocolViolation
    """
    state = write.state
    if state is None:
        return None
    done = [p for p in parts if p is not None]
    if len(done) < len(parts) or any(p.execution != write.ticket.execution for p in done):
        raise ProtocolViolation(
            f"write {options.write_id!r}: Spark asked to commit results that do not come from the tasks of this write",
            "Run the write again; if the error repeats, report it with this message",
        )
    with Session.of(options) as session:
        return Committer(session, MemoryStore(state)).commit(done or [empty_part(write.ticket)], 0)


def abort_write(options: SinkOptions, write: Write, parts: Sequence[Part | None]) -> None:
    """Roll back what this try prepared, unless it is decided."""
    if write.state is None:
        return
    with Session.of(options) as session:
        Committer(session, MemoryStore(write.state)).abort(0, parts)
