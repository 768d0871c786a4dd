"""The managed op: runs a streaming query until its end, Terminate or its failure, and leaves the sink at rest."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.failures import Failure, as_failure, diagnose
from dagster_exactly_once.streaming.observer import StreamObserver
from dagster_exactly_once.streaming.single_writer import Rotation
from dagster_exactly_once.streaming.supervisor import Supervisor
from dagster_exactly_once.streaming.windows import ReportWindow
from exactly_once.errors import ExactlyOnceError
from exactly_once.participant import Participant

#: Seconds for the batch in flight, the query and the session, of the 15 within which Terminate promises CANCELED.
STOP_BUDGET_S = 10.0
#: Seconds of these 15 for a killed JVM to end; the rest is for the recovery (1 s on a healthy cluster).
KILL_BUDGET_S = 2.0

#: Seconds until the first report: a person who has just pressed "Launch" looks for a sign of life.
FIRST_REPORT_S = 10.0
#: Seconds between reports of a stream without input: the event log keeps every report.
IDLE_REPORT_S = 300.0

#: The reports per age of a run: one after each further 20th of it, so that months fill neither its page nor the event
#: table (after an hour each 3 minutes, after a day each 15).
REPORTS_PER_AGE = 20
LONGEST_REPORT_S = 900.0

#: Seconds between two wake-ups of the main thread, which sees whether it is time for a report.
TICK_S = 0.5

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@dataclass(kw_only=True, eq=False)
class ManagedStream:
    """One run of a stream, for the main thread of an op.

    Parameters
    ----------
    supervisor : Supervisor
        Runs the query on its own thread; not started yet.
    kill : callable
        Ends the JVM at once, when the query does not stop within its budget.
    report : callable
        Takes each window, for Dagster's event log; called on the main thread.
    report_interval_s : float
        Between two reports of a young run; an older one reports less often.
    rotation : Rotation or None
        Says when the run ends for another one to continue; None: never.
    operator : str
        Who this run works for, for the claim of its recovery.
    participants : sequence of Participant
        Outputs beside Kafka, which the recovery brings to rest too.
    job : str
        What a person launches to start the stream again.

    Attributes
    ----------
    rotated : bool
        Whether the run ended for another one to continue.
    """

    context: dg.AssetExecutionContext
    supervisor: Supervisor[Any]
    observer: StreamObserver
    transactions: TransactionAdmin
    sink_id: str
    kill: Callable[[], None]
    report: Callable[[ReportWindow], None]
    report_interval_s: float
    rotation: Rotation | None = None
    operator: str = ""
    participants: Sequence[Participant[Any]] = ()
    job: str = ""
    rotated: bool = field(default=False, init=False)
    _began: float = field(default_factory=lambda: time.monotonic(), init=False)
    _killed: bool = field(default=False, init=False)
    _records: int = field(default=0, init=False)

    def run(self) -> ReportWindow:
        """Run until the query ends.

        1. Start the query on its thread; report a window now and then.
        2. After its end, an interrupt, a failure or the time of its rotation: stop the query, then the session.
        3. Bring the sink to rest: no open transaction holds readers back.
        4. Report the last window.

        Returns
        -------
        Window
            The last one, not yet reported.

        Raises
        ------
        dagster.DagsterExecutionInterruptedError
            After Terminate and a graceful stop: Dagster makes the run CANCELED.
        dagster.Failure
            With code, cause and way out in its metadata.
        """
        self.supervisor.start()
        try:
            self._watch()
        except BaseException as interrupt:
            self.context.log.info("Stopping: the batch in flight finishes, then the query and its Spark session end.")
            self._end()
            self._settle(None)
            last = self._read_window(final=True)
            if last is not None:
                self._tell(last)
            raise interrupt
        self._end()
        return self._finish()

    def totals(self) -> dict[str, int | float]:
        """Return the figures of the whole run, after its end."""
        seconds = self.supervisor.query_seconds
        return {
            "run_records_committed": self._records,
            "run_seconds": round(seconds, 1),
            "run_records_per_second": round(self._records / seconds, 1) if seconds > 0 else 0.0,
        }

    def _watch(self) -> None:
        due = idle_due = time.monotonic() + min(self.report_interval_s, FIRST_REPORT_S)
        while not self.supervisor.wait(TICK_S):
            if self.rotation is not None and self.rotation.due(self._age_s()):
                self.rotated = True
                return
            if time.monotonic() >= due:
                window = self._read_window()
                due = time.monotonic() + self._pause_s()
                if window is not None and (window.batches or window.lag or time.monotonic() >= idle_due):
                    self._tell(window)
                    idle_due = time.monotonic() + IDLE_REPORT_S
                elif window is not None:
                    self.observer.told()  # nothing happened, and the next window need not say so

    def _age_s(self) -> float:
        return time.monotonic() - self._began

    def _pause_s(self) -> float:
        """Return the seconds until the next report."""
        return min(
            max(self.report_interval_s, self._age_s() / REPORTS_PER_AGE), max(LONGEST_REPORT_S, self.report_interval_s)
        )

    def _end(self) -> None:
        if self.supervisor.stop(STOP_BUDGET_S):
            return
        self.context.log.warning(f"The query did not stop within {STOP_BUDGET_S:.0f} s, so this run ends its JVM.")
        self._killed = True
        self.kill()
        if not self.supervisor.stop(KILL_BUDGET_S):
            self.context.log.warning(
                "The thread of the query does not end. A recovery makes the brokers refuse what that thread may still "
                "write."
            )

    def _finish(self) -> ReportWindow:
        failure = None
        try:
            self.supervisor.raise_failure()
        except Exception as error:
            failure = diagnose(error, self.observer.place(self.job))
            self.context.log.error(f"The query failed: {error}")
        self._settle(failure)
        window = self._read_window(final=True)
        if failure is not None:
            if window is not None:
                self._tell(window)
            raise as_failure(failure)
        if window is None:
            raise dg.Failure("The query ended, but the reason could not be determined; see the log of this run.")
        self._records += window.records
        return window

    def _settle(self, failure: Failure | None) -> None:
        """Commit decided batches and abort undecided transactions, unless a newer driver owns the sink."""
        if failure is None and not self._anything_open():
            return
        try:
            if self.observer.superseded():
                self.context.log.warning("A newer driver owns the sink and will end the open transactions.")
                return
            report = self.transactions.recover(self.sink_id, self.operator, self.participants)
            self.context.log.info(report.sentence)
        except ExactlyOnceError as error:
            self.context.log.warning(f"Could not recover the sink; the next start does. {error}")

    def _anything_open(self) -> bool:
        try:
            return self._killed or bool(self.transactions.list(self.sink_id)) or self.observer.unproven()
        except ExactlyOnceError as error:
            self.context.log.warning(f"Could not list the open transactions: {error}")
            return True

    def _tell(self, window: ReportWindow) -> None:
        """Report a window without interruption: an interrupt between its events would report half of it, or twice."""
        with interrupts_deferred():
            self.report(window)
            self.observer.told()
            self._records += window.records

    def _read_window(self, final: bool = False) -> ReportWindow | None:
        try:
            return self.observer.read_window(self.supervisor.take_progress(), final)
        except ExactlyOnceError as error:
            self.context.log.warning(f"This run could not make its report: {error}")
            return None


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Hold back SIGINT and SIGTERM until the block is done, which must be short."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread is ever interrupted
        yield
        return
    caught: list[int] = []
    handlers = {s: signal.signal(s, lambda number, frame: caught.append(number)) for s in _INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if caught:
            signal.raise_signal(caught[0])
