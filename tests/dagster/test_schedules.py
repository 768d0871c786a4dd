"""What happens by the clock: evaluated on a real instance, without brokers where the question is Dagster's own."""

import socket

import dagster as dg
import pytest

from dagster_exactly_once.backfill import schedule as schedules
from dagster_exactly_once.backfill.asset import days_of
from dagster_exactly_once.backfill.days import NoBoundary
from dagster_exactly_once.checks.definitions import checks_of
from dagster_exactly_once.checks.schedule import due
from dagster_exactly_once.names import CHECKS_JOB
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.tags import TAG_HOST, TAG_MACHINE, TAG_PID, TAG_STREAM
from exactly_once.coordinator.machine import this_machine
from platform_assets.definitions import defs
from platform_assets.flights.names import BACKFILL_JOB, BACKFILL_OP, FLIGHT_DELAYS_BY_DAY, STREAM_JOB, STREAM_OP
from platform_assets.flights.streams import delay_by_hour, flight_delays

MONTH = {"dagster/asset_partition_range_start": "2013-01-01", "dagster/asset_partition_range_end": "2013-01-31"}


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture(autouse=True)
def input_to_fill(monkeypatch):
    """There is input before the stream's start, whatever the day."""
    monkeypatch.setattr(schedules, "_nothing_before_the_stream", lambda stream, kafka, checkpoints, day: False)


def tick(instance):
    kafka = KafkaTransactionalProducerFactory(bootstrap_servers="127.0.0.1:1")
    return schedules.missing_days(flight_delays, instance, kafka, CheckpointReader(root="/nowhere"))


def materialize(instance, *days):
    for day in days:
        instance.report_runless_asset_event(dg.AssetMaterialization(FLIGHT_DELAYS_BY_DAY, partition=day))


def run(instance, status, tags=None, **more):
    instance.add_run(dg.DagsterRun(job_name=BACKFILL_JOB, status=status, tags=tags or {}, **more))


def test_the_oldest_missing_days_are_requested_as_one_run(instance):
    """One start of Spark for a month of days, not thirty-one."""
    asked = tick(instance)
    assert isinstance(asked, dg.RunRequest) and asked.tags == MONTH
    materialize(instance, "2013-01-01", "2013-01-02", "2013-01-04")
    assert tick(instance).tags == {
        "dagster/asset_partition_range_start": "2013-01-03",
        "dagster/asset_partition_range_end": "2013-01-03",
    }


def test_nothing_is_requested_when_no_day_is_missing(instance):
    materialize(instance, *days_of(flight_delays).get_partition_keys())
    assert tick(instance).skip_message == "No day is missing."


@pytest.mark.parametrize("status", ["NOT_STARTED", "STARTING", "STARTED", "CANCELING"])
def test_nothing_is_requested_while_a_backfill_is_in_progress(status, instance):
    """Guards against two runs for the same days: one would fence the other."""
    run(instance, dg.DagsterRunStatus[status])
    assert "is filling days" in tick(instance).skip_message


def test_a_backfill_that_a_person_launched_counts_too(instance):
    """A run from the asset's page has Dagster's own job; its selection says what it works on."""
    selection = {dg.AssetKey(FLIGHT_DELAYS_BY_DAY)}
    instance.add_run(
        dg.DagsterRun(job_name="__ASSET_JOB", status=dg.DagsterRunStatus.STARTED, asset_selection=selection)
    )
    assert "is filling days" in tick(instance).skip_message


def test_a_run_whose_process_was_killed_does_not_stop_the_filling(instance):
    """Dagster calls it STARTED forever when its launcher died with it, and it holds the pool."""
    gone = {TAG_HOST: socket.gethostname(), TAG_MACHINE: this_machine(), TAG_PID: "999999999@1.0"}
    run(instance, dg.DagsterRunStatus.STARTED, gone)
    assert isinstance(tick(instance), dg.RunRequest)
    assert [r.status for r in instance.get_runs()] == [dg.DagsterRunStatus.FAILURE]


def test_a_range_that_failed_three_times_in_a_row_waits_for_a_person(instance):
    """Guards against a run every ten minutes for a year, each failing for the same reason."""
    for _ in range(schedules.MOST_FAILURES - 1):
        run(instance, dg.DagsterRunStatus.FAILURE, MONTH)
    assert isinstance(tick(instance), dg.RunRequest)
    run(instance, dg.DagsterRunStatus.FAILURE, MONTH)
    assert "failed 3 times in a row" in tick(instance).skip_message
    run(instance, dg.DagsterRunStatus.SUCCESS, MONTH)  # by hand
    assert isinstance(tick(instance), dg.RunRequest)


def test_days_that_the_stream_owns_are_not_requested(instance, monkeypatch):
    monkeypatch.setattr(schedules, "_nothing_before_the_stream", lambda stream, kafka, checkpoints, day: True)
    assert "The live stream owns all input since 2013-01-01" in tick(instance).skip_message


def test_before_the_streams_first_start_the_tick_says_so(instance, monkeypatch):
    def refuse(stream, kafka, checkpoints, day):
        raise NoBoundary("the stream has not started yet", "Start it once")

    monkeypatch.setattr(schedules, "_nothing_before_the_stream", refuse)
    assert tick(instance).skip_message.startswith("EO-BACKFILL-EARLY: the stream has not started yet")


def test_brokers_that_do_not_answer_are_named_by_the_tick(instance, monkeypatch):
    """A tick that raises turns red and says nothing; one that skips says what is wrong and tries again."""
    monkeypatch.undo()
    monkeypatch.setattr(schedules, "TICK_BUDGET_S", 1.0)
    monkeypatch.setattr("dagster_exactly_once.resources.location.READ_BUDGET_S", 1.0)
    assert tick(instance).skip_message.startswith("EO-UNREACHABLE")


def test_the_checks_run_by_themselves_and_filling_days_is_for_a_person_to_turn_on():
    repository = defs.get_repository_def()
    found = {s.name: s for s in repository.schedule_defs}
    assert found["exactly_once_checks_every_ten_minutes"].default_status is dg.DefaultScheduleStatus.RUNNING
    assert found["flight_delays_fill_missing_days"].default_status is dg.DefaultScheduleStatus.STOPPED
    assert repository.get_job(BACKFILL_JOB).partitions_def == days_of(flight_delays)


def test_the_checks_of_a_stream_that_never_ran_are_not_evaluated(instance):
    """A fresh installation was red before its first stream had been launched."""
    streams = [flight_delays, delay_by_hour]
    keys = {s.sink_id: [key for check in checks_of(s) for key in check.check_keys] for s in streams}
    assert due(instance, streams, keys).skip_message == "No stream has run yet: there is nothing to check."
    instance.add_run(dg.DagsterRun(job_name=STREAM_JOB, tags={TAG_STREAM: flight_delays.name}))
    assert due(instance, streams, keys).asset_check_keys == keys[flight_delays.sink_id]


@pytest.mark.parametrize("job", [BACKFILL_JOB, CHECKS_JOB])
def test_both_jobs_run_in_one_process(job):
    assert defs.resolve_job_def(job).executor_def.name == "in_process"


def test_one_backfill_at_a_time():
    """The engine would fence one of two; the pool spares both the trouble."""
    assert {node.definition.pool for node in defs.resolve_job_def(BACKFILL_JOB).nodes} == {
        "backfill_flight_delays_by_day"
    }


def test_only_the_job_of_the_checks_evaluates_them():
    """A stream that is stopped must end within seconds, not compare 100,000 records first."""
    ops = {job: {node.name for node in defs.resolve_job_def(job).nodes} for job in (STREAM_JOB, BACKFILL_JOB)}
    assert ops == {STREAM_JOB: {STREAM_OP}, BACKFILL_JOB: {BACKFILL_OP}}
    checks = [check for stream in (flight_delays, delay_by_hour) for check in checks_of(stream)]
    assert len(defs.resolve_job_def(CHECKS_JOB).nodes) == len(checks) == 11
