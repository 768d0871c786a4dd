"""What happens by the clock: evaluated on a real instance, without brokers where the question is Dagster's own."""

import time
from dataclasses import replace
from itertools import pairwise

import dagster as dg
import pytest

from dagster_exactly_once.backfill import asset as backfills
from dagster_exactly_once.backfill.asset import days_of
from dagster_exactly_once.backfill.days import NoBoundary
from dagster_exactly_once.checks import schedule
from dagster_exactly_once.checks.definitions import checks_of
from dagster_exactly_once.checks.schedule import Evaluated, due, must_evaluate
from dagster_exactly_once.names import CHECKS_JOB
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.tags import TAG_JOB, TAG_STREAM
from platform_assets.definitions import defs
from platform_assets.flights.names import BACKFILL_JOB, BACKFILL_OP, FLIGHT_DELAYS_BY_DAY, STREAM_JOB, STREAM_OP
from platform_assets.flights.streams import delay_by_hour, flight_delays
from testkit.dagster_runs import ended_tags
from testkit.processes import until

MONTH = {"dagster/asset_partition_range_start": "2013-01-01", "dagster/asset_partition_range_end": "2013-01-31"}


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as found:
        yield found


@pytest.fixture(autouse=True)
def input_to_fill(monkeypatch):
    """There is input before the stream's start, whatever the day."""
    monkeypatch.setattr(backfills, "_nothing_before_the_stream", lambda stream, kafka, checkpoints, day: False)


def tick(instance):
    kafka = KafkaTransactionalProducerFactory(bootstrap_servers="127.0.0.1:1")
    return backfills.missing_days(flight_delays, instance, kafka, CheckpointReader(root="/nowhere"))


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
    run(instance, dg.DagsterRunStatus.STARTED, ended_tags())
    assert isinstance(tick(instance), dg.RunRequest)
    assert [r.status for r in instance.get_runs()] == [dg.DagsterRunStatus.FAILURE]


def test_a_range_that_failed_three_times_in_a_row_waits_for_a_person(instance):
    """Guards against a run every ten minutes for a year, each failing for the same reason."""
    for _ in range(backfills.MOST_FAILURES - 1):
        run(instance, dg.DagsterRunStatus.FAILURE, MONTH)
    assert isinstance(tick(instance), dg.RunRequest)
    run(instance, dg.DagsterRunStatus.FAILURE, MONTH)
    assert "failed 3 times in a row" in tick(instance).skip_message
    run(instance, dg.DagsterRunStatus.SUCCESS, MONTH)  # by hand
    assert isinstance(tick(instance), dg.RunRequest)


def test_days_that_the_stream_owns_are_not_requested(instance, monkeypatch):
    monkeypatch.setattr(backfills, "_nothing_before_the_stream", lambda stream, kafka, checkpoints, day: True)
    assert "owns all input since 2013-01-01" in tick(instance).skip_message


def test_before_the_streams_first_start_the_tick_says_so(instance, monkeypatch):
    def refuse(stream, kafka, checkpoints, day):
        raise NoBoundary("not started yet", "Start it once")

    monkeypatch.setattr(backfills, "_nothing_before_the_stream", refuse)
    assert tick(instance).skip_message.startswith("EO-BACKFILL-EARLY: not started yet")


def test_brokers_that_do_not_answer_are_named_by_the_tick(instance, monkeypatch):
    """A tick that raises turns red and says nothing; one that skips says what is wrong and tries again."""
    monkeypatch.undo()
    monkeypatch.setattr(backfills, "TICK_BUDGET_S", 1.0)
    monkeypatch.setattr("dagster_exactly_once.resources.checkpoints.READ_BUDGET_S", 1.0)
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
    assert due(instance, streams, keys).skip_message.startswith("No stream has run")
    instance.add_run(dg.DagsterRun(job_name=STREAM_JOB, tags={TAG_STREAM: flight_delays.name}))
    assert due(instance, streams, keys).asset_check_keys == keys[flight_delays.sink_id]


class Evaluations:
    """The evaluations of a stream's checks on an instance, as its sensor and the schedule's runs leave them."""

    def __init__(self, instance, monkeypatch, streams):
        self.instance, self.monkeypatch, self.streams = instance, monkeypatch, streams
        self.keys = {s.sink_id: [key for check in checks_of(s) for key in check.check_keys] for s in streams}

    def say(self, key, passed=True, severity=dg.AssetCheckSeverity.ERROR, **metadata):
        event = dg.AssetCheckEvaluation(key.asset_key, key.name, passed, metadata, severity=severity)
        self.instance.report_runless_asset_event(event)

    def health(self, stream, code, passed=True, severity=dg.AssetCheckSeverity.ERROR):
        self.say(dg.AssetCheckKey(stream.outputs[0].key, "health"), passed, severity, code=code)

    def asked(self, after_s):
        with self.monkeypatch.context() as later:
            later.setattr("time.time", lambda: time.time_ns() / 1e9 + after_s)
            return due(self.instance, self.streams, self.keys)

    def when(self, *after_s):
        return [isinstance(self.asked(s), dg.RunRequest) for s in after_s]


@pytest.fixture
def evaluations(instance, monkeypatch):
    monkeypatch.setattr(schedule, "UNWATCHED_S", 7200.0)  # a sensor looks at it all the time
    found = Evaluations(instance, monkeypatch, [flight_delays])
    instance.add_run(dg.DagsterRun(job_name=STREAM_JOB, tags={TAG_STREAM: flight_delays.name}))
    for key in found.keys[flight_delays.sink_id]:
        found.say(key)
    return found


WARN = dg.AssetCheckSeverity.WARN


@pytest.mark.parametrize(
    "code, passed, severity, soon",
    [
        ("HEALTH-HEALTHY", True, WARN, False),
        ("HEALTH-IDLE", True, WARN, False),
        ("HEALTH-CATCHING-UP", True, WARN, False),
        ("HEALTH-LAGGING", False, WARN, True),
        ("HEALTH-STALLED", False, dg.AssetCheckSeverity.ERROR, True),
        ("HEALTH-STOPPED", False, WARN, False),
        ("HEALTH-FAILED", False, dg.AssetCheckSeverity.ERROR, False),
    ],
)
def test_the_checks_of_a_stream_that_is_well_or_at_rest_wait_an_hour(code, passed, severity, soon, evaluations):
    """A stream that always writes had six runs of checks an hour, which filled the page of the runs."""
    evaluations.health(flight_delays, code, passed, severity)
    assert evaluations.when(1, 600, 3600) == [False, soon, True]


@pytest.mark.parametrize(
    "severity, metadata, soon",
    [
        (dg.AssetCheckSeverity.ERROR, {"code": "CHECK-NOT-EXACTLY-ONCE"}, True),
        (WARN, {"code": "HEALTH-STALLED"}, True),
        (WARN, {"code": "EO-UNREACHABLE", "evaluated": False}, True),
        (WARN, {"code": "CHECK-REJECTED"}, False),
    ],
)
def test_a_check_that_failed_or_could_not_read_is_evaluated_again_at_the_next_tick(
    severity, metadata, soon, evaluations
):
    """Guards against a red check that stays red for an hour after the cause has gone. Rejected records wait for a
    person, whose acknowledgement is an evaluation.
    """
    evaluations.health(flight_delays, "HEALTH-HEALTHY")
    evaluations.say(evaluations.keys[flight_delays.sink_id][0], False, severity, **metadata)
    assert evaluations.when(1, 600) == [False, soon]


def test_a_run_beside_the_stream_has_its_checks_evaluated(instance, evaluations):
    """Guards against an hour in which the checks tell of the time before a backfill or a resend."""
    evaluations.health(flight_delays, "HEALTH-HEALTHY")
    assert evaluations.when(600) == [False]
    now = int(time.time())
    until("the next second, to which SQLite rounds a run's time down", lambda: time.time() > now + 1, 5)
    instance.add_run(dg.DagsterRun(job_name=BACKFILL_JOB, tags={TAG_STREAM: flight_delays.backfill_spec.name}))
    assert evaluations.when(600) == [True]


def test_without_the_sensor_that_says_whether_a_stream_is_well_its_checks_are_evaluated_at_each_tick(
    monkeypatch, evaluations
):
    """Guards against a stream that stalls while its sensor is off, and is green for an hour."""
    monkeypatch.setattr(schedule, "UNWATCHED_S", 1800.0)
    evaluations.health(flight_delays, "HEALTH-HEALTHY")
    assert evaluations.when(1200, 1801) == [False, True]


def test_an_interval_of_a_streams_own_is_kept(evaluations):
    evaluations.streams = [replace(flight_delays, checks=replace(flight_delays.checks, every_s=7200))]
    evaluations.health(flight_delays, "HEALTH-HEALTHY")
    assert evaluations.when(3600, 7100) == [False, True]


def test_a_healthy_stream_has_one_run_of_checks_an_hour_for_a_day():
    """The figure that the page of the runs shows: a tick comes when it comes, and an evaluation takes seconds."""
    now, at, began = 0.0, 0.0, []
    for tick_at in range(600, 24 * 3600 + 1, 600):
        now = tick_at + 7.0 * (tick_at % 7)
        if must_evaluate(Evaluated(at), now):
            began.append(now)
            at = now + 20.0
    assert len(began) == 24 and all(b - a > 3000 for a, b in pairwise(began))


def test_streams_whose_hours_are_near_share_one_run():
    """Guards against six streams with a run each in every ten minutes: the page would be as full as before."""
    at = {f"s{i}": 600.0 * i for i in range(6)}
    runs = 0
    for now in range(3600, 24 * 3600 + 1, 600):
        if any(must_evaluate(Evaluated(its), now) for its in at.values()):
            runs += 1
            at |= {s: now + 20.0 for s, its in at.items() if must_evaluate(Evaluated(its), now, nearly=True)}
    assert runs <= 26


@pytest.mark.parametrize("job", [BACKFILL_JOB, CHECKS_JOB])
def test_both_jobs_run_in_one_process(job):
    assert defs.resolve_job_def(job).executor_def.name == "in_process"


def test_one_backfill_at_a_time():
    """The engine would fence one of two. The pool's limit comes into being when its first run leaves the queue, and
    Dagster lets all go that leave with that one, so the queue goes by a tag; runs that a person materializes have none.
    """
    assert defs.resolve_job_def(BACKFILL_JOB).tags[TAG_JOB] != defs.resolve_job_def(STREAM_JOB).tags[TAG_JOB]
    assert {node.definition.pool for node in defs.resolve_job_def(BACKFILL_JOB).nodes} == {
        "backfill_flight_delays_by_day"
    }


def test_only_the_job_of_the_checks_evaluates_them():
    """A stream that is stopped must end within seconds, not compare 100,000 records first."""
    ops = {job: {node.name for node in defs.resolve_job_def(job).nodes} for job in (STREAM_JOB, BACKFILL_JOB)}
    assert ops == {STREAM_JOB: {STREAM_OP}, BACKFILL_JOB: {BACKFILL_OP}}
    checks = [check for stream in (flight_delays, delay_by_hour) for check in checks_of(stream)]
    assert len(defs.resolve_job_def(CHECKS_JOB).nodes) == len(checks) == 11
