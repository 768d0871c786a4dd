"""What may die beside the stream: the web server, the code location, the code server with the run in it, the daemon in
the middle of a recovery, the brokers for a minute; and what may be there twice: the daemon.

One story on one cluster, told in order, with the intervals of the sensors as they are delivered. After each: the output
exactly once, nothing open, one live run of the stream.
"""

import time

import pytest
import yaml

from dagster_exactly_once.names import RECOVERY_JOB
from platform_assets.flights.names import STREAM_JOB
from testkit import broker as brokers
from testkit.processes import until
from testkit.site import Site
from testkit.story import BACK_S, Story
from testkit.webserver import Dagster

pytestmark = pytest.mark.long

SENSORS = (
    "exactly_once_checkpoint_progress",
    "exactly_once_stale_transactions",
    "exactly_once_run_failure",
    "exactly_once_liveness",
)

#: How long the brokers are away.
OUTAGE_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """A broker of this module's own: one test stops it."""
    with brokers.test_broker(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def story(broker, tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("site"), broker.bootstrap_servers)
    with Dagster(site) as dagster, Story(site, dagster) as told:
        told.feed.send(100)
        yield told


@pytest.fixture
def live(story):
    """The one live run of the stream; started by hand when the test before left none."""
    runs = story.dagster.live(STREAM_JOB)
    run = runs[0]["runId"] if runs else story.start()
    story.feed.trickle()
    story.await_progress(1)
    return run


def test_the_web_server_is_killed_and_the_stream_goes_on(story, live):
    """The UI is a window: what it shows does not depend on it."""
    story.dagster.kill("web")
    story.await_progress()
    story.dagster.start("web")
    until("the web server", story.dagster.answers, 120, every_s=0.5)
    story.assert_one_stream(live)
    story.assert_exactly_once()


def test_the_code_location_is_reloaded_and_the_run_goes_on_and_can_be_terminated(story, live):
    """A reload replaces the process that launched the run; a stream that nobody could end any more would be the price
    of each deployment.
    """
    story.dagster.reload()
    story.await_progress()
    story.assert_one_stream(live)
    story.terminate(live)
    assert story.dagster.live(STREAM_JOB) == []
    story.assert_settled()


def test_the_code_server_dies_with_the_run_and_the_stream_comes_back(story, live):
    """No process is left to report the run: Dagster would show it as STARTED forever, and its pool as taken."""
    story.dagster.kill("code")
    story.dagster.start("code")
    recovery, new = story.await_restart(live)
    told = f"Run {live[:8]} of {STREAM_JOB} (STARTED): its process is gone. "
    assert any(told in said and "reported that" in said for said in story.dagster.said("exactly_once_liveness"))
    story.dagster.wait_for(recovery, "SUCCESS", 10)
    story.assert_one_stream(new)
    story.assert_exactly_once()


def test_the_daemon_dies_in_the_middle_of_a_recovery_and_finishes_the_story_when_it_is_back(story, live):
    """The recovery has committed one part of a decided batch: the next one must commit the rest, and only the rest."""
    story.dagster.arm("decided", "hang")
    story.dagster.reached("decided")
    story.dagster.arm("some-ended", "sleep 20")
    story.dagster.kill_run(live, tree=True)
    story.dagster.reached("some-ended", BACK_S)

    story.dagster.kill("daemon")
    assert len(story.dagster.live(RECOVERY_JOB)) == 1
    story.dagster.start("daemon")
    recovery, new = story.await_restart(live)

    story.dagster.wait_for(recovery, "SUCCESS", 10)
    assert len(story.recoveries(live)) == 1
    story.assert_one_stream(new)
    story.assert_exactly_once()


def test_two_daemons_by_mistake_ask_for_one_recovery_and_one_stream(story, live):
    """Two machines that each believe to be the one: both see the failure at the same moment."""
    start_second_daemon(story)
    try:
        until("both to work", lambda: two_daemons(story.dagster), 90, every_s=0.5)
        story.dagster.kill_run(live)
        _, new = story.await_restart(live)
        story.await_progress(5)
        assert len(story.recoveries(live)) == 1
        since = [r["runId"] for r in story.dagster.runs(STREAM_JOB, after=live)]
        assert since == [new], "another stream was started beside it, or queued"
        story.assert_one_stream(new)
    finally:
        story.dagster.kill("second daemon")
    story.assert_exactly_once()


def test_a_minute_without_brokers_is_told_by_the_sensors_and_starts_no_storm(story, broker, live):
    """Sensors that request recoveries that cannot run would fill the queue with them."""
    story.feed.pause()
    before = len(story.dagster.runs(RECOVERY_JOB))
    broker.kill()
    gone = time.time()
    try:
        for sensor in SENSORS[:2]:
            until(f"{sensor} to say so", lambda s=sensor: told_since(story.dagster, s, gone), OUTAGE_S, every_s=1.0)
        until("the end of the outage", lambda: time.time() - gone >= OUTAGE_S, OUTAGE_S + 5, every_s=1.0)
    finally:
        broker.restart()
    assert len(story.dagster.runs(RECOVERY_JOB)) - before <= 3

    story.feed.trickle()
    until("new batches", lambda: story.progressed_since(gone), BACK_S, every_s=1.0)
    until("the end of all recoveries", lambda: not story.dagster.live(RECOVERY_JOB), 60, every_s=0.5)
    (run,) = story.dagster.live(STREAM_JOB)
    story.assert_one_stream(run["runId"])
    story.assert_exactly_once()


def start_second_daemon(story):
    """Start a daemon on the same storage whose run queue rests. Two queues now and then launch a run twice (Dagster
    1.13.29): the second process ends, and the code server takes that for the end of the run, whose first one works on.
    """
    settings = yaml.safe_load((story.site.home / "dagster.yaml").read_text())
    settings["storage"] = {"sqlite": {"base_dir": str(story.site.home)}}
    settings["run_coordinator"]["config"]["dequeue_interval_seconds"] = 3600
    home = story.site.folder / "second home"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text(yaml.safe_dump(settings))
    mine = story.dagster.env["DAGSTER_HOME"]
    story.dagster.env["DAGSTER_HOME"] = str(home)
    story.dagster.start("second daemon", "daemon")
    story.dagster.env["DAGSTER_HOME"] = mine


def two_daemons(dagster):
    """Whether both look at sensors: each of them then sees the other one's heartbeat, and says so after 30 s. Ticks are
    no sign: a sensor is due once, for whoever comes first.
    """
    logs = (dagster.log(name).read_text() for name in ("daemon", "second daemon"))
    return any("Another SENSOR daemon is still sending heartbeats" in log for log in logs)


def told_since(dagster, sensor, moment):
    """Whether a tick since then said that the brokers do not answer, without failing itself."""
    ticks = [t for t in dagster.sensor(sensor)["sensorState"]["ticks"] if t["timestamp"] > moment]
    assert all(t["status"] != "FAILURE" for t in ticks), ticks
    return any("EO-" in (t["skipReason"] or "") and "This sensor did nothing" in t["skipReason"] for t in ticks)


def test_in_the_end_nothing_is_left_open(story, live):
    story.assert_exactly_once()
    story.terminate(live)
    story.assert_settled()
    assert story.dagster.live(STREAM_JOB) == []
