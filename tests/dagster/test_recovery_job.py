"""The recovery job on a real broker: what it finds, does, proves and writes down; and what it leaves alone."""

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import dagster as dg
import psutil
import pytest
import yaml
from dagster._core.test_utils import create_run_for_test

from dagster_exactly_once.declare.config import ANOTHER_SINK
from dagster_exactly_once.names import MEMORY, RECOVERY_OP
from dagster_exactly_once.recovery import owners
from dagster_exactly_once.recovery.operations import SinkRegistry, operation_job
from dagster_exactly_once.resources.transactions import TransactionAdmin
from dagster_exactly_once.runs.history import StreamHistory, classify
from dagster_exactly_once.runs.operator import operator_of
from dagster_exactly_once.runs.process import tag_run
from dagster_exactly_once.runs.tags import TAG_RECOVERS, TAG_RESTART_OF, TAG_SINK, TAG_STREAM
from dagster_exactly_once.sensors.recovery_requests import RecoveryNeed, recovery_request
from exactly_once.commitlog.commit_log import read_log
from exactly_once.inspection.sink import inspect_sink
from exactly_once.kafka.admin import Admin
from exactly_once.tools.operation import recover as recovery
from exactly_once.txn.coordinators import describe, end_one, end_txn_version
from platform_assets.definitions import defs
from platform_assets.flights.names import SINK_ID, STREAM_JOB
from platform_assets.flights.streams import flight_delays
from testkit.dagster_runs import audited
from testkit.dead_sink import DEAD, DeadSink
from testkit.processes import until

ROOT = Path(__file__).resolve().parents[2]
STEPS = (RECOVERY_OP, "complete", "sweep", "verify", "restart")


@pytest.fixture(autouse=True)
def servers(bootstrap_servers, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", bootstrap_servers)


@pytest.fixture
def dead(connection, topic):
    return DeadSink(connection, topic, socket.gethostname(), DEAD)


def recover(instance, sink_id, tags=None, job=None, **config):
    return (job or defs.resolve_job_def("exactly_once_recovery")).execute_in_process(
        instance=instance,
        run_config={
            "ops": {RECOVERY_OP: {"config": {"stream": ANOTHER_SINK, "sink_id": sink_id, "dry_run": False, **config}}}
        },
        tags=tags,
        raise_on_error=False,
    )


def output(result, step, name="result"):
    """The metadata of a step's output, as the UI shows it."""
    for event in result.events_for_node(step):
        if event.is_successful_output and event.step_output_data.output_name == name:
            return event.step_output_data.metadata
    raise AssertionError(f"{step} has no output {name}")


def rows(table):
    return [record.data for record in table.records]


def test_it_completes_what_is_decided_sweeps_what_is_not_and_shows_both(instance, dead, connection):
    """A driver died between its decision and its commits, with a part of the next batch open."""
    decided = [dead.open_part(0), dead.open_part(1)]
    dead.decide(*decided)
    undecided = dead.open_part(2)
    result = recover(
        instance, dead.sink_id, reason="a test", tags={"dagster/sensor_name": "exactly_once_stale_transactions"}
    )
    assert result.success
    assert dead.visible() == ["part 0", "part 1"]
    assert inspect_sink(connection, dead.sink_id).quiet

    found = output(result, RECOVERY_OP, "inspected")
    assert {r["transactional_id"] for r in rows(found["open"].value)} == {*decided, undecided}
    assert rows(found["decided"].value)[0]["waiting"] == "2"
    assert {r["held_by"] for r in rows(found["blocked"].value)} == {"this sink"}
    assert [r["batch"] for r in rows(output(result, "complete")["completed"].value)] == ["0"]
    assert [(r["output"], r["part"]) for r in rows(output(result, "sweep")["aborted"].value)] == [("kafka", undecided)]
    assert output(result, "verify")["at_rest"].value is True

    began, ended = audited(result)
    assert began["recovery"] == "began" and ended["recovery"] == "ended"
    assert ended["recovery_by"] == "sensor exactly_once_stale_transactions" and ended["recovery_reason"] == "a test"
    assert (ended["before_open"], ended["before_decided_not_proven"], ended["before_undecided"]) == (3, 1, 1)
    assert not [name for name in ended if name.startswith("after_")]  # a page of zeros hides what is not
    assert (ended["recovery_completed_batches"], ended["recovery_aborted_transactions"]) == (1, 1)


@pytest.mark.long
def test_a_batch_with_lost_parts_is_left_to_the_next_start_which_is_wanted(instance, dead, connection):
    """A recovery that failed here would keep the stream down, and only its start can write the parts again."""
    lost, kept, undecided = (dead.open_part(n) for n in range(3))
    dead.decide(lost, kept, placed=True)
    with Admin(connection) as admin:
        found = describe(admin, [lost])[lost]
        end_one(admin, lost, found.producer_id, found.producer_epoch, commit=False, version=end_txn_version(admin))
    result = recover(instance, dead.sink_id, restart=True)
    assert result.success
    assert dead.visible() == ["part 1"]
    assert [d.batch_id for d in dead.read().open_decisions] == [0]
    sentence = output(result, "verify")["sentence"].value
    assert "next start writes" in sentence and "lost parts of batch 0" in sentence
    assert output(result, "verify")["at_rest"].value is True
    with Admin(connection) as admin:
        assert "Abort" in describe(admin, [undecided])[undecided].state


@pytest.mark.long
def test_a_batch_that_is_in_doubt_is_raised_and_the_rest_is_swept_all_the_same(instance, dead, connection):
    """Readers wait for undecided transactions too; and no sensor may retry the same recovery forever."""
    lost, undecided = dead.open_part(0), dead.open_part(1)
    dead.decide(lost)
    with Admin(connection) as admin:
        found = describe(admin, [lost])[lost]
        end_one(admin, lost, found.producer_id, found.producer_epoch, commit=False, version=end_txn_version(admin))
    result = recover(instance, dead.sink_id)
    assert not result.success
    why = classify(instance, result.run_id)
    assert (why.code, why.heals) == ("EO-EXPIRED", False) and why.remedy
    with Admin(connection) as admin:
        assert "Abort" in describe(admin, [undecided])[undecided].state


@pytest.mark.long
def test_a_second_recovery_finds_the_sink_at_rest(instance, dead):
    dead.open_part(0)
    assert recover(instance, dead.sink_id).success
    again = recover(instance, dead.sink_id)
    assert again.success and "nothing to complete" in output(again, "verify")["sentence"].value
    assert audited(again)[-1]["recovery_by"] == "a person"


def test_a_dry_run_says_what_there_is_and_changes_nothing(instance, dead, connection):
    """On call, one looks first."""
    dead.decide(dead.open_part(0))
    dead.open_part(1)
    before = read_log(connection, dead.sink_id)
    result = recover(instance, dead.sink_id, dry_run=True)
    assert result.success
    assert {e.step_key for e in result.all_events if e.is_step_skipped} == set(STEPS[1:])
    assert len(rows(output(result, RECOVERY_OP, "inspected")["open"].value)) == 2
    assert [o["recovery"] for o in audited(result)] == ["dry run"]
    after = read_log(connection, dead.sink_id)
    assert (after.owner, after.end) == (before.owner, before.end)
    assert len(inspect_sink(connection, dead.sink_id).open) == 2


def test_a_sink_that_was_never_used_is_no_problem(instance, connection):
    assert recover(instance, "never-used-by-anybody").success


def live_run(instance, sink_id):
    """A run of the stream whose process is this one."""
    run = create_run_for_test(instance, job_name=STREAM_JOB, status=dg.DagsterRunStatus.STARTED)
    tag_run(instance, run.run_id, sink_id)
    return run.run_id


def test_nothing_is_changed_while_a_run_lives_unless_told_to_take_over(instance, dead, connection, monkeypatch):
    """It would fence a healthy stream."""
    monkeypatch.setattr(recovery, "LEAVING_S", 1.0)  # this process lives on
    run_id = live_run(instance, dead.sink_id)
    dead.open_part(0)
    result = recover(instance, dead.sink_id)
    assert not result.success
    why = classify(instance, result.run_id)
    assert (why.code, why.heals) == ("EO-SINK-BUSY", True) and run_id in why.sentence
    assert len(inspect_sink(connection, dead.sink_id).open) == 1
    assert recover(instance, dead.sink_id, take_over=True).success
    assert inspect_sink(connection, dead.sink_id).quiet


@pytest.mark.long
def test_nothing_is_changed_while_an_owner_lives_that_dagster_does_not_know(instance, connection, topic, monkeypatch):
    """A stream under spark-submit on the same machine."""
    monkeypatch.setattr(recovery, "LEAVING_S", 0.0)
    me = psutil.Process()
    alive = DeadSink(connection, topic, socket.gethostname(), me.pid, me.create_time())
    alive.open_part(0)
    result = recover(instance, alive.sink_id)
    assert not result.success and classify(instance, result.run_id).code == "EO-SINK-BUSY"
    assert len(inspect_sink(connection, alive.sink_id).open) == 1
    assert not recover(instance, alive.sink_id, take_over=True).success
    assert recover(instance, alive.sink_id, take_over=True, fence=f"fence the {alive_claim(alive)}").success


@pytest.mark.long
def test_a_frozen_owner_is_named_with_the_command_that_ends_it(instance, connection, topic):
    """Mishap: "still alive; waiting for it to end", of a driver that a signal has stopped. Readers wait for it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as driver:
        process = psutil.Process(driver.pid)
        frozen = DeadSink(connection, topic, socket.gethostname(), driver.pid, process.create_time())
        frozen.open_part(0)
        process.suspend()
        until("it is stopped", lambda: process.status() == psutil.STATUS_STOPPED, 10)
        result = recover(instance, frozen.sink_id)
        why = classify(instance, result.run_id)
        assert why.code == "EO-SINK-BUSY" and "HEALTH-FROZEN" in why.sentence and f"kill -9 {driver.pid}" in why.remedy
        driver.kill()
    assert recover(instance, frozen.sink_id).success


def alive_claim(sink):
    return sink.read().owner.process


@pytest.mark.long
def test_the_sink_of_another_dagster_instance_is_recovered_only_with_the_typed_consequence(instance, connection, topic):
    """Launch on the wrong instance, with everything ticked: production must go on."""
    theirs = DeadSink(connection, topic, operator="dagster/production/run-1")
    theirs.open_part(0)
    for config in ({}, {"take_over": True}, {"take_over": True, "fence": "fence the driver"}):
        result = recover(instance, theirs.sink_id, **config)
        why = classify(instance, result.run_id)
        assert not result.success and why.code == "EO-SINK-OPERATED"
        assert "fence the driver 1 on elsewhere (operated by dagster/production/run-1)" in why.remedy
        assert len(inspect_sink(connection, theirs.sink_id).open) == 1
    phrase = "fence the driver 1 on elsewhere (operated by dagster/production/run-1)"
    assert recover(instance, theirs.sink_id, take_over=True, fence=phrase).success
    assert inspect_sink(connection, theirs.sink_id).quiet


@pytest.mark.long
def test_a_recovery_says_which_instance_and_run_it_works_for(instance, dead, connection):
    """Whoever finds the claim must know whom to ask."""
    dead.open_part(0)
    result = recover(instance, dead.sink_id)
    assert dead.read().owner.operator == operator_of(instance, result.run_id)


@pytest.mark.long
def test_a_stream_that_is_launched_after_the_inspection_is_not_fenced(instance, dead, connection, monkeypatch):
    """The steps take seconds; a person does not wait for them."""
    dead.open_part(0)
    monkeypatch.setattr(owners, "owner_gone", lambda *args: live_run(instance, dead.sink_id))
    result = recover(instance, dead.sink_id)
    assert not result.success and classify(instance, result.run_id).code == "EO-SINK-BUSY"
    assert len(inspect_sink(connection, dead.sink_id).open) == 1


@pytest.mark.long
def test_two_recoveries_at_once_bring_the_sink_to_rest(instance, dead, connection):
    """Two daemons by mistake, or a person beside a sensor: the later claim goes on, the earlier one steps back."""
    dead.decide(dead.open_part(0), dead.open_part(1))
    dead.open_part(2)
    where = {"stream": ANOTHER_SINK, "sink_id": dead.sink_id, "dry_run": False}
    config = json.dumps({"ops": {RECOVERY_OP: {"config": where}}})
    command = [sys.executable, "-m", "platform_assets.launch", "exactly_once_recovery", "--config", config]
    both = [subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) for _ in range(2)]  # in DAGSTER_HOME of the test
    try:
        assert [one.wait(120) for one in both] == [0, 0]
    finally:
        for one in both:
            one.kill()
            one.wait()
    assert dead.visible() == ["part 0", "part 1"]
    assert inspect_sink(connection, dead.sink_id).quiet


@pytest.mark.long
def test_a_recovery_whose_claim_is_taken_by_another_one_steps_back(instance, dead, connection, monkeypatch):
    dead.decide(dead.open_part(0))
    claim_sink = recovery.engine.claim_sink

    def overtaken(*args):
        mine = claim_sink(*args)
        claim_sink(*args)
        return mine

    monkeypatch.setattr(recovery.engine, "claim_sink", overtaken)
    result = recover(instance, dead.sink_id)
    assert result.success
    assert "newer owner took" in output(result, "verify")["sentence"].value


@pytest.mark.long
def test_a_request_for_a_restart_is_left_for_the_sensor(instance, dead):
    """The job must not launch the stream itself: a recovery that runs twice would start it twice."""
    spec = replace(flight_delays.spec, sink_id=dead.sink_id)
    resources = {"transactions": TransactionAdmin.from_environment(), MEMORY: dg.mem_io_manager}
    job = dg.Definitions(
        jobs=[operation_job(recovery.RECOVER, SinkRegistry([spec]))], resources=resources
    ).resolve_job_def("exactly_once_recovery")
    failed = create_run_for_test(
        instance,
        job_name=STREAM_JOB,
        status=dg.DagsterRunStatus.FAILURE,
        tags={TAG_SINK: dead.sink_id, TAG_STREAM: spec.name},
    )
    result = recover(instance, dead.sink_id, job=job, restart=True)
    assert result.success
    assert instance.get_run_by_id(result.run_id).tags[TAG_RESTART_OF] == failed.run_id
    assert len(instance.get_runs(dg.RunsFilter(job_name=STREAM_JOB))) == 1
    sentence = output(result, "restart")["sentence"].value
    assert "sensor exactly_once_liveness starts" in sentence and "by hand" in sentence

    without = recover(instance, dead.sink_id, job=job)
    assert TAG_RESTART_OF not in instance.get_run_by_id(without.run_id).tags


def test_one_recovery_at_a_time_is_a_limit_of_the_queue():
    """dagster.yaml limits the tag; without it on what a sensor asks for the limit would limit nothing."""
    settings = yaml.safe_load((ROOT / "dagster_exactly_once" / "dagster.yaml").read_text())
    limits = {limit["key"]: limit["limit"] for limit in settings["concurrency"]["runs"]["tag_concurrency_limits"]}
    request = recovery_request(flight_delays.spec, StreamHistory(0.0), RecoveryNeed("incident", "cause"))
    assert limits[TAG_RECOVERS] == 1 and request.tags[TAG_RECOVERS] == SINK_ID
    assert settings["run_coordinator"]["config"]["dequeue_interval_seconds"] == 1


@pytest.mark.parametrize("path", ["dagster_exactly_once/dagster.yaml", "deploy/dagster/dagster.yaml"])
def test_the_next_run_is_launched_beside_its_recovery(path: str):
    """Mishap: Dagster waits until a run's process has loaded the code before it launches the next one of the queue."""
    queue = yaml.safe_load((ROOT / path).read_text())["run_coordinator"]["config"]
    assert queue["dequeue_use_threads"] and queue["dequeue_num_workers"] >= 2
