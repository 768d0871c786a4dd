"""The result of a task, on its way to the driver."""

from __future__ import annotations

from dataclasses import dataclass

from exactly_once.protocol.planning import Plan
from exactly_once.protocol.records import PreparedPart, PreparedTransaction
from exactly_once.protocol.ticket import Ticket


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
