"""The job for hanging transactions, on a real broker: what hangs, whose it is, and that nothing ends by default."""

import socket

import pytest

from dagster_exactly_once.declare.config import ANOTHER_SINK
from dagster_exactly_once.names import HANGING_JOB
from dagster_exactly_once.runs.history import classify
from exactly_once.kafka.connection import Connection
from exactly_once.txn import leaders
from platform_assets.definitions import defs
from testkit import broker as brokers
from testkit.dagster_runs import audited
from testkit.dead_sink import DEAD, DeadSink
from testkit.hanging import UNVERIFIED, blocked, leave_hanging, wait_until_readable
from testkit.part_ids import part_id


@pytest.fixture
def unverified(own_broker, monkeypatch):
    """A broker that lets a transaction begin without its coordinator, as those before Kafka 3.6 did."""
    servers = own_broker(properties=UNVERIFIED).bootstrap_servers
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", servers)
    monkeypatch.setattr(leaders, "_ASK_AGAIN_S", 0.1)  # no coordinator dies here
    return Connection(servers)


def run(instance, sink_id, **config):
    return defs.resolve_job_def(HANGING_JOB).execute_in_process(
        instance=instance,
        run_config={"ops": {"search": {"config": {"stream": ANOTHER_SINK, "sink_id": sink_id, **config}}}},
        raise_on_error=False,
    )


@pytest.mark.long
def test_a_hanging_transaction_is_listed_then_ended_and_a_foreign_one_only_with_its_typed_consequence(
    instance, unverified
):
    """With only the UI, readers waited forever; a click that ended another application's records would lose them."""
    topic = brokers.create_topic(unverified.bootstrap_servers, partitions=3)
    dead = DeadSink(unverified, topic, socket.gethostname(), DEAD)
    dead.decide(dead.open_part(0))  # an ordinary transaction, which the search must leave out
    leave_hanging(unverified, topic, 1, part_id(dead.sink_id, 1, 7, "0.0"))
    unknown = leave_hanging(unverified, topic, 2)
    ours, theirs = f"{topic}-1@0", f"{topic}-2@0"

    dry = run(instance, dead.sink_id, transaction=ours, reason="a test")
    assert dry.success and blocked(unverified, topic) == [0, 1, 2]
    assert [e.step_key for e in dry.all_events if e.is_step_skipped] == ["end"]
    [said] = audited(dry)
    assert (said["end_hanging"], said["hanging_by"], said["hanging_reason"]) == ("dry run", "a person", "a test")
    listed = {r.data["transaction"]: r.data for r in said["hanging"].records}
    assert set(listed) == {ours, theirs}
    phrase = listed[theirs]["consequence"]
    assert phrase == f"lose up to 1 record of unknown producer {unknown} on {topic}-2"
    assert listed[ours]["whose"] == f"sink {dead.sink_id}, not decided"

    done = run(instance, dead.sink_id, transaction=ours, dry_run=False)
    assert done.success
    wait_until_readable(unverified, topic, 1)
    began, ended = audited(done)
    assert (began["end_hanging"], ended["end_hanging"], ended["transaction"]) == ("began", "ended", ours)

    for wrong in ("", "yes", phrase.replace("1 record", "2 records")):
        refused = run(instance, dead.sink_id, transaction=theirs, dry_run=False, consequence=wrong)
        why = classify(instance, refused.run_id)
        assert (
            why.code == "EO-REFUSED" and f"set consequence to: {phrase}" in why.remedy and "--force" not in why.sentence
        )
        assert 2 in blocked(unverified, topic)
    gone = run(instance, dead.sink_id, transaction=ours, dry_run=False)
    assert classify(instance, gone.run_id).code == "EO-REFUSED"

    done = run(instance, dead.sink_id, transaction=theirs, dry_run=False, consequence=phrase)
    assert done.success and audited(done)[-1]["consequence"] == phrase
    wait_until_readable(unverified, topic, 2)
    assert "No transaction hangs" in audited(run(instance, dead.sink_id))[0]["sentence"]


def test_no_sensor_can_launch_the_job():
    """A consequence that a person typed out once must not be used again by a machine."""
    repository = defs.get_repository_def()
    for sensor in repository.sensor_defs:
        assert HANGING_JOB not in {target.job_name for target in sensor.targets}
