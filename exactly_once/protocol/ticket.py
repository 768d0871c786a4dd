"""The ticket that a driver gives to the tasks of an execution of a batch, the test for one that is too late, and their
results.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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


@dataclass(frozen=True, slots=True)
class Part:
    """The result of one task of an execution. A part without rows, or a drained one, has no ``handles``. ``again`` says
    whether Spark gave up an attempt of it before, which may have left something open.

    ``refused`` is what was wrong with its first row that cannot be written, and the way out; () when all can be.
    """

    execution: str
    run_id: str
    part: int
    again: bool
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
    return Part(ticket.execution, "", 0, False, ticket.plan)
