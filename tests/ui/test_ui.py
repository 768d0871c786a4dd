"""The stream in the hands of a person with a browser: every click that the README tells of is made here.

One story on one cluster, told in order; each test leaves the stream where the next one takes it up. The same over
GraphQL, which is faster and sees more, is in ``tests/dagster/test_operation.py``.
"""

import pytest

from dagster_exactly_once.names import ALL_STREAMS
from dagster_exactly_once.sensors.observation import HEALTH
from platform_assets.constants import FLIGHT_DELAYS
from platform_assets.flights.names import FLIGHT_DELAYS_BY_DAY, STREAM_JOB, TRANSACTIONS
from testkit.client import metadata
from testkit.processes import until
from testkit.story import TERMINATE_S
from tests.ui.pictures import REFUSED

pytestmark = pytest.mark.long

CONFIG = """ops:
  stream_flight_delays:
    config:
      start_from: latest
      report_interval_s: 2.0
"""
#: The sink never starts with it: a record that one broker alone has is not committed.
MISTAKEN = """ops:
  stream_flight_delays:
    config:
      sink_options: {kafka.acks: "1"}
"""
DAYS = ["2013-01-01", "2013-01-02", "2013-01-03"]


@pytest.fixture(scope="module")
def launched(ui, story):
    """A stream that was launched in the launchpad and shows its progress; returns the run."""
    run = ui.launch(STREAM_JOB, CONFIG, picture="launchpad")
    ui.sees("Started")
    story.await_work(run)
    return run


@pytest.fixture(scope="module")
def restarted(ui, dagster, story, launched):
    """The killed run, the recovery, and the new run that the sensors launched. The run died at the worst moment: a
    batch is decided, and none of its transactions committed.
    """
    dagster.arm("decided", "hang")
    dagster.reached("decided")
    dagster.kill_run(launched, tree=True)
    return launched, *story.await_restart(launched)


def test_a_stream_is_launched_from_the_launchpad_and_shows_its_progress(ui, launched):
    """Guards against a launchpad that asks for more than a person knows, and a run page that says nothing."""
    ui.go(f"/runs/{launched}")
    ui.sees("records committed in")
    ui.expect(ui.button("Terminate")).to_be_visible()


def test_a_killed_stream_comes_back_by_itself_and_the_pages_say_how(ui, dagster, story, restarted):
    """kill -9: the sensor's tick, the recovery's steps, the new run with its reason, the audit trail, the output."""
    killed, recovery, new = restarted
    ui.go(f"/runs/{killed}")
    ui.sees("Failure")
    ui.location("sensors/exactly_once_run_failure")
    ui.button("All ticks").click()
    ui.page.get_by_role("menuitem", name="Requested").click()
    ui.sees("2 runs requested")  # the recovery, and the next run of the stream
    ui.shoot("sensor")
    ui.button("View logs").first.click()
    ui.sees(f"Run {killed[:8]} failed (PROCESS-GONE). This sensor requested")
    ui.go(f"/runs/{recovery}")
    ui.sees("Launched by")
    ui.sees("Succeeded (5)")
    for step in ("inspect", "complete", "sweep", "verify", "restart"):
        ui.sees(step)
    ui.page.get_by_placeholder("Filter…").fill("step:complete")
    ui.sees("Completed batch ")
    ui.shoot("recovery")
    ui.go(f"/runs/{new}")
    ui.sees("Started")
    ui.sees("records committed in")
    ui.open_event(TRANSACTIONS, "is not at rest (HEALTH-IN-DOUBT")
    ui.sees("sensor exactly_once_run_failure")
    ui.shoot("transactions")
    story.assert_exactly_once()
    story.assert_one_stream(new)


def test_a_backfill_of_three_days_is_launched_from_the_assets_page(ui, dagster, story, restarted):
    """Guards against a range that becomes a run for each day, or records of the stream a second time."""
    ui.backfill(FLIGHT_DELAYS_BY_DAY, DAYS)
    until("the days", lambda: len(filled(dagster)) == 3, 180, every_s=1.0)
    ui.go(f"/assets/{FLIGHT_DELAYS_BY_DAY}?view=partitions")
    ui.select_days(DAYS)
    ui.sees("3 Partitions Selected")
    ui.sees("Materialized (3)")
    ui.page.get_by_text(DAYS[1], exact=True).first.click()
    ui.sees("records_written")
    ui.shoot("backfill")
    ui.go("/runs?view=backfills")
    ui.sees("3 partitions")
    ui.sees("Success")
    story.assert_exactly_once(backfilled=sum(filled(dagster).values()))


def test_the_checks_are_executed_on_the_assets_page_and_pass(ui, restarted):
    ui.go(f"/assets/{FLIGHT_DELAYS}?view=checks")
    ui.button("Execute all").click()
    ui.sees("Launched run")
    ui.sees("In Progress")
    ui.expect(ui.page.get_by_text("Succeeded", exact=True)).to_have_count(7, timeout=120_000)
    ui.page.get_by_text("no_duplicates_and_no_loss").first.click()
    ui.sees("Every input record appears")
    ui.shoot("checks")


def test_a_sensor_is_switched_off_and_on(ui, dagster):
    """The README sends people to the toggle before they work on a sink by hand."""
    for on, status in ((False, "STOPPED"), (True, "RUNNING")):
        ui.toggle("exactly_once_run_failure", on)
        until(
            status,
            lambda wanted=status: dagster.sensor("exactly_once_run_failure")["sensorState"]["status"] == wanted,
            20,
            0.2,
        )
    ui.go("/automation")
    ui.sees("Standard sensor")  # comes with the switches
    ui.shoot("automation")


def test_the_stream_shows_its_plots_and_terminate_ends_it_as_canceled(ui, dagster, story, restarted):
    *_, run = restarted
    story.feed.trickle()
    story.await_progress(8)
    ui.go(f"/assets/{FLIGHT_DELAYS}")
    ui.button("Plots").click()
    ui.sees("commit_duration_ms")
    ui.shoot("asset")
    ui.go(f"/runs/{run}")
    ui.sees("records committed in")
    ui.shoot("run")
    ui.terminate(run)
    dagster.wait_for(run, "CANCELED", TERMINATE_S)
    ui.sees("Canceled")
    ui.location(f"jobs/{STREAM_JOB}/runs")
    ui.sees("Canceled")
    ui.shoot("runs")
    story.assert_settled()


def test_a_run_that_a_restart_does_not_fix_says_so_on_every_page_on_call_looks_at(ui, dagster, story, restarted):
    """The code on the run's page, the check red on the asset graph, one table of all streams; and no restart."""
    for run in dagster.live(STREAM_JOB):
        story.terminate(run["runId"])
    failed = ui.launch(STREAM_JOB, MISTAKEN)
    dagster.wait_for(failed, "FAILURE", 120)
    ui.go(f"/runs/{failed}")
    ui.sees("Failure")
    ui.sees("RUN_FAILURE")  # the list shows its end
    ui.shoot("failed-run")
    until("the check to be red", lambda: dagster.checks(FLIGHT_DELAYS)[HEALTH]["status"] == "FAILED", 60, every_s=0.5)
    ui.go(f"/assets/{FLIGHT_DELAYS}?view=checks")
    ui.page.get_by_text(HEALTH, exact=True).first.click()
    ui.sees(f"Run {failed[:8]} failed. {REFUSED}: ")
    ui.shoot("red-check")
    ui.go(f"/assets/{FLIGHT_DELAYS}?view=lineage&lineageScope=neighbors&lineageDepth=2")
    ui.shoot("lineage")
    ui.go(f"/assets/{ALL_STREAMS}?view=events")
    ui.sees("Observed")
    ui.shoot("all-streams")
    assert dagster.live(STREAM_JOB) == []


def filled(dagster):
    """The records of each day that a backfill has reported."""
    return {
        e["partition"]: metadata(e)["records_written"]
        for run in dagster.runs("__ASSET_JOB")
        for e in dagster.events(run["runId"])
        if e["__typename"] == "MaterializationEvent"
    }
