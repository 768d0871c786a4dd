"""Spark calls on a thread of their own: Dagster interrupts the main thread of an op, and an interrupt in the middle of
a py4j call leaves its connection out of step.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

Session = TypeVar("Session")
T = TypeVar("T")

#: How often the caller wakes up, so that an interrupt reaches it.
TICK_S = 0.5
#: Terminate promises CANCELED within 15 s: this much for the call under way, ...
STOP_BUDGET_S = 8.0
#: ... this much for a killed JVM to end; the rest is for bringing the sink to rest.
KILL_BUDGET_S = 2.0


class SparkWorker(Generic[Session]):
    """Calls functions with a session, one after the other. The first call opens the session and starts the JVM.

    Parameters
    ----------
    open_session : callable
        Makes the context manager of a session.
    kill : callable
        Ends the JVM at once, when a call does not end within its budget.
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
