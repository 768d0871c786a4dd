"""Spark on a thread of its own, for an op that may be interrupted: no JVM without need, none left behind."""

import threading
import time
from contextlib import contextmanager

import pytest

from dagster_exactly_once.backfill import writes as module
from dagster_exactly_once.backfill.writes import SparkWorker


class Spark:
    """Sessions as the resource makes them."""

    def __init__(self):
        self.opened, self.closed, self.threads = 0, 0, set()
        self.killed = threading.Event()

    @contextmanager
    def session(self):
        self.opened += 1
        self.threads.add(threading.current_thread())
        try:
            yield self
        finally:
            self.closed += 1

    def worker(self):
        return SparkWorker(self.session, self.killed.set)


def test_no_session_is_opened_without_a_call():
    """Days that are written already must not cost a JVM."""
    spark = Spark()
    with spark.worker():
        pass
    assert (spark.opened, spark.closed) == (0, 0)


def test_all_calls_share_one_session_on_one_thread_that_is_not_the_callers():
    spark = Spark()
    with spark.worker() as worker:
        threads = {worker.call(lambda session: threading.current_thread()) for _ in range(3)}
        assert worker.call(lambda session: session) is spark
    assert (spark.opened, spark.closed) == (1, 1)
    assert threads == spark.threads != {threading.current_thread()}


@pytest.mark.parametrize("error", [ValueError("x"), TimeoutError("of the work itself")])
def test_what_a_call_raises_reaches_the_caller_and_the_next_call_works(error):
    """A TimeoutError of the work must not be taken for 'not done yet', which would wait forever."""

    def fail(session):
        raise error

    spark = Spark()
    with spark.worker() as worker:
        with pytest.raises(type(error)) as raised:
            worker.call(fail)
        assert raised.value is error
        assert worker.call(lambda session: 1) == 1
    assert spark.closed == 1


def test_a_session_that_does_not_open_is_the_callers_error_and_is_tried_again():
    tries = iter([RuntimeError("no Java"), None])

    @contextmanager
    def session():
        if (error := next(tries)) is not None:
            raise error
        yield "session"

    with SparkWorker(session, lambda: None) as worker:
        with pytest.raises(RuntimeError, match="no Java"):
            worker.call(lambda session: session)
        assert worker.call(lambda session: session) == "session"


def test_an_interrupt_waits_for_the_call_under_way_and_closes_the_session():
    """Terminate between two days leaves the day that is being written to its end."""
    spark, written = Spark(), []
    with pytest.raises(KeyboardInterrupt), spark.worker() as worker:
        worker.call(lambda session: None)
        worker._work.put((lambda session: (time.sleep(0.2), written.append("day")), module.Future()))
        raise KeyboardInterrupt
    assert written == ["day"] and spark.closed == 1 and not spark.killed.is_set()


def test_a_call_that_does_not_end_after_an_interrupt_has_its_jvm_killed(monkeypatch):
    """Guards against a run that hangs in CANCELING while its transactions stay open."""
    monkeypatch.setattr(module, "STOP_BUDGET_S", 0.1)
    spark = Spark()
    with pytest.raises(KeyboardInterrupt), spark.worker() as worker:
        worker._work.put((lambda session: spark.killed.wait(10), module.Future()))
        raise KeyboardInterrupt
    assert spark.killed.is_set() and spark.closed == 1
