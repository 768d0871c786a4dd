"""``exactly_once_liveness``: which runs are dead, and whether the stream is to be started."""

from __future__ import annotations

import signal
import subprocess
import sys
from unittest.mock import Mock

import psutil
import pytest

from dagster_exactly_once.runs.tags import (
    TAG_ATTEMPT,
    TAG_CAUSE,
    TAG_CONTINUES,
    TAG_JOB,
    TAG_PID,
    TAG_RESTART_OF,
    TAG_ROTATES,
    TAG_STREAM,
)
from dagster_exactly_once.sensors import liveness
from dagster_exactly_once.sensors.liveness import (
    SIGN_IN_S,
    restart_config,
    verdict,
)
from dagster_exactly_once.sensors.tick import Judged
from exactly_once.inspection.processes import Frozen, Process, State
from testkit.processes import until
from testkit.sensor_facts import NOW, STREAM, history, recovery, run


def working(alive, status="STARTED", signed=True, age_s=0.0, **rest):
    tags = {TAG_PID: "1@1000.00"} if signed else {}
    return run("r1", status, at=NOW - age_s, alive=alive, host="here", tags=tags, **rest)


def judged(found=None, *runs):
    return verdict(found or history(), runs, STREAM)


def judged_frozen(w, end_after_s, frozen_s):
    return verdict(history(), [w], STREAM, end_after_s, {"r1": NOW - frozen_s})


@pytest.mark.parametrize("status", ["STARTING", "STARTED", "CANCELING"])
def test_a_run_without_its_process_is_reported(status: str):
    """Nobody else does when the code server died with it: it would hold its pool forever."""
    found = judged(None, working(False, status))
    assert found.dead == ("r1",) and "r1 of stream" in found.message


@pytest.mark.parametrize(
    "w",
    [
        working(True),
        working(None),  # on another host
        working(None, "STARTING", signed=False, age_s=9_999.0),  # the start timeout of run monitoring is for it
        working(None, signed=False, age_s=SIGN_IN_S - 1),
    ],
)
def test_other_runs_are_left_alone(w):
    assert judged(None, w).dead == ()


def frozen(state=State.STOPPED, pid=7982):
    return Frozen(Process("vm", "m", pid, 1.0), state)


def test_a_frozen_run_is_named_with_the_command_and_ended_after_the_policys_time():
    """Mishap: a driver that a signal has stopped is called alive, and Terminate of it blocks all of its location."""
    its = (frozen(), frozen(State.STUCK, 7983))
    found = judged_frozen(working(True, frozen=its), 120.0, 20.0)
    assert (found.end, found.resume, found.dead) == ((), (), ())
    assert "process 7982 on vm is stopped " in found.message and "process 7983 on vm is stuck " in found.message
    assert "HEALTH-FROZEN" in found.message and "kills that process in 1 min 40 s." in found.message
    assert "kill -9 7982 7983" in found.message and "do not press Terminate" in found.message
    found = judged_frozen(working(True, frozen=its), 120.0, 120.0)
    assert (found.end, found.resume) == (its, ()) and "for 2 min." in found.message


def stopped_child():
    """A process of this machine that a signal has stopped, and its record."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    child.send_signal(signal.SIGSTOP)
    until("it is stopped", lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, 10)
    return child, Frozen(Process.here(child.pid), State.STOPPED)


def said_of(*ends, resume=()):
    return liveness._done(None, Judged("Frozen.", end=ends, resume=resume)).message


def test_a_tick_says_what_became_of_the_process_that_it_was_to_kill(monkeypatch):
    """Mishap: the tick said "ended it" of a process that went on, or that the daemon's user may not kill: a person
    relied on that, and readers waited.
    """
    child, its = stopped_child()
    assert said_of(its) == f"Frozen. This sensor sent SIGKILL to process {child.pid}."
    child.wait(10)
    assert said_of(its) == f"Frozen. Process {child.pid} was gone before this sensor could kill it."
    child, its = stopped_child()
    sent = said_of(resume=(its,))
    assert sent == f"Frozen. This sensor sent SIGCONT to process {child.pid}, so that it ends as it was asked to."
    until("it runs", lambda: psutil.Process(child.pid).status() != psutil.STATUS_STOPPED, 10)
    assert said_of(its) == f"Frozen. Process {child.pid} runs again, so this sensor sent it no signal."
    child.send_signal(signal.SIGSTOP)
    until("it is stopped", lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, 10)
    with monkeypatch.context() as patched:
        patched.setattr(psutil.Process, "kill", Mock(side_effect=psutil.AccessDenied))
        assert f"This sensor's user may not kill process {child.pid}: run kill -9 {child.pid}" in said_of(its)
    child.kill()
    child.wait(10)


def test_a_policy_of_zero_ends_no_frozen_process():
    found = judged_frozen(working(True, frozen=(frozen(),)), 0.0, 9_999.0)
    assert found.end == () and "kill -9 7982" in found.message and "This sensor" not in found.message


def test_a_frozen_run_that_a_person_has_asked_to_end_goes_on_at_once():
    """Mishap: killed instead, it never takes Dagster's message, and no run of the code location starts any more."""
    found = judged_frozen(working(True, "CANCELING", frozen=(frozen(),)), 1.0, 999.0)
    assert (found.end, found.resume) == ((), (frozen(),))
    assert "kill -CONT 7982" in found.message
    stuck = working(True, "CANCELING", frozen=(frozen(State.STUCK),))
    assert "until the kernel releases" in judged(None, stuck).message


def test_a_run_on_another_host_is_named():
    """Somebody who looks for a stuck run must not believe that it was looked at."""
    said = judged(None, working(None)).message
    assert "cannot see the process" in said and " run r1 of stream on here, " in said and "does nothing" in said


def test_a_run_that_never_said_which_process_it_is_is_reported_after_a_while():
    """Its process died between Dagster's STARTED and the first line of its op."""
    assert judged(None, working(None, signed=False, age_s=SIGN_IN_S + 1)).dead == ("r1",)


def failed(**rest):
    return run("r1", "FAILURE", config={"ops": {"x": 1}}, **rest)


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_recovered_stream_is_started_with_its_own_configuration_and_tags(attempt: int):
    """The next tick must know whose run it is, while it is still queued. Counted a second time, the number that people
    see would be another one than that of the sentence before.
    """
    [request] = judged(history(failed(), recoveries=(recovery("c", restart_of="r1", attempt=attempt),))).requests
    assert (request.run_config, request.run_key) == ({"ops": {"x": 1}}, "restart/c")
    tags = [request.tags[name] for name in (TAG_STREAM, TAG_RESTART_OF, TAG_ATTEMPT)]
    assert tags == ["stream", "r1", f"{attempt}"]


@pytest.mark.parametrize("status", ["QUEUED", "STARTING", "STARTED"])
def test_a_stream_whose_start_had_to_pause_waits_for_its_recovery(status: str):
    """The recovery would fence a driver that has just begun; the run beside it comes from exactly_once_run_failure."""
    found = judged(history(failed(), recoveries=(recovery("c", status, restart_of="r1"),)))
    assert not found.requests and f"run c of exactly_once_recovery is {status}" in found.message


def test_a_start_waits_for_the_pause_of_the_strategy():
    """Else a stream that fails at once would start again and again without a pause."""
    verdict = judged(history(failed(), recoveries=(recovery("c", restart_of="r1", not_before=NOW + 9),)))
    said = "stream again in 9.0 s, after run r1 (restart attempt 1)"
    assert not verdict.requests and said in verdict.message


def test_a_consent_is_not_repeated_by_a_restart():
    """A person gave it for what an error said at that start; given again, it would accept a later loss unseen."""
    config = {"mode": "until_stopped", "once": {"accept_lost": "batch 3", "adopt": ""}}
    newest = run("r1", "FAILURE", config={"ops": {"x": {"config": config}}, "execution": {"y": 1}})
    found = judged(history(newest, recoveries=(recovery("c", restart_of="r1"),)))
    assert found.requests[0].run_config == {"ops": {"x": {"config": {"mode": "until_stopped"}}}, "execution": {"y": 1}}
    cause = found.requests[0].tags[TAG_CAUSE]
    assert "drops a consent" in cause and "gave run r1 " in cause and ": accept_lost=batch 3." in cause
    assert newest.config["ops"]["x"]["config"] is config and "once" in config  # what Dagster has read stays as it is


def test_a_restart_without_consents_speaks_of_none():
    """A person who reads the cause would look for a consent that nobody gave."""
    newest = run("r1", "FAILURE", config={"ops": {"x": {"config": {"once": {"adopt": ""}}}}})
    found = judged(history(newest, recoveries=(recovery("c", restart_of="r1"),)))
    assert found.requests[0].run_config == {"ops": {"x": {"config": {}}}}
    assert "consent" not in found.requests[0].tags[TAG_CAUSE]


@pytest.mark.parametrize("config", [{}, {"ops": {}}, {"ops": {"report": {"config": {"once": {"adopt": "x"}}}}}])
def test_a_materialize_run_without_a_configuration_of_the_stream_restarts_with_none(config):
    """Dagster refuses a run whose configuration names ops that the job does not have: the stream would stay down."""
    assert restart_config(run("r1", "FAILURE", job="__ASSET_JOB", config=config), STREAM) == ({"ops": {}}, "")


CANCELED, AGAIN = run("r1", "CANCELED"), recovery("c", restart_of="r1")


@pytest.mark.parametrize(
    ("streams", "recoveries", "says"),
    [
        ([], [], "no run yet"),
        ([CANCELED], [], "no restart is requested"),
        ([failed()], [], "no restart is requested"),
        ([failed()], [recovery("c")], "no restart is requested"),
        ([failed()], [recovery("c", "FAILURE", restart_of="r1")], "no restart is requested"),
        ([failed()], [recovery("c", "CANCELED", restart_of="r1")], "no restart is requested"),
        ([failed()], [recovery("c", "STARTED", restart_of="r0")], "c of exactly_once_recovery is STARTED"),
        ([failed()], [recovery("c", "STARTED", person=True)], "c of exactly_once_recovery is STARTED"),
        ([failed()], [recovery("d", "STARTED"), AGAIN], "d of exactly_once_recovery is STARTED"),
        ([CANCELED], [recovery("c", "STARTED", restart_of="r1")], "c of exactly_once_recovery is STARTED"),
        ([run("r2", "QUEUED"), failed()], [AGAIN], "r2 of stream is QUEUED"),
        ([run("r2", "CANCELED"), failed()], [AGAIN], "no restart is requested"),
        ([failed()], [recovery("d", person=True), AGAIN], "no restart"),
        ([run("r1", "CANCELED", at=NOW - 55, lived=50)], [AGAIN], "a person canceled run"),
    ],
)
def test_the_stream_is_not_started(streams, recoveries, says: str):
    """A person's decision counts more than a recovery's, and a start that somebody else made is enough."""
    verdict = judged(history(*streams, recoveries=tuple(recoveries)))
    assert not verdict.requests and says in verdict.message


def test_a_person_s_recovery_with_a_restart_does_not_ask_the_strategy():
    again = recovery("c", restart_of="r1", not_before=NOW + 9, parent="b")  # a person repeated a sensor's
    for asked in (recovery("c", restart_of="r1", person=True), again):
        assert judged(history(failed(), recoveries=(asked,))).requests
    found = history(run("r1", "CANCELED"), recoveries=(recovery("c", restart_of="r1", person=True),))
    assert judged(found).requests


def rotating(run_id="r1", attempt=1, **rest):
    return run(run_id, config={"ops": {"x": {"config": {}}}}, tags={TAG_ROTATES: f"{run_id}/{attempt}"}, **rest)


def test_a_long_run_that_asks_for_it_is_continued_while_it_works():
    """Started only after its end, the next run would keep readers waiting for Spark."""
    found = judged(history(rotating()))
    assert found.requests[0].run_key == "rotated/r1/1"
    assert found.requests[0].tags[TAG_CONTINUES] == "r1" and found.requests[0].tags[TAG_STREAM] == "stream"
    assert found.requests[0].tags[TAG_JOB] != STREAM.job  # with the same value it would stay in the queue


def test_a_long_run_is_continued_by_one_run():
    """Each tick until its end sees that it asks."""
    successor = run("r2", "QUEUED", tags={TAG_CONTINUES: "r1"})
    assert not judged(history(successor, rotating())).requests


def test_a_second_attempt_to_rotate_starts_a_second_run():
    """The first successor failed; its launch must not count for the second attempt, which has another key."""
    failed = run("r2", "FAILURE", tags={TAG_CONTINUES: "r1"})
    assert judged(history(failed, rotating(attempt=2))).requests[0].run_key == "rotated/r1/2"


def test_a_run_that_carries_the_request_of_another_is_not_continued():
    """A re-execution of a long run has its tags."""
    again = run("r9", tags={TAG_ROTATES: "r1/1"})
    assert not judged(history(again)).requests
