"""The writes of one run beside a stream, through a sink of their own: their thread, the failure, the sink at rest."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import dagster as dg

from dagster_exactly_once.resources.checkpoints import READ_BUDGET_S, Offsets
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import as_failure, diagnose
from dagster_exactly_once.runs.operator import alive_of, operator_of
from dagster_exactly_once.runs.pieces import Pieces, logged_every
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import ExactlyOnceError, ProtocolViolation
from exactly_once.inspection.processes import Process, is_mine, owner_alive
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.records import Claim, Decision

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Session = TypeVar("Session")
T = TypeVar("T")

#: Seconds between two wake-ups of the caller, so that an interrupt reaches it.
TICK_S = 0.5
#: Seconds for the call under way, of the 15 within which Terminate promises CANCELED.
STOP_BUDGET_S = 8.0
#: Seconds of these 15 for a killed JVM to end; the rest is for bringing the sink to rest.
KILL_BUDGET_S = 2.0


class SparkWorker(Generic[Session]):
    """Calls functions with a session, one after the other. The first call opens the session and starts the JVM.

    On a thread of its own: Dagster interrupts the main thread of an op, and an interrupt in the middle of a py4j call
    leaves its connection out of step. ``kill`` ends the JVM at once, when a call does not end within its budget.
    """

    def __init__(self, open_session: Callable[[], AbstractContextManager[Session]], kill: Callable[[], None]):
        self._open_session = open_session
        self._kill = kill
        self._work: queue.Queue[tuple[Callable[[Session], Any], Future[Any]] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="spark-worker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._work.put(None)
        self._thread.join(STOP_BUDGET_S if error is not None else None)
        if self._thread.is_alive():
            self._kill()
            self._thread.join(KILL_BUDGET_S)

    def call(self, work: Callable[[Session], T]) -> T:
        """Call ``work`` and return its result, or raise its error."""
        future: Future[T] = Future()
        self._work.put((work, future))
        while not future.done():
            try:
                future.exception(TICK_S)
            except TimeoutError:  # not done yet
                continue
        return future.result()

    def _run(self) -> None:
        with suppress(Exception), ExitStack() as stack:  # a killed JVM cannot be stopped gracefully
            session: Session | None = None
            while (task := self._work.get()) is not None:
                work, future = task
                try:
                    if session is None:
                        session = stack.enter_context(self._open_session())
                    future.set_result(work(session))
                except BaseException as error:
                    future.set_exception(error)


def of_a_write(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a stream's sink for a write beside it: without the topic of its whole batches."""
    return {name: value for name, value in options.items() if name.lower() != "sink.progress.topic"}


@dataclass(frozen=True)
class SideWrites:
    """The batch writes of a run, each named by its ``write.id``; ``pieces`` say which it is at."""

    context: dg.OpExecutionContext | dg.AssetExecutionContext
    what: str
    sink_id: str
    connection: Connection
    transactions: TransactionAdmin
    pieces: Pieces

    @property
    def operator(self) -> str:
        """The run, as its claims name it."""
        return operator_of(self.context.instance, self.context.run.run_id)

    def save(self, records: DataFrame, write_id: str, declared: Mapping[str, str]) -> None:
        """Write rows of the sink exactly once, however often this is tried, with the options that the stream has
        ``declared``.
        """
        own = {"sink.id": self.sink_id, "write.id": write_id, "sink.operator": self.operator}
        options = {**of_a_write(declared), **own, **self.connection.spark()}
        records.write.format("kafka_exactly_once").mode("append").options(**options).save()

    def log(self, what: str) -> None:
        """Say what the run does from now on."""
        self.pieces.doing = what
        self.context.log.info(f"{what}.")

    def begin(self, name: str, what: str, waiting: Offsets, write_id: str) -> None:
        """Make the write ``write_id`` the piece at work; its input begins at ``waiting``."""
        self.pieces.begin(name, what, waiting)
        self.pieces.decided = lambda: self._decided(write_id)

    def _decided(self, write_id: str) -> bool | None:
        """Return whether the commit log has decided a write; None when nobody can tell."""
        with suppress(ExactlyOnceError):
            return read_log(self.connection, self.sink_id, READ_BUDGET_S).write(write_id) is not None
        return None

    def proven(self, write_id: str, records: int | None = None) -> Decision:
        """Return the decision of a write that has just ended, of so many ``records`` where their number is known.
        Raises ProtocolViolation where the commit log has another one, or none.
        """
        decision = read_log(self.connection, self.sink_id, READ_BUDGET_S).write(write_id)
        if decision is None or records not in (None, decision.records):
            have = "nothing" if decision is None else f"{decision.records:,} records"
            raise ProtocolViolation(
                f"the commit log of sink {self.sink_id} says that {write_id} wrote {have}, in place of "
                f"{'records' if records is None else f'{records:,} records'}",
                "Report this as a bug, with this message",
                "What was reported earlier is complete",
            )
        return decision

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Bring the sink to rest before the block, and after it if it fails, which gets a classified failure.

        Inside of it, the run gives signs of life.
        """
        try:
            with logged_every(self.context.log.info, lambda: self.pieces.doing):
                self._bring_to_rest()
                yield
        except Exception as error:  # not an interrupt: Dagster must see that one unchanged
            failure = self.pieces.failed(diagnose(error, self.pieces.place))
            self.context.log.error(f"{self.what} failed: {error}")
            self._bring_to_rest()
            raise as_failure(failure) from error
        except BaseException:
            self._bring_to_rest()
            raise

    def _bring_to_rest(self) -> None:
        """Commit the decided writes of this run and abort its open transactions, unless another process still writes.

        Readers of the stream's topics wait for an open transaction of these writes too.
        """
        try:
            log = read_log(self.connection, self.sink_id, READ_BUDGET_S)
            alive = alive_of(self.context.instance)
            if log.owner is None or not (self._is_ours(log.owner) or owner_alive(log.owner, alive) is False):
                return
            if log.open_decisions or self.transactions.list(self.sink_id):
                report = self.transactions.recover(self.sink_id, self.operator)
                self.context.log.info(report.sentence)
        except ExactlyOnceError as error:
            self.context.log.warning(f"Could not recover the sink; the next run does. {error}")

    def _is_ours(self, owner: Claim) -> bool:
        """Return whether this run made the claim: its JVM stays until the process ends."""
        return owner.operator == self.operator if owner.operator else is_mine(Process.of(owner))
