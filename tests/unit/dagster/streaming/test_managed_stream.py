"""The managed op's main thread: whatever ends the query, the sink is brought to rest and the last window is told."""

import signal

import dagster as dg
import pytest

from dagster_exactly_once.runs.failures import FailurePlace
from dagster_exactly_once.streaming import managed
from dagster_exactly_once.streaming.managed import ManagedStream, interrupts_deferred
from dagster_exactly_once.streaming.windows import CommittedBatch, ReportWindow
from exactly_once.coordinator.recover import RecoveryReport
from exactly_once.errors import BrokerUnreachable, Fenced
from exactly_once.protocol.records import Claim, Decision
from exactly_once.txn.coordinators import Description

WINDOW = ReportWindow((CommittedBatch(3, 100, 2, 500, 450, 20),), 0, 0, 1.0)
IDLE = ReportWindow((), 0, 0, 1.0)


@pytest.fixture(autouse=True)
def reports_at_each_tick(monkeypatch):
    monkeypatch.setattr(managed, "REPORTS_PER_AGE", float("inf"))


class Story:
    """Stands for all that the op works with, and writes down what is done to it."""

    def __init__(
        self, ends=None, fails=None, stops=True, open_ids=(), superseded=False, windows=(WINDOW,), sweep_fails=None
    ):
        self.done, self.log, self.windows = [], self, list(windows)
        self.ends, self.fails, self.stops, self.superseded_ = ends, fails, stops, superseded
        self.open_ids, self.sweep_fails = open_ids, sweep_fails
        self.query_seconds, self.ticks = 2.0, 0

    def run(self):
        return self.managed(0.0).run()

    def managed(self, report_interval_s):
        return ManagedStream(
            context=self, supervisor=self, observer=self, transactions=self, sink_id="s", kill=self.kill,
            report=self.report, report_interval_s=report_interval_s,
        )  # fmt: skip

    # -- the context's log
    def info(self, text):
        self.said = text

    def error(self, text): ...

    def warning(self, text):
        self.done.append(f"warned: {text}")

    # -- the supervisor
    def start(self):
        self.done.append("start")

    def wait(self, timeout_s):
        self.ticks += 1
        if isinstance(self.ends, BaseException):
            raise self.ends
        return self.ends is None or self.ticks > self.ends

    def stop(self, budget_s):
        self.done.append("stop")
        return self.stops or "kill" in self.done

    def take_progress(self):
        return []

    def raise_failure(self):
        if self.fails:
            raise self.fails

    def kill(self):
        self.done.append("kill")

    # -- the observer
    def read_window(self, progress, final=False):
        self.done.append("last look" if final else "look")
        window = self.windows.pop(0) if len(self.windows) > 1 else self.windows[0]
        if isinstance(window, Exception):
            raise window
        return window

    def told(self): ...

    def superseded(self):
        return self.superseded_

    def unproven(self):
        return False

    def place(self, job):
        return FailurePlace(job, 7)

    # -- the transactions
    def list(self, sink_id):
        return self.open_ids

    def recover(self, sink_id, operator="", others=()):
        self.done.append("sweep")
        if self.sweep_fails:
            raise self.sweep_fails
        return RecoveryReport(sink_id)

    def report(self, window):
        self.done.append("report")


def test_a_query_that_ends_by_itself_is_told_once_and_needs_no_recovery():
    story = Story()
    assert story.run() is WINDOW
    assert story.done == ["start", "stop", "last look"]


def test_batches_are_reported_while_it_runs_and_idleness_is_not():
    story = Story(ends=3, windows=[WINDOW, IDLE, IDLE, WINDOW])
    assert story.run() is WINDOW
    assert story.done == ["start", "look", "report", "look", "look", "stop", "last look"]


def test_a_stream_that_is_behind_and_commits_nothing_is_reported():
    story = Story(ends=2, windows=[IDLE, ReportWindow((), 7, 0, 1.0), WINDOW])
    story.run()
    assert story.done.count("report") >= 1


def test_an_interrupt_stops_then_sweeps_then_tells_and_is_passed_on():
    """Dagster makes CANCELED of the exception; an op that returned would be a SUCCESS."""
    story = Story(ends=dg.DagsterExecutionInterruptedError(), open_ids=["eo:s:1:0:0.0"])
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        story.run()
    assert story.done == ["start", "stop", "sweep", "last look", "report"]


def test_what_a_recovery_did_is_said_in_a_sentence():
    """A page of `{'sink_id': ..., 'claim': 2, 'completed_batches': []}` is read by nobody at 3 a.m."""
    story = Story(ends=dg.DagsterExecutionInterruptedError(), open_ids=["eo:s:1:0:0.0"])
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        story.run()
    assert story.said == "Sink s was never used: there is nothing to recover."


CLAIM = Claim(7, "q", 0, "recovery", "h", 1)
DECIDED = Decision("q", 4, 6, (), "d", 5, 0)
OPEN = Description("eo:s:6:0:0.0", "Ongoing", 1, 0, 60_000, 1, (("out", 1),), 1)


@pytest.mark.parametrize(
    ("did", "sentence"),
    [
        ({}, "Sink s is recovered: there was nothing to complete or roll back."),
        (
            {"completed": [DECIDED], "rolled_back": {"kafka": ["eo:s:6:1:0.0"]}},
            "Sink s is recovered: it completed batch 4; it rolled back 1 undecided part.",
        ),
        (
            {"to_rewrite": [DECIDED], "left_open": [OPEN], "blocked": [("out", 1)]},
            "Sink s is not fully recovered yet: the next start writes the lost parts of batch 4 again; these "
            "transactions are still open: eo:s:6:0:0.0; readers still wait on out-1.",
        ),
    ],
)
def test_the_sentence_of_a_recovery_names_what_was_done_and_what_is_left(did, sentence):
    assert RecoveryReport("s", CLAIM, **did).sentence == sentence


def test_a_query_that_does_not_stop_loses_its_jvm_and_the_sink_is_swept():
    story = Story(ends=dg.DagsterExecutionInterruptedError(), stops=False)
    with pytest.raises(dg.DagsterExecutionInterruptedError):
        story.run()
    assert [d for d in story.done if not d.startswith("warned")] == [
        *("start", "stop", "kill", "stop", "sweep", "last look", "report"),
    ]


def test_a_failure_is_classified_after_the_sink_was_brought_to_rest():
    story = Story(
        fails=RuntimeError(
            "exactly_once.errors.Expired: EO-EXPIRED: batch 3 is lost. Others are safe. What to do: Restore it."
        )
    )
    with pytest.raises(dg.Failure) as failure:
        story.run()
    assert story.done == ["start", "stop", "sweep", "last look", "report"]
    assert failure.value.metadata["code"].value == "EO-EXPIRED"
    assert failure.value.metadata["way_out"].value == "Restore it."
    assert not failure.value.allow_retries


def test_a_driver_that_was_superseded_does_not_take_the_sink_back():
    """A recovery fences whoever owns the sink; here that would be the driver that works."""
    story = Story(fails=Fenced("claim 1 is superseded", "Stop this driver"), superseded=True)
    with pytest.raises(dg.Failure, match="EO-FENCED"):
        story.run()
    assert "sweep" not in story.done


@pytest.mark.parametrize("ends", [None, dg.DagsterExecutionInterruptedError()])
def test_brokers_that_are_gone_at_the_end_change_nothing_about_the_end(ends):
    gone = BrokerUnreachable("no broker", "Check")
    story = Story(ends=ends, open_ids=["x"], sweep_fails=gone, windows=[gone])
    with pytest.raises((dg.DagsterExecutionInterruptedError, dg.Failure)):
        story.run()
    assert any("the next start does" in d for d in story.done)


def test_an_interrupt_in_the_middle_of_a_report_waits_for_its_end():
    """A window that is told half would be missing in the sums of a run, or be in them twice."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interrupts_deferred():
            signal.raise_signal(signal.SIGINT)
            told = "whole"
        assert told == "whole"
        with interrupts_deferred():
            pass
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_terminate_fits_into_what_is_promised():
    assert managed.STOP_BUDGET_S + managed.KILL_BUDGET_S <= 15 - 3


def test_a_run_of_a_day_reports_a_few_hundred_times_and_a_run_of_a_month_fits_on_its_page(monkeypatch):
    """Dagster keeps each report of each output as an event: 2,880 a day make the page of a run unreadable in a week."""
    monkeypatch.setattr(managed, "REPORTS_PER_AGE", 20)
    clock = [0.0]
    monkeypatch.setattr(managed.time, "monotonic", lambda: clock[0])

    def reports(days):
        story, clock[0] = Story(windows=[WINDOW]), 0.0

        def wait(timeout_s):
            clock[0] += 10.0  # twenty ticks at once: half a second of virtual time each would take minutes
            return clock[0] >= days * 86_400

        story.wait = wait
        story.managed(30.0).run()
        return story.done.count("report")

    assert reports(1) == 163
    assert reports(30) < 3_000
