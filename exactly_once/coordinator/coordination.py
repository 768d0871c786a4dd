"""The coordinator of a query as Spark's adapter knows it, whatever the guarantee."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from exactly_once.options import SinkOptions
from exactly_once.protocol.planning import Batch
from exactly_once.protocol.records import Decision
from exactly_once.protocol.ticket import Part, Ticket


class Coordination(Protocol):
    """The driver's side of one run of a query, or of one try of a batch write. One call at a time; each may come from
    another thread.

    Attributes
    ----------
    ticket : Ticket or None
        The ticket of the execution that was planned last.
    writes_once : bool
        It is a batch write: over when it is committed or aborted.
    """

    options: SinkOptions
    ticket: Ticket | None
    writes_once: ClassVar[bool]

    @property
    def longest_ms(self) -> int | None:
        """The brokers' transaction.max.timeout.ms; None when it is not known."""

    def plan(self, check: Callable[[Batch], None] | None = None) -> Ticket:
        """Plan the batch in flight, once for each execution of it, before its tasks. Raises whatever has to be refused;
        nothing is written then. ``check`` may raise to refuse the batch that the checkpoint names, before another
        driver is disturbed.
        """

    def commit(self, parts: Sequence[Part | None], batch_id: int) -> Decision | None:
        """Commit the execution that was planned last; return its decision, or None without one."""

    def abort(self, batch_id: int, parts: Sequence[Part | None] = ()) -> dict[str, list[str]]:
        """Roll back the open parts of the last execution, unless its batch is decided; return the names of what was
        rolled back, by participant. ``parts`` are what is known of the tasks; None for one without a result.
        """

    def close(self) -> dict[str, list[str]]:
        """Roll back what an execution that did not finish has left open, as :meth:`abort`; close the connections."""
