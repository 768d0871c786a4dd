"""The stream as it is operated, over the UI's own interface: launched, watched, killed, recovered and started again by
the sensors, terminated, its missing days filled, its checks read, its sensors switched.

One story on one cluster, told in order; each test leaves the stream where the next one takes it up.
"""

import pytest

from dagster_exactly_once.names import CHECKS_JOB, RECOVERY_JOB, RECOVERY_OP
from dagster_exactly_once.resources.transactions import TransactionAdmin
from exactly_once.checkpoint import read_checkpoint
from exactly_once.commitlog.commit_log import read_log
from platform_assets.constants import FLIGHT_DELAYS
from platform_assets.flights.names import FLIGHT_DELAYS_BY_DAY, SINK_ID, STREAM_JOB, TRANSACTIONS
from platform_assets.flights.streams import flight_delays
from platform_assets.report.reader import read_committed
from testkit.flights import OUTPUTS
from testkit.processes import until
from testkit.story import BEFORE, PATIENCE_S, Story
from testkit.webserver import Dagster

pytestmark = pytest.mark.long

DAYS = ["2013-01-01", "2013-01-02", "2013-01-03"]


@pytest.fixture(scope="module")
def dagster(site):
    with Dagster(site) as running:
        yield running


@pytest.fixture(scope="module")
def story(site, dagster):
    with Story(site, dagster, BEFORE) as told:
        yield told


@pytest.fixture(scope="module")
def restarted(story, dagster):
    """A stream that was launched by a person, killed, recovered and started again: the ids of these three runs."""
    run = story.start()
    until("a report", lambda: dagster.reported(run, FLIGHT_DELAYS), PATIENCE_S, every_s=0.5)
    dagster.kill_run(run)
    return run, *story.await_restart(run)


@pytest.fixture
def at_rest(dagster, restarted):
    """No run of the stream is live, whatever the test before left."""
    until("the end of all recoveries", lambda: not dagster.live(RECOVERY_JOB), PATIENCE_S, every_s=0.5)
    for run in dagster.live(STREAM_JOB):
        dagster.terminate(run["runId"])
        dagster.wait_for(run["runId"], "CANCELED", PATIENCE_S)


def test_a_killed_run_is_recovered_and_started_again_by_the_sensors(story, restarted):
    """kill -9 of the run's process. Nobody touches anything; every run says why it is there."""
    story.assert_restarted(*restarted)


def test_three_days_are_filled_by_one_run_and_every_departure_is_there_once(story, dagster, restarted):
    """What came before the stream's first start is the backfill's; launched on the asset's page for a range."""
    backfill = dagster.backfill(FLIGHT_DELAYS_BY_DAY, DAYS)
    until("the backfill's run", lambda: dagster.backfill_status(backfill)["runs"], PATIENCE_S, every_s=0.5)
    (run,) = dagster.backfill_status(backfill)["runs"]
    dagster.wait_for(run["runId"], "SUCCESS", PATIENCE_S)
    events = [e for e in dagster.events(run["runId"]) if e["__typename"] == "MaterializationEvent"]
    assert sorted(e["partition"] for e in events) == DAYS
    written = [m["records_written"] for m in dagster.materialized(run["runId"], FLIGHT_DELAYS_BY_DAY)]
    story.assert_exactly_once(backfilled=sum(written))


def test_the_checks_of_the_output_pass_on_their_own(dagster, restarted):
    for job in (CHECKS_JOB, f"{flight_delays.name}_verify"):
        run = dagster.launch(job)
        dagster.wait_for(run, "SUCCESS", PATIENCE_S)
    found = dagster.checks(FLIGHT_DELAYS)
    assert len(found) == 7  # health comes from the sensor
    assert {name: c["status"] for name, c in found.items()} == dict.fromkeys(found, "SUCCEEDED"), found


def test_terminate_ends_the_stream_as_canceled_and_nothing_starts_it_again(site, story, dagster, restarted):
    """CANCELED is a person's decision: a sensor that restarted it would be fought by hand, at night."""
    *_, run = restarted
    second = dagster.launch(STREAM_JOB, story.config)
    until("the second run to wait", lambda: dagster.status(second) == "QUEUED", 15, every_s=0.2)
    dagster.terminate(second)
    dagster.wait_for(second, "CANCELED", 15)
    story.feed.trickle()
    story.await_progress(1)

    took_s = story.terminate(run)
    print(f"CANCELED after {took_s:.1f} s")
    assert TransactionAdmin(bootstrap_servers=site.bootstrap_servers).list(SINK_ID) == []
    for sensor, says in (("exactly_once_run_failure", "ended as CANCELED"), ("exactly_once_liveness", "is CANCELED")):
        until(f"{sensor} to see it", lambda s=sensor, w=says: w in dagster.said(s)[0], 30, every_s=0.5)
    assert dagster.live(STREAM_JOB) == []


def test_a_sensor_that_is_switched_off_ticks_no_more_until_it_is_switched_on(dagster):
    """The README sends people to the toggle before they work on a sink by hand."""
    dagster.switch("exactly_once_checkpoint_progress", on=False)
    before = dagster.sensor("exactly_once_checkpoint_progress")["sensorState"]["ticks"][0]["timestamp"]
    dagster.switch("exactly_once_checkpoint_progress", on=True)

    def says() -> bool:
        newest = dagster.sensor("exactly_once_checkpoint_progress")["sensorState"]["ticks"][0]
        return newest["timestamp"] > before and "HEALTH-STOPPED" in (newest["skipReason"] or "")

    until("a new tick to speak", says, 40, every_s=0.3)


def recovery(**config):
    """Run configuration of a recovery by hand, which names its stream."""
    return {"ops": {RECOVERY_OP: {"config": {"stream": flight_delays.name, "dry_run": False, **config}}}}


def test_a_second_recovery_finds_nothing(dagster, at_rest):
    run = dagster.launch(RECOVERY_JOB, recovery())
    dagster.wait_for(run, "SUCCESS", PATIENCE_S)
    assert "nothing to complete" in dagster.recoveries(TRANSACTIONS)[0]["recovery_sentence"]


def test_a_recovery_leaves_a_live_stream_alone_unless_it_is_told_to_take_over(story, dagster, at_rest):
    run = story.start()
    polite = dagster.launch(RECOVERY_JOB, recovery())
    dagster.wait_for(polite, "FAILURE", PATIENCE_S)
    assert f"Run {run}" in str(dagster.events(polite))
    assert dagster.status(run) == "STARTED"

    rude = dagster.launch(RECOVERY_JOB, recovery(take_over=True))
    dagster.wait_for(rude, "SUCCESS", PATIENCE_S)
    until("the fenced run's end", lambda: dagster.status(run) == "FAILURE", PATIENCE_S, every_s=0.5)
    (failure,) = [e for e in dagster.events(run) if e["__typename"] == "ExecutionStepFailureEvent"]
    told = {m["label"]: m.get("text", m.get("boolValue")) for m in failure["failureMetadata"]["metadataEntries"]}
    assert told["code"] == "EO-FENCED" and told["restart_heals"] is False and told["way_out"]


def test_the_reports_of_runs_add_up_to_what_was_decided(site, story, dagster, at_rest):
    """A batch that is decided while its run stops is reported by the next one, once. What a run was about to report
    when it was killed is in the commit log only.
    """
    before = read_checkpoint(story.checkpoint).last_commit
    runs = []
    for _ in range(2):
        runs.append(story.start())
        story.terminate(runs[-1])
    after = read_checkpoint(story.checkpoint).last_commit
    told = [m for run in runs for m in dagster.reported(run, FLIGHT_DELAYS)]
    settled = [d.records for d in read_log(site.connection, SINK_ID).decisions if before < d.batch_id <= after]
    assert sum(m["records_committed"] for m in told) == sum(settled) > 0
    assert any(m.get("commit_duration_ms", 0) > 0 for m in told)


def test_the_total_is_what_readers_see_after_a_kill_a_recovery_and_restarts(site, story, dagster, at_rest):
    """Summed up from reports it would lack what a killed run did not report, and have twice what two runs did."""
    marked = read_checkpoint(story.checkpoint).last_commit
    run = story.start()
    story.terminate(run)
    last = read_checkpoint(story.checkpoint).last_commit
    totals = [max(m["records_total"] for m in dagster.reported(run, topic)) for topic in OUTPUTS]
    assert last > marked
    shown = [dagster.observations(topic)[0]["dagster/row_count"] for topic in OUTPUTS]
    assert shown == totals

    unmarked = sum(d.records for d in read_log(site.connection, SINK_ID).decisions if d.batch_id > last)
    past = sum(d.records for d in read_log(site.connection, flight_delays.backfill_spec.sink_id).decisions)
    visible = [sum(1 for _ in read_committed(site.connection, topic)) for topic in OUTPUTS]
    assert sum(totals) + unmarked + past == sum(visible)
