"""The sensors over Dagster's own run storage and a real broker: what a tick says, asks for and changes."""

import contextlib
import socket
import time
from dataclasses import replace

import dagster as dg
import psutil
import pytest
from confluent_kafka import Producer
from dagster._core.test_utils import create_run_for_test

from dagster_exactly_once.names import ALL_STREAMS, RECOVERY_JOB
from dagster_exactly_once.notify import WebhookNotifier
from dagster_exactly_once.runs.history import classify
from dagster_exactly_once.runs.operator import operator_of
from dagster_exactly_once.runs.tags import (
    TAG_ATTEMPT,
    TAG_CAUSE,
    TAG_HOST,
    TAG_PID,
    TAG_RESTART_OF,
    TAG_SINK,
    TAG_STREAM,
)
from dagster_exactly_once.sensors import checkpoint_progress, incidents
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from exactly_once.coordinator.recover import recover
from exactly_once.kafka.admin import Admin
from exactly_once.txn.coordinators import describe
from testkit import broker as brokers
from testkit.dagster_runs import brought_to, ended_tags, process_tags
from testkit.dead_sink import DEAD, DeadSink
from testkit.one_diagnosis import write
from testkit.sensing import SENSORS, failed_run, failure, sensing, stream_of
from testkit.webhook import webhook

S = dg.DagsterRunStatus
AT_ONCE = RestartPolicy(strategy="fixed-delay", attempts=3, delay_s=0.0)


def daemon(instance, sink_id="s", topic="in", output="out", servers="127.0.0.1:1", **policy):
    stream = replace(stream_of(sink_id, topic, output), name="stream")
    return sensing(instance, [stream], servers, AT_ONCE, **policy)


def new_run(instance, job="stream", status=S.STARTED, **rest):
    if job == "stream":
        rest["tags"] = {TAG_STREAM: "stream", **rest.get("tags", {})}
    run = create_run_for_test(instance, job_name=job, status=S.NOT_STARTED, **rest)
    return brought_to(instance, run.run_id, status)


def queued(instance, job):
    return instance.get_runs(dg.RunsFilter(job_name=job, statuses=[S.NOT_STARTED]))


# -- the whole way round, without a broker -------------------------------------------------------------------------


def test_a_failure_is_recovered_and_the_stream_started_again_once(instance):
    """Ticks come every few seconds, also while the recovery is queued or runs: one failure is one recovery."""
    d = daemon(instance)
    failed = new_run(instance, status=S.FAILURE, run_config={"ops": {"x": {"config": {"mode": "m"}}}})
    for _ in range(3):
        d.tick("exactly_once_run_failure")
        d.tick("exactly_once_liveness")
    (recovery,) = queued(instance, "exactly_once_recovery")
    assert recovery.tags[TAG_RESTART_OF] == failed and "PROCESS-GONE" in recovery.tags[TAG_CAUSE]
    assert recovery.run_config["ops"]["inspect"]["config"]["restart"] is True

    brought_to(instance, recovery.run_id, S.SUCCESS)
    for _ in range(3):
        d.tick("exactly_once_run_failure")
        d.tick("exactly_once_liveness")
    (start,) = queued(instance, "stream")
    assert start.run_config == {"ops": {"x": {"config": {"mode": "m"}}}}
    assert (start.tags[TAG_RESTART_OF], start.tags[TAG_ATTEMPT]) == (failed, "1")
    assert queued(instance, "exactly_once_recovery") == []


@pytest.mark.long
def test_a_stream_that_always_fails_ends_with_a_person_and_not_as_a_storm(instance):
    """Forty ticks over a stream that fails at once: as many restarts as the policy allows, and one report."""
    d = daemon(instance)
    new_run(instance, status=S.FAILURE)
    observations = []
    for _ in range(40):
        for name in ("exactly_once_run_failure", "exactly_once_liveness"):
            observations += d.tick(name).asset_events
        for run in queued(instance, "exactly_once_recovery"):
            brought_to(instance, run.run_id, S.SUCCESS)
        for run in queued(instance, "stream"):
            brought_to(instance, run.run_id, S.FAILURE)
    assert len(instance.get_runs(dg.RunsFilter(job_name="stream"))) == 1 + 3
    assert len(instance.get_runs(dg.RunsFilter(job_name="exactly_once_recovery"))) == 3
    assert "3 restarts in a row" in d.said("exactly_once_run_failure")
    assert [o.metadata["needs_a_person"].value for o in observations] == [d.said("exactly_once_run_failure")]


@pytest.mark.long
def test_a_person_who_starts_it_again_begins_a_new_count(instance):
    d = daemon(instance)
    for _ in range(4):
        new_run(instance, status=S.FAILURE, tags={"dagster/sensor_name": "exactly_once_liveness", TAG_RESTART_OF: "x"})
    assert "did not help" in d.said("exactly_once_run_failure")
    new_run(instance, status=S.FAILURE)
    requests = d.tick("exactly_once_run_failure").run_requests
    assert [(r.job_name, r.tags[TAG_ATTEMPT]) for r in requests] == [(RECOVERY_JOB, "1"), ("stream", "1")]


@pytest.mark.long
def test_a_recovery_that_fails_is_tried_as_often_as_the_policy_allows(instance):
    d = daemon(instance)
    new_run(instance, status=S.FAILURE)
    for _ in range(15):
        d.tick("exactly_once_run_failure")
        d.tick("exactly_once_liveness")
        for run in (
            *queued(instance, "exactly_once_recovery"),
            *queued(instance, "stream"),
        ):  # a stream starts beside its recovery
            brought_to(instance, run.run_id, S.FAILURE)
    assert len(instance.get_runs(dg.RunsFilter(job_name="exactly_once_recovery"))) == 3
    assert queued(instance, "stream") == []


@pytest.mark.parametrize("status", [S.CANCELED, S.SUCCESS])
def test_an_end_that_was_wanted_restarts_nothing(instance, status):
    d = daemon(instance)
    new_run(instance, status=S.FAILURE)
    new_run(instance, status=status)
    assert status.value in d.said("exactly_once_run_failure")
    assert "no restart is requested" in d.said("exactly_once_liveness")


def test_a_failure_during_a_recovery_is_not_lost(instance):
    """Edge-triggered sensors lose it: the event came while they could not act on it."""
    d = daemon(instance)
    recovery = new_run(instance, "exactly_once_recovery", tags={TAG_SINK: "s", **process_tags()})
    new_run(instance, status=S.FAILURE)
    assert "under way" in d.said("exactly_once_run_failure")
    brought_to(instance, recovery, S.SUCCESS)
    assert d.tick("exactly_once_run_failure").run_requests


# -- why a run failed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code", "heals"),
    [
        (failure("EO-REWOUND"), "EO-REWOUND", False),
        (dg.Failure("d", metadata={"restart_heals": True, "code": "EO-PREPARE"}), "EO-PREPARE", True),
        (dg.Failure("no classification"), "UNCLASSIFIED", False),
        (ValueError("a bug"), "UNCLASSIFIED", False),
    ],
)
def test_the_classification_of_the_failed_step_decides(instance, error, code, heals):
    found = classify(instance, failed_run(instance, error).run_id)
    assert (found.code, found.heals, found.unwanted) == (code, heals, False)


def test_a_process_that_was_asked_to_end_from_outside_heals(instance):
    """A machine that goes down, or a container that is moved, is no reason to leave the stream down."""
    with contextlib.suppress(dg.DagsterExecutionInterruptedError):
        failed_run(instance, dg.DagsterExecutionInterruptedError())
    (run,) = instance.get_runs()
    found = classify(instance, run.run_id)
    assert (run.status, found.code, found.heals) == (S.FAILURE, "INTERRUPTED", True)


def test_a_hopeless_failure_is_reported_once_with_its_way_out(instance):
    d = daemon(instance)
    failed_run(instance, failure("EO-REWOUND", way_out="Restore it"))
    (observation,) = d.tick("exactly_once_run_failure").asset_events
    assert observation.metadata["code"].value == "EO-REWOUND" and "Restore it" in observation.description
    assert d.tick("exactly_once_run_failure").asset_events == []


# -- liveness --------------------------------------------------------------------------------------------------------


def test_dead_runs_are_reported_and_others_left_alone(instance):
    """A code server that was killed takes its runs with it, and nobody tells Dagster."""
    d = daemon(instance)
    alive = new_run(instance, tags={TAG_SINK: "s", **process_tags()})
    elsewhere = new_run(instance, tags={TAG_SINK: "s", **process_tags(host="elsewhere")})
    dead = new_run(instance, tags={TAG_SINK: "s", **ended_tags()})
    ended = new_run(instance, status=S.CANCELING, tags={TAG_SINK: "s", **ended_tags()})
    feed = new_run(instance, "feed", tags={TAG_SINK: "s", **ended_tags()})
    foreign = new_run(instance, "not_ours")
    assert "their processes are gone" in d.said("exactly_once_liveness")
    status = {r.run_id: r.status for r in instance.get_runs()}
    assert status[dead] == status[feed] == S.FAILURE and status[ended] == S.CANCELED
    assert status[alive] == status[elsewhere] == status[foreign] == S.STARTED
    said = d.said("exactly_once_liveness")
    assert " on elsewhere, " in said and "does nothing" in said


def test_a_dead_run_is_failed_then_recovered_then_started(instance):
    d = daemon(instance)
    dead = new_run(instance, tags={TAG_SINK: "s", **ended_tags()})
    d.tick("exactly_once_liveness")
    assert d.tick("exactly_once_run_failure").run_requests[0].tags[TAG_RESTART_OF] == dead


@pytest.mark.long
def test_a_run_that_ended_by_itself_in_the_meantime_keeps_its_status(instance, monkeypatch):
    """Its last words are in the storage before its process is gone; a tick that read them earlier must not overrule
    them.
    """
    from dagster_exactly_once.sensors import liveness

    d = daemon(instance)
    run = new_run(instance, tags={TAG_SINK: "s", **ended_tags()})

    looked = liveness._working
    monkeypatch.setattr(liveness, "_working", lambda *args: (looked(*args), brought_to(instance, run, S.SUCCESS))[0])
    assert "ended while this tick" in d.said("exactly_once_liveness")
    assert instance.get_run_by_id(run).status is S.SUCCESS


# -- with a broker ---------------------------------------------------------------------------------------------------


def ask_at_once(monkeypatch):
    """Sensors ask for a recovery without waiting for who may be completing the batch; a clock may be ahead."""
    limits = WatchPolicy.limits.fget
    monkeypatch.setattr(WatchPolicy, "limits", property(lambda self: replace(limits(self), completing_s=-60.0)))


@pytest.fixture
def dead(connection, topic):
    return DeadSink(connection, topic, socket.gethostname(), DEAD)


def on_broker(instance, dead, bootstrap_servers, **policy):
    return daemon(instance, dead.sink_id, dead.topic, dead.topic, bootstrap_servers, **policy)


def test_a_batch_in_doubt_is_recovered_and_seen_on_the_asset(instance, dead, bootstrap_servers, monkeypatch):
    """Decided, its driver dead, and no run in Dagster failed: only the commit log tells."""
    ask_at_once(monkeypatch)
    d = on_broker(instance, dead, bootstrap_servers)
    dead.decide(dead.open_part(0), dead.open_part(1))
    undecided = dead.open_part(2)
    result = d.tick("exactly_once_checkpoint_progress")
    (request,) = result.run_requests
    assert request.run_config["ops"]["inspect"]["config"] == {
        "stream": "stream",
        "reason": request.tags[TAG_CAUSE],
        "restart": False,
        "dry_run": False,
    }
    observation, health, _ = result.asset_events
    assert health.check_name == "health" and not health.passed and health.severity is dg.AssetCheckSeverity.ERROR
    numbers = {k: v.value for k, v in observation.metadata.items()}
    assert (numbers["state"], numbers["code"]) == ("in doubt", "HEALTH-IN-DOUBT")
    assert numbers["open_transactions"] == 3 and numbers["decided_not_proven"] == 1
    rows = {r["transactional_id"]: r for r in (record.data for record in observation.metadata["open"].records)}
    assert rows[undecided]["verdict"] == "undecided" and " of 60 s (" in rows[undecided]["age"]
    assert sorted(r["verdict"] for r in rows.values()) == ["decided", "decided", "undecided"]

    assert "NOT_STARTED" in d.said("exactly_once_checkpoint_progress")
    brought_to(instance, queued(instance, "exactly_once_recovery")[0].run_id, S.FAILURE)
    (again,) = d.tick("exactly_once_checkpoint_progress").run_requests
    assert again.run_key != request.run_key


def committed(batch, topic, end):
    """The files of a checkpoint whose batch has read a topic up to an offset, and is committed."""
    return {
        f"offsets/{batch}": f'v1\n{{"batchTimestampMs":5}}\n{{"{topic}":{{"0":{end}}}}}',
        f"commits/{batch}": "v1\n{}",
    }


@pytest.mark.long
def test_a_batch_that_stays_in_doubt_is_told_to_a_person_once_and_closed_when_it_is_over(
    instance, connection, topic, bootstrap_servers, tmp_path, monkeypatch
):
    """Recoveries that do not help end in silence: readers see part of a batch, and nobody is woken. And the page is not
    closed by a recovery alone: the input waits, and no driver lives.
    """
    ask_at_once(monkeypatch)
    monkeypatch.setattr(incidents, "OVER_AFTER_S", 0.0)
    read = brokers.create_topic(bootstrap_servers, brokers.fresh_name("in"))
    dead = DeadSink(connection, topic, socket.gethostname(), DEAD, checkpoint=str(tmp_path))
    begun = {"metadata": '{"id":"q"}', "sources/0/0": f'\0v1\n{{"{read}":{{"0":0}}}}'}
    write(tmp_path, begun | committed(0, read, 0))
    with webhook() as (url, taken, answers):
        pager = WebhookNotifier(url=url, format="pagerduty", routing_key="key")
        d = daemon(instance, dead.sink_id, read, topic, bootstrap_servers, notify=pager, notice_after_s=0.0)
        dead.decide(dead.open_part(0))
        answers.append(500)
        d.tick("exactly_once_checkpoint_progress")
        (request,) = queued(instance, "exactly_once_recovery")
        brought_to(instance, request.run_id, S.FAILURE)
        for _ in range(3):
            d.tick("exactly_once_checkpoint_progress")
        refused, told = taken
        assert refused["dedup_key"] == told["dedup_key"] and told["event_action"] == "trigger"
        notice = told["payload"]["custom_details"]
        assert (notice["stream"], notice["code"], notice["severity"]) == ("stream", "HEALTH-IN-DOUBT", "critical")
        assert "Open the asset transactions" in notice["what"]

        producer = Producer(connection.librdkafka())
        producer.produce(read, "waits")
        assert producer.flush(30) == 0
        recover(connection, dead.sink_id, 30.0)
        assert d.said("exactly_once_checkpoint_progress").startswith("HEALTH-STOPPED: ")
        assert taken[2:] == []

        write(tmp_path, committed(1, read, 1))
        for _ in range(2):
            d.tick("exactly_once_checkpoint_progress")
        (over,) = taken[2:]
        assert (over["event_action"], over["dedup_key"]) == ("resolve", told["dedup_key"])


@pytest.mark.long
def test_recoveries_that_do_not_help_open_the_circuit(instance, dead, bootstrap_servers, monkeypatch):
    ask_at_once(monkeypatch)
    d = on_broker(instance, dead, bootstrap_servers)
    dead.decide(dead.open_part(0))
    for _ in range(6):
        d.tick("exactly_once_checkpoint_progress")
        for run in queued(instance, "exactly_once_recovery"):
            brought_to(instance, run.run_id, S.SUCCESS)
    assert len(instance.get_runs(dg.RunsFilter(job_name="exactly_once_recovery"))) == 3
    said = d.said("exactly_once_checkpoint_progress")
    assert "circuit breaker is open" in said and "requested 3 recoveries" in said


def test_a_living_owner_is_left_alone_by_all_sensors(instance, connection, topic, bootstrap_servers, monkeypatch):
    """A driver that Dagster knows nothing of (spark-submit on this machine) must not be fenced by a recovery."""
    ask_at_once(monkeypatch)
    me = psutil.Process()
    alive = DeadSink(connection, topic, socket.gethostname(), me.pid, me.create_time())
    d = on_broker(instance, alive, bootstrap_servers, stale_after_s=0.001)
    alive.decide(alive.open_part(0))
    for name in ("exactly_once_checkpoint_progress", "exactly_once_stale_transactions"):
        assert "owner is alive" in d.said(name)


@pytest.mark.long
def test_an_owner_that_nobody_here_can_judge_is_left_alone_by_all_sensors(
    instance, connection, topic, bootstrap_servers, monkeypatch
):
    """Another Dagster instance on the same cluster (a laptop, staging) must not fence production because it cannot see
    its processes.
    """
    ask_at_once(monkeypatch)
    theirs = DeadSink(connection, topic, operator="dagster/production/run-1")
    d = on_broker(instance, theirs, bootstrap_servers, stale_after_s=0.001)
    theirs.decide(theirs.open_part(0))
    for name in ("exactly_once_checkpoint_progress", "exactly_once_stale_transactions"):
        said = d.said(name)
        assert "operated by dagster/production/run-1) holds the sink" in said and "requests no recovery" in said


@pytest.mark.long
def test_a_run_on_another_host_lives_as_long_as_its_status_says(
    instance, connection, topic, bootstrap_servers, monkeypatch
):
    """With a launcher that starts each run in a container, no process of a run is ever on this host."""
    ask_at_once(monkeypatch)
    run = new_run(instance, tags={TAG_HOST: "a-pod", TAG_PID: "7@1.00", TAG_SINK: "another"})
    ours = DeadSink(connection, topic, operator=operator_of(instance, run))
    d = on_broker(instance, ours, bootstrap_servers)
    ours.decide(ours.open_part(0))
    assert not d.tick("exactly_once_checkpoint_progress").run_requests
    brought_to(instance, run, S.SUCCESS)
    assert d.tick("exactly_once_checkpoint_progress").run_requests


def test_stale_transactions_of_a_dead_driver_are_recovered(instance, dead, bootstrap_servers):
    d = on_broker(instance, dead, bootstrap_servers, stale_after_s=0.2, hanging_every_s=9_999.0)
    name = dead.open_part(0)
    end = time.monotonic() + 20
    while not (result := d.tick("exactly_once_stale_transactions")).run_requests:
        assert time.monotonic() < end, result
    (request,) = result.run_requests
    assert name in request.tags[TAG_CAUSE] and request.tags[TAG_CAUSE].startswith("HEALTH-STALE-TRANSACTIONS: ")


def test_foreign_transactions_are_named_and_never_touched(instance, dead, bootstrap_servers, connection):
    """They may be another application's payments, but they hold back our readers, so a person should know."""
    name = brokers.fresh_name("payments")
    producer = brokers.open_transaction(connection, name)
    producer.produce(dead.topic, "x", partition=0)
    producer.flush(30)
    d = on_broker(instance, dead, bootstrap_servers, stale_after_s=0.001, hanging_every_s=0.0)
    end = time.monotonic() + 20
    while name not in (said := d.said("exactly_once_stale_transactions")):
        assert time.monotonic() < end, said
    assert "HEALTH-FOREIGN-TRANSACTION" in said
    with Admin(connection) as admin:
        assert describe(admin, [name])[name].state == "Ongoing"
    producer.abort_transaction(30)


def test_a_sink_at_rest_without_a_run_is_stopped(instance, connection, topic, bootstrap_servers, tmp_path):
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text('{"id":"q"}')
    dead = DeadSink(connection, topic, socket.gethostname(), DEAD, checkpoint=str(tmp_path))
    d = on_broker(instance, dead, bootstrap_servers)
    assert d.said("exactly_once_checkpoint_progress").startswith("HEALTH-STOPPED: ")
    assert d.tick("exactly_once_checkpoint_progress").asset_events == []  # told a moment ago, and nothing changed


def test_a_tick_asks_the_brokers_how_far_a_dead_stream_is_behind(
    instance, dead, bootstrap_servers, connection, monkeypatch
):
    """Mishap: the lag of the last batch stands on the page for as long as nobody starts the stream."""
    monkeypatch.setattr(checkpoint_progress, "SHOW_EVERY_S", 0.0)
    d = on_broker(instance, dead, bootstrap_servers)

    def shown():
        (page,) = [
            e
            for e in d.tick("exactly_once_checkpoint_progress").asset_events
            if e.asset_key == dg.AssetKey(ALL_STREAMS)
        ]
        assert abs(time.time() - page.metadata["looked_at"].value) < 30
        return int(page.metadata["streams"].records[0].data["lag"])

    assert shown() == 0
    producer = Producer(connection.librdkafka())
    for count in (5, 12):
        for n in range(count):
            producer.produce(dead.topic, str(n))
        assert producer.flush(30) == 0
        assert shown() == {5: 5, 12: 17}[count]


def test_a_sink_that_was_never_used_is_no_problem(instance, topic, bootstrap_servers):
    """The first tick comes before the first start of the stream."""
    d = daemon(instance, brokers.fresh_name("unused"), topic, topic, bootstrap_servers)
    assert d.said("exactly_once_checkpoint_progress").startswith("HEALTH-NEVER-USED: ")
    assert "HEALTH-" not in d.said("exactly_once_stale_transactions")


@pytest.mark.long
@pytest.mark.parametrize("name", ["exactly_once_checkpoint_progress", "exactly_once_stale_transactions"])
def test_a_broker_that_does_not_answer_is_said_and_nothing_is_done(instance, name):
    """A recovery could not help; and a tick that hangs holds up every other sensor."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(8)  # accepts, and never answers
        d = daemon(instance, servers=f"127.0.0.1:{deaf.getsockname()[1]}")
        began = time.monotonic()
        result = d.tick(name)
        assert time.monotonic() - began < 15
    assert (
        "EO-UNREACHABLE" in result.skip_reason.skip_message
        and "This sensor did nothing" in result.skip_reason.skip_message
    )
    assert not result.run_requests and not result.asset_events


def test_the_sensors_of_the_code_location_tick_with_its_resources(instance, bootstrap_servers, monkeypatch):
    """A resource that a sensor cannot get fails each of its ticks."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", bootstrap_servers)
    from platform_assets.definitions import defs

    repository = defs.get_repository_def()
    for name in SENSORS:
        sensor = repository.get_sensor_def(name)
        assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
        found = repository.get_top_level_resources()
        resources = {key: found[key] for key in sensor.required_resource_keys}  # as the code server does
        with dg.build_sensor_context(instance=instance, resources=resources, sensor_name=name) as context:
            tick = sensor.evaluate_tick(context)
        assert tick.skip_message and not tick.run_requests, tick
