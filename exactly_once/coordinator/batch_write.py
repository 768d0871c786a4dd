"""One batch write, named by the user: however many attempts it takes, the output holds its rows once.

``df.write.format("kafka_exactly_once").option("write.id", ...)``. Each attempt claims the sink again, so of two
concurrent attempts the later one continues; a decided write is drained; the commit log keeps the decision forever,
under the write id.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Sequence

from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator.claim import claim_for_write
from exactly_once.coordinator.micro_batch import Coordinator
from exactly_once.deadline import now_ms
from exactly_once.errors import ProtocolViolation
from exactly_once.participants.kafka.participant import CONTACT_BUDGET_S
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import Decision
from exactly_once.protocol.ticket import Part, Ticket, empty_part

log = logging.getLogger(__name__)


class WriteCoordinator(Coordinator):
    """The driver's side of one try of a batch write. A write that is proven committed claims nothing, and fences no
    driver.
    """

    writes_once = True

    def plan(self, check: Callable[[Batch], None] | None = None) -> Ticket:
        """Claim the sink for this try, unless the write is done. Raises what has to be refused; nothing is written
        then.
        """
        with self._session.trace.planning(f"write {self.options.write_id}"):
            self.ticket = self._plan(check)
        return self.ticket

    def _plan(self, check: Callable[[Batch], None] | None) -> Ticket:
        execution, options = uuid.uuid4().hex, self.options
        log_state = read_log(options.connection, options.sink_id, CONTACT_BUDGET_S)
        done = log_state.write(options.write_id)
        if done is not None and done not in log_state.open_decisions:
            log.warning(
                "sink %s: write %r is complete, with %d records, so this try writes nothing; rows that are not among "
                "them need another write.id",
                options.sink_id,
                options.write_id,
                done.records,
            )
            self._session.trace.say_of_batch(outcome="drained")
            return Ticket(Batch(done.query_id, 0, ""), Plan.DRAIN, done.token, execution, 0)
        state = claim_for_write(self._session, options)
        self._state = state = state.planned(execution, state.batch, now_ms(), {})
        return state.ticket(Plan.WRITE if state.last is None else Plan.REPLAY if state.replay else Plan.DRAIN)

    def commit(self, parts: Sequence[Part | None], batch_id: int = 0) -> Decision | None:
        """Decide and complete; None when the write was decided before.

        Raises
        ------
        ProtocolViolation
            The parts do not come from this write.
        Fenced, Expiring, BatchTooLong, Expired, Lost, Unfinished
            As in :meth:`Coordinator.commit`.
        """
        state = self._state
        if state is None or self.ticket is None:
            return None
        done = [p for p in parts if p is not None]
        if len(done) < len(parts) or any(p.execution != state.execution for p in done):
            raise ProtocolViolation(
                f"write {self.options.write_id!r}: Spark asked to commit results that do not come from the tasks of "
                "this write",
                "Run the write again; if the error repeats, report it with this message",
            )
        decision = super().commit(done or [empty_part(self.ticket)], 0)
        self._await_mark()  # no batch follows that would report why it failed
        return decision
