"""The query's thread: it alone talks to the query, the main thread only waits, and a stop is never left half-way."""

import threading
import time
from contextlib import contextmanager

import pytest

from dagster_exactly_once.streaming.supervisor import Supervisor


def batch(number, rows=0):
    return {"batchId": number, "numInputRows": rows, "durationMs": {"addBatch": 5, "triggerExecution": 9}}


def waiting(number):
    """What Spark reports of a query that waits: under the id of the next batch."""
    return {"batchId": number, "numInputRows": 0, "durationMs": {"latestOffset": 1, "triggerExecution": 1}}


class FakeQuery:
    """A query that runs until it is stopped, or for ``batches`` batches; notes which threads talk to it."""

    def __init__(self, batches=None, fails=None, stop_takes_s=0.0, busy=False):
        self.batches, self.fails, self.stop_takes_s, self.busy = batches, fails, stop_takes_s, busy
        self.threads, self.stopped, self.ran = set(), False, 0

    def _talk(self):
        self.threads.add(threading.current_thread().name)

    def awaitTermination(self, timeout):
        self._talk()
        if self.fails:
            raise self.fails
        time.sleep(0.01)
        self.ran += 1
        return self.batches is not None and self.ran >= self.batches

    @property
    def lastProgress(self):
        self._talk()
        return batch(self.ran - 1) if self.ran else None

    @property
    def recentProgress(self):
        self._talk()
        return [batch(n) for n in range(self.ran)]

    @property
    def status(self):
        self._talk()
        return {"isTriggerActive": self.busy}

    def stop(self):
        self._talk()
        time.sleep(self.stop_takes_s)
        self.stopped = True


class Sessions:
    """Opens sessions and notes that they were closed."""

    def __init__(self):
        self.open = False

    @contextmanager
    def __call__(self):
        self.open = True
        yield "session"
        self.open = False


def supervised(query, settle_s=0.2):
    sessions = Sessions()
    supervisor = Supervisor(sessions, lambda session: query, settle_s)
    supervisor.start()
    return supervisor, sessions


def test_a_query_starts_when_it_is_ready_and_its_session_before():
    """The session takes longest: a run that waits for its turn would otherwise lose that time too."""
    answers, opened = [False, False, True], []
    sessions, query = Sessions(), FakeQuery(batches=1)

    def ready():
        opened.append(sessions.open and not query.ran)
        return answers.pop(0)

    supervisor = Supervisor(sessions, lambda session: query, 0.2, ready)
    supervisor.start()
    assert supervisor.wait(10) and opened == [True] * 3 and query.ran


def test_a_stop_ends_the_wait_for_the_turn():
    """Terminate promises its end within seconds, also for a run that has not begun."""
    sessions, query = Sessions(), FakeQuery()
    supervisor = Supervisor(sessions, lambda session: query, 0.2, lambda: False)
    supervisor.start()
    assert supervisor.stop(5) and not sessions.open and not query.ran
    supervisor.raise_failure()


def test_a_query_that_ends_by_itself_leaves_no_session():
    query = FakeQuery(batches=3)
    supervisor, sessions = supervised(query)
    assert supervisor.wait(5)
    supervisor.raise_failure()
    assert query.stopped and not sessions.open
    assert [p["batchId"] for p in supervisor.take_progress()] == [0, 1, 2]
    assert supervisor.take_progress() == []


class Reporting(FakeQuery):
    """A query that has reported a piece more of ``polls`` at each poll; notes how often all of it was fetched."""

    def __init__(self, *polls):
        super().__init__(batches=len(polls))
        self.polls, self.fetched = polls, 0

    @property
    def recentProgress(self):
        self.fetched += 1
        return [p for piece in self.polls[: self.ran] for p in piece]

    @property
    def lastProgress(self):
        return next((piece[-1] for piece in reversed(self.polls[: self.ran]) if piece), None)


@pytest.mark.parametrize(
    "polls",
    [
        [[batch(0, 5)], [waiting(1)], [batch(1, 7)]],
        [[batch(0, 5)], [waiting(1)], [waiting(1)], [], [batch(1, 7), waiting(2)], []],
        [[], [waiting(0)], [batch(0, 5)], [batch(1, 7)]],
        [[waiting(0)], [batch(0, 5), waiting(1)], [waiting(1), batch(1, 7), waiting(2)]],
        [[batch(0, 5), waiting(1), batch(1, 6), batch(1, 7)]],
        [[batch(0, 5), waiting(1), batch(1, 7), waiting(2), waiting(2)]],
    ],
    ids=["middle", "behind a batch", "start", "around each batch", "one id twice", "all in one poll"],
)
def test_a_query_that_waits_hides_no_batch(polls):
    """It reports the id of the next batch: the real one then came under an id that was known already, and its rows,
    observations, event times and watermark were lost.
    """
    supervisor, _ = supervised(Reporting(*polls))
    assert supervisor.wait(5)
    assert [(p["batchId"], p["numInputRows"]) for p in supervisor.take_progress()] == [(0, 5), (1, 7)]


def test_a_batch_is_taken_once_however_long_the_query_waits_behind_it():
    query = Reporting([batch(0, 5)], [waiting(1)], [batch(1, 7)], [waiting(2)])
    supervisor = Supervisor(Sessions(), lambda session: query)
    seen, taken = -1, []
    for query.ran in range(1, 5):
        seen = supervisor._collect(query, seen)
        taken += [p["numInputRows"] for p in supervisor.take_progress()]
    assert taken == [5, 7]


def test_a_query_that_waits_from_the_start_has_all_of_its_progress_fetched_once():
    """PySpark fetches each of the hundred by itself, through the interpreter that the coordinator needs too. Outage: a
    run that finds nothing new failed with a TypeError of these lines.
    """
    query = Reporting(*[[waiting(40)]] * 20)
    supervisor, _ = supervised(query)
    assert supervisor.wait(5)
    supervisor.raise_failure()
    assert (supervisor.take_progress(), query.fetched) == ([], 1)


def test_only_the_worker_thread_talks_to_the_query():
    query = FakeQuery()
    supervisor, _ = supervised(query)
    supervisor.wait(0.1)
    assert supervisor.stop(5)
    assert query.threads == {"streaming-query"}


def test_a_stop_waits_for_the_batch_in_flight_but_not_for_ever():
    query = FakeQuery(busy=True)
    supervisor, _ = supervised(query, settle_s=0.3)
    supervisor.wait(0.05)
    began = time.monotonic()
    assert supervisor.stop(5)
    assert 0.25 < time.monotonic() - began < 3
    assert query.stopped


def test_a_query_that_does_not_stop_is_reported_within_the_budget():
    supervisor, _ = supervised(FakeQuery(stop_takes_s=1.0))
    supervisor.wait(0.05)
    began = time.monotonic()
    assert not supervisor.stop(0.2)
    assert time.monotonic() - began < 0.9
    assert supervisor.stop(5)


def test_a_failure_reaches_the_main_thread_and_the_session_is_closed():
    supervisor, _ = supervised(FakeQuery(fails=RuntimeError("EO-EXPIRED: lost")))
    assert supervisor.wait(5)
    assert supervisor.stop(1)
    with pytest.raises(RuntimeError, match="EO-EXPIRED"):
        supervisor.raise_failure()


def test_a_session_that_cannot_be_opened_is_a_failure_too():
    @contextmanager
    def broken():
        raise OSError("no Java")
        yield

    supervisor = Supervisor(broken, lambda session: FakeQuery())
    supervisor.start()
    assert supervisor.wait(5)
    with pytest.raises(OSError, match="no Java"):
        supervisor.raise_failure()


def test_a_request_to_stop_before_the_query_started_starts_none():
    query, opened = FakeQuery(), threading.Event()

    @contextmanager
    def slow():
        opened.wait(5)
        yield "session"

    supervisor = Supervisor(slow, lambda session: query)
    supervisor.start()
    assert not supervisor.stop(0.05)
    opened.set()
    assert supervisor.wait(5)
    assert query.threads == set()


def test_an_interrupt_during_the_stop_does_not_cut_it_short():
    """An impatient second Terminate would otherwise leave a query that goes on writing under a run called CANCELED."""
    supervisor, _ = supervised(FakeQuery(stop_takes_s=0.5))
    supervisor.wait(0.05)
    real, calls = supervisor._done.wait, []

    def wait(timeout):
        calls.append(timeout)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(timeout)

    supervisor._done.wait = wait
    with pytest.raises(KeyboardInterrupt):
        supervisor.stop(5)
    assert supervisor.wait(0)
