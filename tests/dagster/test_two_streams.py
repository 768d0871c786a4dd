"""Two streams in one code location: each with its own sensors, audit trail and recoveries, and none for the
other's.
"""

import json
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.test_utils import create_run_for_test

from dagster_exactly_once.names import NOTIFY, RECOVERY_JOB, RECOVERY_OP
from dagster_exactly_once.notify import Notifier
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.history import read_history
from dagster_exactly_once.runs.tags import TAG_JOB, TAG_RECOVERS, TAG_RESTART_OF, TAG_SINK
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from exactly_once.commitlog.commit_log import read_log
from platform_assets.constants import DELAY_BY_HOUR
from platform_assets.definitions import defs
from platform_assets.flights.names import (
    DELAY_BY_HOUR_JOB,
    DELAY_BY_HOUR_OP,
    DELAY_BY_HOUR_SINK_ID,
    DELAY_BY_HOUR_TRANSACTIONS,
    SINK_ID,
    STREAM_JOB,
    STREAM_OP,
)
from platform_assets.flights.streams import delay_by_hour, flight_delays
from testkit import oracle
from testkit.daemon import Daemon
from testkit.dagster_runs import ended_tags, process_tags
from testkit.flights import OUTPUTS, Feed
from testkit.processes import until
from testkit.story import BACK_S
from testkit.webserver import Dagster

ROOT = Path(__file__).resolve().parents[2]
S = dg.DagsterRunStatus

#: Two JVMs that start at the same moment on two cores take each other's time.
TWO_STARTS_S = 2 * BACK_S


@pytest.fixture
def daemon(instance):
    resources = {
        "kafka": KafkaTransactionalProducerFactory(bootstrap_servers="127.0.0.1:1"),
        "restart_policy": RestartPolicy(strategy="fixed-delay", attempts=3, delay_s=0.0),
        "watch_policy": WatchPolicy(),
        NOTIFY: Notifier(),
    }
    return Daemon(instance, {s.name: s for s in defs.get_repository_def().sensor_defs}, resources)


def new_run(instance, job, status, **tags):
    tags = {**defs.resolve_job_def(job).tags, **tags}
    return create_run_for_test(instance, job_name=job, status=status, tags=tags).run_id


def test_two_streams_may_run_at_once_and_each_of_them_only_once():
    """A tag in common would let the second stream wait forever: the first one never ends."""
    limits = yaml.safe_load((ROOT / "dagster_exactly_once" / "dagster.yaml").read_text())["concurrency"]
    (tag,) = [t for t in limits["runs"]["tag_concurrency_limits"] if t["key"] == TAG_JOB]
    assert tag["limit"] == 1 and tag["value"] == {"applyLimitPerUniqueValue": True}
    jobs = [defs.resolve_job_def(name) for name in (STREAM_JOB, DELAY_BY_HOUR_JOB)]
    assert len({job.tags[TAG_JOB] for job in jobs}) == 2


def test_a_failure_is_recovered_on_the_sink_of_its_own_stream(instance, daemon):
    """A recovery of the other sink would leave readers waiting, and restart what was not down."""
    failed = new_run(instance, DELAY_BY_HOUR_JOB, S.FAILURE)
    request, beside = daemon.tick("exactly_once_run_failure").run_requests
    assert (beside.job_name, beside.tags[TAG_RESTART_OF]) == (DELAY_BY_HOUR_JOB, failed)
    assert request.tags[TAG_RESTART_OF] == failed and request.tags[TAG_RECOVERS] == DELAY_BY_HOUR_SINK_ID
    assert request.run_config["ops"][RECOVERY_OP]["config"]["stream"] == delay_by_hour.name

    (recovery,) = instance.get_runs(dg.RunsFilter(job_name=RECOVERY_JOB))
    instance.report_run_failed(recovery)  # any end: whose recovery it was is what is looked at
    assert read_history(instance, flight_delays.spec).recoveries == ()
    assert [r.run_id for r in read_history(instance, delay_by_hour.spec).recoveries] == [recovery.run_id]


def test_the_dead_of_both_streams_and_of_none_are_reported_in_one_tick(instance, daemon):
    """A run whose process is gone holds its pool forever, whichever stream it is of."""
    first = new_run(instance, STREAM_JOB, S.STARTED, **ended_tags(), **{TAG_SINK: SINK_ID})
    second = new_run(instance, DELAY_BY_HOUR_JOB, S.STARTED, **ended_tags(), **{TAG_SINK: DELAY_BY_HOUR_SINK_ID})
    feeding = new_run(instance, "flights_feed", S.STARTED, **ended_tags())
    said = daemon.said("exactly_once_liveness")
    assert all(run[:8] in said for run in (first, second, feeding))
    assert {instance.get_run_by_id(r).status for r in (first, second, feeding)} == {S.FAILURE}


def test_a_stream_that_lives_does_not_hold_back_the_other_one(instance, daemon):
    """Both read the same input, and both are restarted by the same machinery."""
    new_run(instance, STREAM_JOB, S.STARTED, **process_tags(), **{TAG_SINK: SINK_ID})
    failed = new_run(instance, DELAY_BY_HOUR_JOB, S.FAILURE)
    requests = daemon.tick("exactly_once_run_failure").run_requests
    assert {r.job_name: r.tags[TAG_RESTART_OF] for r in requests} == {RECOVERY_JOB: failed, DELAY_BY_HOUR_JOB: failed}


def test_a_recovery_keeps_the_audit_trail_of_its_sink_and_names_its_stream(instance, monkeypatch, bootstrap_servers):
    """The person who looks at a stream's transactions must find who touched them, and what to launch."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", bootstrap_servers)
    failed = new_run(instance, DELAY_BY_HOUR_JOB, S.FAILURE)
    config = {"stream": delay_by_hour.name, "dry_run": False, "restart": True}
    result = defs.resolve_job_def(RECOVERY_JOB).execute_in_process(
        instance=instance, run_config={"ops": {RECOVERY_OP: {"config": config}}}
    )
    observed = {
        e.asset_observation_data.asset_observation.asset_key for e in result.all_events if e.is_asset_observation
    }
    assert observed == {dg.AssetKey(DELAY_BY_HOUR_TRANSACTIONS)}
    assert instance.get_run_by_id(result.run_id).tags[TAG_RESTART_OF] == failed


@pytest.mark.long
def test_both_run_at_once_and_the_one_that_is_killed_comes_back_alone(site):
    """Launched through Dagster's queue: a second stream that waits for a slot of the first would wait forever, and a
    recovery that fences or restarts the wrong one would be an outage of its own.
    """
    with Dagster(site) as dagster, Feed(site.bootstrap_servers) as feed:
        feed.send(1_000)
        first = dagster.launch(STREAM_JOB, {"ops": {STREAM_OP: {"config": {"report_interval_s": 1.0}}}})
        by_hour = {"watermark_delay_h": 6.0, "report_interval_s": 1.0}
        second = dagster.launch(DELAY_BY_HOUR_JOB, {"ops": {DELAY_BY_HOUR_OP: {"config": by_hour}}})
        feed.trickle()
        for sink_id in (SINK_ID, DELAY_BY_HOUR_SINK_ID):
            await_batches(site, sink_id, 3)
        assert [dagster.status(run) for run in (first, second)] == ["STARTED", "STARTED"]

        dagster.kill_run(second, tree=True)
        until("the restart", lambda: dagster.runs(DELAY_BY_HOUR_JOB)[0]["runId"] != second, BACK_S, every_s=0.5)
        restarted = dagster.runs(DELAY_BY_HOUR_JOB)[0]
        assert dagster.tags(restarted["runId"])[TAG_RESTART_OF] == second
        dagster.wait_for(restarted["runId"], "STARTED", BACK_S)
        for sink_id in (SINK_ID, DELAY_BY_HOUR_SINK_ID):
            await_batches(site, sink_id, 2)
        feed.pause()

        (recovery,) = dagster.runs(RECOVERY_JOB)
        assert dagster.tags(recovery["runId"])[TAG_SINK] == DELAY_BY_HOUR_SINK_ID
        assert [run["runId"] for run in dagster.runs(STREAM_JOB)] == [first]
        assert dagster.status(first) == "STARTED"
        for run in (first, restarted["runId"]):
            dagster.terminate(run)
        for run in (first, restarted["runId"]):
            dagster.wait_for(run, "CANCELED", 60)
    hours = [(m.key, json.loads(m.value)["window_start"]) for m in oracle.read(site.connection, [DELAY_BY_HOUR])]
    assert hours and len(set(hours)) == len(hours)
    for sink_id, outputs in ((SINK_ID, OUTPUTS), (DELAY_BY_HOUR_SINK_ID, (DELAY_BY_HOUR,))):
        oracle.assert_settled(site.connection, sink_id, outputs)


def await_batches(site, sink_id, count):
    """Wait for that many more decided batches of a sink."""

    def newest():
        return max((d.batch_id for d in read_log(site.connection, sink_id).decisions), default=-1)

    first = newest()
    until(f"batches of {sink_id}", lambda: newest() >= first + count, TWO_STARTS_S, every_s=0.5)
