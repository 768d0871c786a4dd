"""Dagster's real daemon over a run that is killed at its start: the sensors see it, recover the sink and start the
stream again. What a run leaves that is killed in the middle of its work is in test_operation.py.
"""

import dagster as dg
import pytest

from dagster_exactly_once.runs.history import classify
from dagster_exactly_once.runs.tags import (
    ENDLESS,
    TAG_ATTEMPT,
    TAG_CAUSE,
    TAG_CONTINUES,
    TAG_PID,
    TAG_READY,
    TAG_RESTART_OF,
)
from exactly_once.commitlog.commit_log import read_log
from platform_assets.constants import FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED
from platform_assets.flights.names import SINK_ID, STREAM_JOB
from testkit.processes import until
from testkit.story import PATIENCE_S, Story, stream_config
from testkit.webserver import Dagster


@pytest.fixture(scope="module")
def dagster(site):
    with Dagster(site) as running:
        yield running


@pytest.fixture(scope="module")
def story(site, dagster):
    with Story(site, dagster) as told:
        yield told


@pytest.mark.long
def test_a_run_that_is_killed_at_its_start_is_recovered_and_started_again_by_the_sensors(story, dagster):
    """kill -9 of the run's process before it has a stream. Nobody touches anything; every departure comes out once."""
    story.feed.send(500)
    killed = dagster.launch(STREAM_JOB, story.config)
    dagster.kill_run(killed)
    story.feed.trickle()

    recovery, new = story.await_restart(killed)

    tags = dagster.tags(new)
    owner = read_log(story.site.connection, SINK_ID).owner
    driver = f"{owner.pid}@{owner.pid_started:.2f}"
    assert (tags[TAG_PID], new) == (driver, owner.operator.rpartition("/")[2])  # what a claim names is found
    story.assert_restarted(killed, recovery, new)


@pytest.mark.long
def test_a_run_that_materialize_started_is_recovered_and_started_again_too(story, dagster):
    """The most natural button starts Dagster's own job: a stream that nobody supervises would be down until morning."""
    for run in dagster.live(STREAM_JOB):
        story.terminate(run["runId"])
    clicked = dagster.materialize(FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED)
    story.await_work(clicked)
    assert ENDLESS.items() <= dagster.tags(clicked).items()
    dagster.kill_run(clicked)

    recovery, new = story.await_restart(clicked)

    dagster.wait_for(recovery, "SUCCESS", PATIENCE_S)
    assert dagster.tags(new)[TAG_RESTART_OF] == clicked
    story.assert_one_stream(new)
    story.assert_exactly_once()


@pytest.mark.long
def test_a_run_that_a_limit_for_its_runtime_ended_is_started_again_once_its_op_has_ended(story, dagster):
    """Dagster shows it as FAILURE at once, and as if a person had asked for it: the stream stayed down, in silence."""
    for run in dagster.live(STREAM_JOB):
        story.terminate(run["runId"])
    ended = story.start()
    with dg.DagsterInstance.from_config(str(story.site.home)) as instance:
        instance.add_run_tags(ended, {"dagster/max_runtime": "1"})
        _, new = story.await_restart(ended)
        assert classify(instance, ended).code == "MAX-RUNTIME"
    assert dagster.tags(new)["dagster/max_runtime"] == "0" and dagster.tags(new)[TAG_ATTEMPT] == "1"
    story.assert_one_stream(new)
    story.assert_exactly_once()


@pytest.mark.long
def test_a_long_run_is_continued_by_the_next_one_without_a_gap(story, dagster):
    """A run that lives for months fills its page with events, and never sees the code that is deployed meanwhile. Ended
    before the next one has its session, it would keep readers waiting for the start of Spark.
    """
    for run in dagster.live(STREAM_JOB):
        story.terminate(run["runId"])
    old = dagster.launch(STREAM_JOB, stream_config(rotate_after_h=90 / 3600))
    story.feed.trickle()
    until("the next run", lambda: dagster.runs(STREAM_JOB)[0]["runId"] != old, PATIENCE_S, every_s=0.3)
    new = dagster.runs(STREAM_JOB)[0]["runId"]
    assert dagster.tags(new)[TAG_CONTINUES] == old and old[:8] in dagster.tags(new)[TAG_CAUSE]
    until("the next run to be ready", lambda: dagster.tags(new).get(TAG_READY) == new, PATIENCE_S, every_s=0.3)
    dagster.wait_for(old, "SUCCESS", PATIENCE_S)
    story.await_work(new)
    moments = sorted(d.decided_ms for d in read_log(story.site.connection, SINK_ID).decisions)
    ended_ms = next(r for r in dagster.runs(STREAM_JOB) if r["runId"] == old)["endTime"] * 1000
    before, after = [m for m in moments if m <= ended_ms], [m for m in moments if m > ended_ms]
    print(f"between the last decision of the old run and the first of the new one: {after[0] - before[-1]:.0f} ms")
    story.assert_exactly_once()
    for run in dagster.live(STREAM_JOB):
        story.terminate(run["runId"])
