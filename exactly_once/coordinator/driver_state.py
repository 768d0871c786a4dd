"""The driver's knowledge of its claim and of the batch in flight.

It is one value, a field of the coordinator, which takes a new one at each step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from exactly_once.protocol.named_sources import Ends
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import Aborted, Decision
from exactly_once.protocol.replay import Replay
from exactly_once.protocol.ticket import Ticket
from exactly_once.protocol.too_long import limit_ms

#: The token before any driver has claimed the sink: claims count from 1.
UNCLAIMED = 0


@dataclass(frozen=True, slots=True)
class DriverState:
    """The claim of this driver and its last batch; the tasks have the other fields in their :class:`Ticket`.

    Attributes
    ----------
    token : int
        The claim; :data:`UNCLAIMED` under a weaker guarantee whose sink nobody has claimed.
    batch : Batch
        The batch in flight.
    end_txn_version : int
        For the decisions under this claim.
    clock_ahead_ms : int
        Brokers' clock minus this machine's, as the commit log's time stamps show it.
    last : Decision or None
        The last decision of the query.
    planned_ms : int
        When the ``execution`` was planned, by this machine's clock.
    finished : bool
        Whether it went through to its end.
    swept_ms : int
        When open transactions were last looked for.
    input_offsets : dict
        Topic -> partition -> where the input of the batch in flight ends.
    ended : mapping or None
        Where each topic ended that named sources have read, and the batch in flight does not
        (:attr:`~exactly_once.protocol.records.Decision.ended`).
    log_end : int
        The end of the commit log after this driver's last write; 0 when it is not known.
    longest_ms : int or None
        The brokers' transaction.max.timeout.ms.
    """

    token: int
    batch: Batch
    end_txn_version: int
    timeout_ms: int
    clock_ahead_ms: int
    last: Decision | None = None
    execution: str = ""
    finished: bool = True
    swept_ms: int = 0
    input_offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    replay: Replay = field(default_factory=dict)
    incarnation: str = ""
    planned_ms: int = 0
    log_end: int = 0
    too_long: int = 0
    longest_ms: int | None = None
    ended: Ends | None = None

    @property
    def written(self) -> Batch | None:
        """The last batch, once it went through to its end; None while it is in flight."""
        return self.batch if self.finished else None

    def planned(
        self,
        execution: str,
        batch: Batch,
        planned_ms: int,
        input_offsets: dict[str, dict[int, int]],
        ended: Ends | None = None,
    ) -> DriverState:
        """Return the state while ``execution`` of ``batch`` is under way, whose input ends at ``input_offsets``."""
        return replace(
            self,
            execution=execution,
            batch=batch,
            planned_ms=planned_ms,
            finished=False,
            input_offsets=input_offsets,
            ended=ended,
        )

    def ticket(self, plan: Plan) -> Ticket:
        """Return the instructions for the tasks of the execution that was planned last."""
        return Ticket(
            replace(self.batch, sources=(), offsets="", named=None),
            plan,
            self.token,
            self.execution,
            self.timeout_ms,
            replay=self.replay,
            incarnation=self.incarnation,
            log_end=self.log_end,
            too_long=self.too_long,
        )

    @property
    def drains(self) -> bool:
        """Return whether that batch was decided before, so that none of it may be written."""
        batch, last = self.batch, self.last
        decided = last is not None and (batch.batch_id, batch.offsets_digest) == (last.batch_id, last.offsets_digest)
        return decided and not self.replay

    def aborted(self, aborted_ms: int) -> Aborted:
        """Return the commit-log record that ends the execution planned last without a decision."""
        took_ms, limit = max(0, aborted_ms - self.planned_ms), limit_ms(self.timeout_ms)
        too_long = self.too_long + 1 if took_ms >= limit else 0
        return Aborted(
            query_id=self.batch.query_id,
            batch_id=self.batch.batch_id,
            offsets_digest=self.batch.offsets_digest,
            token=self.token,
            execution=self.execution,
            aborted_ms=aborted_ms,
            took_ms=took_ms,
            limit_ms=limit,
            too_long=too_long,
        )
