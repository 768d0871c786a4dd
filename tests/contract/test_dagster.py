"""What of Dagster is not public, or only its wording, and the Dagster half leans on: private.py's names, the texts and
states of a run that a limit ends, partitions and automation of hours.
"""

import logging
import time
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData
from dagster._daemon.monitoring.run_monitoring import check_run_timeout

from dagster_exactly_once import private
from dagster_exactly_once.runs.history import classify


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


# -- private names ----------------------------------------------------------------------------------------------------


def test_the_tags_of_dagster_have_the_names_that_runs_were_kept_with() -> None:
    """Mishap: runs of before an upgrade are no runs of a stream, or of a backfill, any more."""
    assert private.ASSET_PARTITION_RANGE_START_TAG == "dagster/asset_partition_range_start"
    assert private.ASSET_PARTITION_RANGE_END_TAG == "dagster/asset_partition_range_end"
    assert private.REPOSITORY_LABEL_TAG == ".dagster/repository"
    assert private.RETRY_NUMBER_TAG == "dagster/retry_number"
    assert private.RUN_FAILURE_REASON_TAG == "dagster/failure_reason"


def test_names_and_schedules_are_judged_by_dagsters_own_functions() -> None:
    """Mishap: a stream whose name or schedule Dagster refuses is refused without the stream's name."""
    private.check_valid_name("orders")
    with pytest.raises(dg.DagsterInvalidDefinitionError):
        private.check_valid_name("orders-1")
    assert private.is_valid_cron_schedule("*/5 * * * *") and not private.is_valid_cron_schedule("* * *")


def test_what_selects_assets_is_the_type_that_the_package_names() -> None:
    """Mishap: the code location does not load."""
    made = dg.define_asset_job("j", selection="*")
    assert isinstance(made, private.UnresolvedAssetJobDefinition)


def test_outside_of_a_code_server_nothing_knows_a_location_and_an_instance_knows_its_id(instance) -> None:
    """Mishap: two code locations take each other's runs for their own, or two instances each other's sinks."""
    assert private.loading_location() == ""
    assert private.instance_id(instance) == instance.run_storage.get_run_storage_id() != ""


def test_the_threads_that_evaluate_sensors_and_those_that_may_wait_are_counted_as_the_daemon_counts_them() -> None:
    """Mishap: the streams of a shared instance hold every thread of its sensors, and nobody else's sensor ticks."""
    name, sensors = "exactly_once_run_failure", {"use_threads": True, "num_workers": 8}

    def ticks(location: str, ago_s: float = 0.0, status: InstigatorStatus = InstigatorStatus.RUNNING) -> None:
        target = GrpcServerCodeLocationOrigin("here", 1, location_name=location)
        origin = RemoteRepositoryOrigin(target, "repository").get_instigator_origin(name)
        kind, data = private.InstigatorType.SENSOR, SensorInstigatorData(last_tick_start_timestamp=time.time() - ago_s)
        threaded.add_instigator_state(InstigatorState(origin, kind, status, data))

    with dg.instance_for_test() as plain:
        assert not private.may_hold_a_thread(plain, name)
    with dg.instance_for_test(overrides={"sensors": sensors}) as threaded:
        assert private.may_hold_a_thread(threaded, name)
        ticks("one"), ticks("two"), ticks("gone", 3600), ticks("stopped", status=InstigatorStatus.STOPPED)
        assert private.may_hold_a_thread(threaded, name)
        ticks("three")
        assert not private.may_hold_a_thread(threaded, name), "three ticks are more than a quarter of eight threads"
        assert private.may_hold_a_thread(threaded, "another"), "other sensors are not counted"


def test_an_interrupt_is_told_from_a_mistake_by_the_source_of_the_error() -> None:
    """Mishap: a pod that is moved counts as a fault of the code, and nobody starts the stream again."""
    assert {source.name for source in private.ErrorSource} >= {"INTERRUPT", "USER_CODE_ERROR", "FRAMEWORK_ERROR"}
    assert not issubclass(dg.DagsterExecutionInterruptedError, Exception)


# -- a run that a limit ends ------------------------------------------------------------------------------------------


def test_a_run_over_its_maximum_runtime_is_canceling_and_at_once_failed_while_its_op_works(instance) -> None:
    """Outage: Dagster shows it as a person's request, so the texts alone tell it; its op may still write."""
    run = instance.create_run_for_job(dg.job(name="j")(lambda: None), tags={"dagster/max_runtime": "60"})
    then = (datetime.now(UTC) - timedelta(minutes=5)).timestamp()
    for kind in (dg.DagsterEventType.RUN_STARTING, dg.DagsterEventType.RUN_START):
        event = dg.DagsterEvent(kind.value, "j")
        instance.handle_new_event(dg.EventLogEntry(None, "info", "", run.run_id, then, None, "j", event))
    record = instance.get_run_record_by_id(run.run_id)
    check_run_timeout(instance, record, logging.getLogger(), 0.0)

    assert instance.get_run_by_id(run.run_id).status is dg.DagsterRunStatus.FAILURE  # nothing has answered for the op
    kinds = {dg.DagsterEventType.RUN_CANCELING, dg.DagsterEventType.RUN_FAILURE}
    said = [
        r.event_log_entry.dagster_event.message for r in instance.get_records_for_run(run.run_id, of_type=kinds).records
    ]
    assert said[0].startswith("Canceling ") and "exceeding maximum runtime of 60 seconds" in said[0]
    assert classify(instance, run.run_id).code == "MAX-RUNTIME"


def test_resuming_a_run_is_refused_where_the_launcher_cannot(tmp_path) -> None:
    """Outage: the sample of Dagster's documentation makes an instance that does not load."""
    (tmp_path / "dagster.yaml").write_text("run_monitoring:\n  enabled: true\n  max_resume_run_attempts: 3\n")
    with pytest.raises(Exception, match="max_resume_run_attempts"):
        dg.DagsterInstance.from_config(str(tmp_path))


# -- hours and days ---------------------------------------------------------------------------------------------------

HOURS = dg.HourlyPartitionsDefinition("2026-11-27-00:00")


def requested(condition: dg.AutomationCondition, instance: dg.DagsterInstance) -> list[str]:
    """Which hours of a downstream asset are requested when three of them close late, and the newest in time."""

    @dg.asset(deps=["hours"], partitions_def=HOURS, automation_condition=condition)
    def report() -> None: ...

    definitions = dg.Definitions([dg.AssetSpec("hours", partitions_def=HOURS), report])
    first = dg.evaluate_automation_conditions(definitions, instance, evaluation_time=datetime(2026, 11, 27, 15, 5))
    for hour in (11, 12, 13, 14):
        instance.report_runless_asset_event(dg.AssetMaterialization("hours", partition=f"2026-11-27-{hour}:00"))
    found = dg.evaluate_automation_conditions(
        definitions, instance, cursor=first.cursor, evaluation_time=datetime(2026, 11, 27, 15, 31)
    )
    return sorted(found.get_requested_partitions(dg.AssetKey("report")))


def test_eager_alone_requests_the_newest_hour_and_without_the_latest_window_all_that_have_closed(instance) -> None:
    """Loss downstream: hours close late by the watermark's delay, several at once after a stop."""
    eager = dg.AutomationCondition.eager()
    assert requested(eager, instance) == ["2026-11-27-14:00"]
    every = eager.without(dg.AutomationCondition.in_latest_time_window())
    with dg.DagsterInstance.ephemeral() as other:
        assert requested(every, other) == [f"2026-11-27-{hour}:00" for hour in (11, 12, 13, 14)]


def test_days_of_another_time_zone_load_and_fail_where_their_partitions_are_mapped() -> None:
    """Outage of automation: no load finds it, so the page of hours tells to give a mapping."""
    hours = dg.AssetSpec("hours", partitions_def=HOURS)
    days = dg.DailyPartitionsDefinition("2026-11-01", timezone="America/New_York")

    @dg.asset(deps=[hours], partitions_def=days, automation_condition=dg.AutomationCondition.eager())
    def daily() -> None: ...

    definitions = dg.Definitions([hours, daily])
    assert definitions.resolve_asset_graph().has(dg.AssetKey("daily"))
    with dg.DagsterInstance.ephemeral() as instance:
        with pytest.raises(Exception, match="conditions for daily") as failed:
            dg.evaluate_automation_conditions(definitions, instance, evaluation_time=datetime(2026, 11, 28, 15))
        assert "Timezones UTC and America/New_York don't match" in str(failed.value.__cause__)


def test_the_day_on_which_clocks_go_back_has_25_hours_and_one_of_them_names_its_offset() -> None:
    """Mishap: a name with one form for all hours; the product's hours are in UTC."""
    local = dg.HourlyPartitionsDefinition("2026-10-31-00:00", timezone="America/New_York")
    keys = [k for k in local.get_partition_keys(datetime(2026, 11, 3)) if k.startswith("2026-11-01")]
    assert len(keys) == 25 and "2026-11-01-01:00-0500" in keys
