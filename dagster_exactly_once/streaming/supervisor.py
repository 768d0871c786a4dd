"""One streaming query under an orchestrator that may interrupt the main thread at any moment.

Only a worker thread, which runs the query, talks to the JVM. An interrupt in the middle of a py4j call leaves the
answer of that call in the socket, and every later call reads the answer of the one before, or waits forever. So the
main thread only waits on an event, and asks the worker to stop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from exactly_once.spark.progress import last_ended, of_batches, ran

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

Progress = Mapping[str, Any]
Session = TypeVar("Session")

#: Seconds between two looks of the worker: for progress, for a request to stop, and whether the query may start.
POLL_S = 0.5


class Supervisor(Generic[Session]):
    """Runs a query to its end on a thread of its own.

    Parameters
    ----------
    open_session : callable
        Makes the context manager of a session; entered and left on the worker thread.
    start_query : callable
        Starts the query in that session.
    ready : callable
        Asked on the worker thread, once the session is open, until it returns True: the query starts then. What it
        raises ends the run.
    settle_s : float
        When asked to stop, wait this long for the batch in flight: after a stop between two batches, the next start has
        nothing to repeat.

    Attributes
    ----------
    query_seconds : float
        How long the query ran; 0 before its end.
    """

    def __init__(
        self,
        open_session: Callable[[], AbstractContextManager[Session]],
        start_query: Callable[[Session], StreamingQuery],
        settle_s: float = 2.5,
        ready: Callable[[], bool] = lambda: True,
    ):
        self._open_session = open_session
        self._start_query = start_query
        self._settle_s = settle_s
        self._ready = ready
        self._stop = threading.Event()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._progress: dict[int, Progress] = {}
        self._failure: BaseException | None = None
        self.query_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="streaming-query", daemon=True)

    def start(self) -> None:
        """Start the worker; returns at once."""
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the query and its session are gone, or the time is over; returns whether they are gone."""
        return self._done.wait(timeout_s)

    def take_progress(self) -> list[Progress]:
        """Return the progress of the batches that ended since the last call, oldest first."""
        with self._lock:
            taken, self._progress = [self._progress[b] for b in sorted(self._progress)], {}
        return taken

    def stop(self, budget_s: float) -> bool:
        """Ask the query to stop and wait; returns whether query and session are gone. Does nothing if they already are.

        An interrupt does not cut the wait short: after half a stop, the query would continue to write.
        """
        self._stop.set()
        end = time.monotonic() + budget_s
        interrupt: BaseException | None = None
        while not self._done.is_set() and time.monotonic() < end:
            try:
                self._done.wait(max(0.0, end - time.monotonic()))
            except BaseException as again:  # an impatient second click, or SIGINT beside Terminate
                interrupt = again
        if interrupt is not None:
            raise interrupt
        return self._done.is_set()

    def raise_failure(self) -> None:
        """Raise the error that ended the query, if one did."""
        if self._failure is not None:
            raise self._failure

    # -- on the worker thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._open_session() as session:
                while not self._stop.is_set() and not self._ready():
                    self._stop.wait(POLL_S)
                if not self._stop.is_set():
                    self._watch(self._start_query(session))
        except BaseException as failure:
            self._failure = failure
        finally:
            self._done.set()

    def _watch(self, query: StreamingQuery) -> None:
        began = time.monotonic()
        seen = -1
        try:
            ended = False
            while not ended and not self._stop.is_set():
                ended = bool(query.awaitTermination(POLL_S))  # type: ignore[arg-type]  # it takes fractions too
                seen = self._collect(query, seen)
            end = time.monotonic() + self._settle_s
            while not ended and query.status["isTriggerActive"] and time.monotonic() < end:
                ended = bool(query.awaitTermination(0.1))  # type: ignore[arg-type]
        finally:
            query.stop()
            self.query_seconds = time.monotonic() - began
        self._collect(query, seen)

    def _collect(self, query: StreamingQuery, seen: int) -> int:
        """Take the progress of the batches after ``seen``; returns the newest batch that has ended."""
        last = query.lastProgress
        if last is None or last_ended(last) <= seen:
            return seen
        # all of it only if needed: PySpark fetches each progress by itself
        reported = [last] if ran(last) and last["batchId"] == seen + 1 else query.recentProgress
        fresh = [p for p in of_batches(reported) if p["batchId"] > seen]
        with self._lock:
            self._progress |= {p["batchId"]: p for p in fresh}
        return max((last_ended(last), *(int(p["batchId"]) for p in fresh)))
