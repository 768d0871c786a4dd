"""What ended a run, by Dagster's own events; and a run that has ended while its process goes on.

Dagster's run monitoring and its run retries are asked themselves, as the daemon asks them.
"""

from __future__ import annotations

import logging
import time

import dagster as dg
import pytest
from dagster._core.events import RunFailureReason
from dagster._core.execution.retries import auto_reexecution_should_retry_run
from dagster._core.test_utils import create_run_for_test, instance_for_test
from dagster._daemon.monitoring.run_monitoring import check_run_timeout

from dagster_exactly_once import (
    Backfill,
    DeadLetters,
    exactly_once_definitions,
    exactly_once_resources,
    exactly_once_stream,
)
from dagster_exactly_once.private import RETRY_NUMBER_TAG
from dagster_exactly_once.runs.history import classify, read_history
from dagster_exactly_once.runs.operator import alive_of, operator_of, stream_facts
from dagster_exactly_once.runs.process import lacking, outlives, tag_run
from dagster_exactly_once.runs.tags import ENDLESS, TAG_JOB, TAG_STREAM
from dagster_exactly_once.sensors.checkpoint_progress import is_down, with_orphan
from dagster_exactly_once.sensors.observation import calm, trouble
from dagster_exactly_once.sensors.run_failure import verdict
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from exactly_once.inspection.findings import Inspection, Owner
from exactly_once.protocol.records import Claim
from exactly_once.tools.diagnosis import Severity, SinkFacts, Thresholds, health
from testkit.sensor_facts import NOW, STREAM, run

S = dg.DagsterRunStatus
LOG = logging.getLogger(__name__)
LIMIT_S = 90.0


@pytest.fixture
def started(instance, report):
    """Start a run of the stream, long ago, whose op has begun in this process."""

    def started(**tags):
        tags = {TAG_STREAM: "stream", **tags}
        run_id = create_run_for_test(instance, job_name="stream", status=S.STARTING, tags=tags).run_id
        report(run_id, "PIPELINE_START", ago_s=1_000.0)
        tag_run(instance, run_id, "s")
        report(run_id, "STEP_START", "x")
        return run_id

    return started


def monitor(instance, run_id):
    """One look of the daemon at the run."""
    check_run_timeout(instance, instance.get_run_record_by_id(run_id), LOG, LIMIT_S)


def terminates(run_launcher, instance, monkeypatch):
    """Have the launcher do what Dagster's own does: it says that it sends a request, and that it is sent."""

    def terminate(run_id):
        instance.report_run_canceling(instance.get_run_by_id(run_id))
        return True

    monkeypatch.setattr(run_launcher, "terminate", terminate)


# -- the maximum runtime of an instance ------------------------------------------------------------------------------


@pytest.mark.parametrize("reached", [True, False])
def test_a_run_that_dagster_s_run_monitoring_ended_is_started_again(instance, report, started, monkeypatch, reached):
    """Mishap: "after a person had asked it to end": the stream stayed down, and nobody was told."""
    if reached:  # else the launcher cannot reach the process, and Dagster marks the run by force
        terminates(instance.run_launcher, instance, monkeypatch)
    failed = started()
    monitor(instance, failed)
    report(failed, "STEP_FAILURE", "x")  # the op ends after the run
    why = classify(instance, failed)
    assert (why.code, why.heals, why.unwanted) == ("MAX-RUNTIME", True, False) and "90 s" in why.sentence
    found = verdict(STREAM, read_history(instance, STREAM), RestartPolicy(), WatchPolicy())
    assert found.requests[0].tags["exactly_once/restart"].startswith("1 of")


def test_a_run_that_a_person_asked_to_end_stays_down_whatever_comes_after(instance, started):
    """Its process died over it, or Dagster gave it up: a person's decision all the same."""
    asked = started()
    instance.report_run_canceling(instance.get_run_by_id(asked))
    instance.report_run_failed(instance.get_run_by_id(asked), "Exceeded maximum runtime of 90 seconds.")
    assert classify(instance, asked).unwanted
    assert not verdict(STREAM, read_history(instance, STREAM), RestartPolicy(), WatchPolicy()).requests


# -- the tags of an endless run --------------------------------------------------------------------------------------


@exactly_once_stream(
    source="orders", outputs=["paid_orders"], dead_letters=DeadLetters("dead"), backfill=Backfill.daily("2026-01-01")
)
def paid(events):
    return events


RESOURCES = exactly_once_resources(
    work_dir="spark", checkpoints="s3://checkpoints", kafka={"bootstrap_servers": "127.0.0.1:1"}
)


def jobs():
    found = exactly_once_definitions(paid, resources=RESOURCES).get_repository_def().get_all_jobs()
    return {job.name: job.tags for job in found}


def test_no_instance_ends_or_retries_a_run_of_the_stream_s_job(instance, started):
    tags = jobs()["paid_stream"]
    kept = started(**tags)
    monitor(instance, kept)
    assert instance.get_run_by_id(kept).status is S.STARTED


@pytest.mark.quick("None-paid_stream", "RunFailureReason.STEP_FAILURE-paid_backfill")
@pytest.mark.parametrize(
    "job", ["paid_stream", "paid_backfill", "paid_resend", "exactly_once_recovery", "exactly_once_end_hanging"]
)
@pytest.mark.parametrize("reason", [RunFailureReason.STEP_FAILURE, None])
def test_no_instance_retries_a_run_that_writes(job, reason):
    """Mishap: one bad record was four failed runs and four notices, all of which say that a restart does not help."""
    with instance_for_test(overrides={"run_retries": {"enabled": True, "max_retries": 3}}) as retrying:
        failed = create_run_for_test(retrying, job_name=job, status=S.FAILURE, tags=jobs()[job])
        assert not auto_reexecution_should_retry_run(retrying, failed, reason)
        bare = create_run_for_test(retrying, job_name=job, status=S.FAILURE)
        assert auto_reexecution_should_retry_run(retrying, bare, reason)  # what Dagster does without them


def test_a_run_that_materialize_started_gets_the_tags_that_it_lacks_and_keeps_a_person_s(instance, started):
    """The button starts Dagster's own job, which has none of the stream's tags."""
    bare = instance.get_run_by_id(started())
    assert lacking(bare, {**ENDLESS, TAG_JOB: "stream"}) == {**ENDLESS, TAG_JOB: "stream"}
    own = instance.get_run_by_id(started(**{"dagster/max_runtime": "3600"}))
    assert "dagster/max_runtime" not in lacking(own, ENDLESS)


def test_a_retry_that_the_instance_launched_is_no_person_s():
    """It would begin a new count of restarts, as if somebody had mended something."""
    assert not run("r2", parent="r1", tags={RETRY_NUMBER_TAG: "1"}).by_person
    assert run("r2", parent="r1").by_person


# -- a run that has ended, and its process has not -------------------------------------------------------------------


def owner_of(instance, run_id):
    claim = Claim(3, "q", int(time.time() * 1000), "stream", "vm", 4711, operator=operator_of(instance, run_id))
    return Owner(claim, alive_of(instance)(claim))


@pytest.fixture
def force(report):
    """Have Dagster show a run as over, so many seconds ago, whatever its process does."""
    return lambda run_id, ago_s=60.0: report(run_id, "PIPELINE_CANCELED", ago_s=ago_s)


def test_the_driver_of_a_run_that_was_ended_by_force_lives_until_its_op_ends(instance, report, started, force):
    """Mishap: a recovery and a second run began beside an op that still wrote, since Dagster showed its run as over."""
    working = started()
    force(working)
    assert owner_of(instance, working).works and outlives(instance, instance.get_run_by_id(working))
    report(working, "STEP_FAILURE", "x")  # this process goes on, as that of a run within a test does
    assert owner_of(instance, working).works is False


def test_a_run_that_has_ended_before_its_op_began_is_over(instance):
    never = create_run_for_test(instance, status=S.CANCELED).run_id
    tag_run(instance, never, "s")
    assert owner_of(instance, never).works is False


def facts(instance, owner, lag=5):
    found = read_history(instance, STREAM)
    known = stream_facts(instance, STREAM, found, owner, lag=lag, idle_s=3.0)
    return SinkFacts(Inspection("s", owner, checked_ms=int(NOW * 1000)), stream=known), found


@pytest.mark.parametrize(("deleted", "says"), [(True, "was deleted from this"), (False, "is CANCELED")])
def test_a_driver_whose_run_has_gone_is_named_with_what_became_of_its_run(instance, started, force, deleted, says):
    """Mishap: "that driver is not a run of this Dagster instance", of its own run; or "stopped", of one that writes."""
    run_id = started()
    force(run_id)
    owner = owner_of(instance, run_id)
    if deleted:
        instance.delete_run(run_id)
        owner = Owner(owner.claim, True)  # as the host's process table has it
    found, _ = facts(instance, owner)
    state = health(found)
    assert (state.code, state.severity) == ("HEALTH-ORPHANED", Severity.WARN)
    assert f"run {run_id[:8]} {says}" in state.sentence and not calm(state)


def test_a_run_that_ends_now_is_no_orphan(instance, started, force):
    """Terminate takes up to 15 s, in which the query and its session end."""
    run_id = started()
    force(run_id, ago_s=1.0)
    assert health(facts(instance, owner_of(instance, run_id))[0]).code == "HEALTH-STOPPED"


def test_a_stream_whose_run_was_deleted_needs_a_person_once_its_driver_has_ended_too(instance, started, force):
    """Mishap: killed, it stayed down, and its notice was resolved: "no longer needs a person"."""
    first, run_id = started(), started()
    force(first)
    claim = owner_of(instance, run_id).claim
    instance.delete_run(run_id)
    seen, at = facts(instance, Owner(claim, True))
    _, memory = with_orphan(seen, at, {})
    gone, at = facts(instance, Owner(claim, False))
    assert trouble(gone, Thresholds()) is None  # without the tick before: a person may have ended it, then deleted it
    gone, memory = with_orphan(gone, at, memory)
    wrong = trouble(gone, Thresholds())
    assert wrong is not None and (wrong.code, wrong.severity) == ("HEALTH-STOPPED", Severity.ERROR)
    assert with_orphan(gone, at, memory)[1] == memory  # until the stream runs again
    started()
    again, at = facts(instance, Owner(claim, False))
    assert with_orphan(again, at, memory)[1] == {}


def test_a_person_who_ended_a_run_by_force_and_killed_its_process_is_not_woken(instance, started, force):
    run_id = started()
    force(run_id)
    owner = owner_of(instance, run_id)
    seen, at = facts(instance, owner)
    assert with_orphan(seen, at, {})[1] == {}
    assert calm(health(facts(instance, Owner(owner.claim, False))[0]))


@pytest.mark.parametrize(("lag", "works", "down"), [(5, False, True), (0, False, False), (5, True, False)])
def test_trouble_that_gives_way_to_a_stopped_stream_is_not_over(instance, report, started, force, lag, works, down):
    """LAGGING or STALLED end when the driver dies: a page that closes itself then hides that the stream is down."""
    run_id = started()
    if not works:
        report(run_id, "STEP_FAILURE", "x")
        force(run_id)
    found, _ = facts(instance, owner_of(instance, run_id), lag)
    assert is_down(found, health(found)) is down
