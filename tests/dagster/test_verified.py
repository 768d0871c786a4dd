"""The check ``verified`` on a real broker: a right stream passes, and what an operator broke fails by its name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from confluent_kafka import Producer

from dagster_exactly_once import Checks, exactly_once_definitions, exactly_once_resources, exactly_once_stream
from exactly_once.outputs.files import FileParticipant
from testkit import broker as brokers
from testkit import oracle
from testkit.fixtures import Bench, KafkaInput
from testkit.stream import Job, SparkDriver

NAME = "verified_stream"


@pytest.fixture
def archive(bench: Bench, tmp_path):
    """A folder that the bench's stream writes to under the same decision."""
    folder = tmp_path / "archive"
    made = {"class": "exactly_once.outputs.files:FileParticipant", "name": "archive", "url": str(folder)}
    bench.job = Job(**{**vars(bench.job), "participants": [made]})
    return folder


def definitions(bench: Bench, archive=None, source=None, origin=None, verify_cron=None) -> dg.Definitions:
    """The code location of the bench's stream."""
    others = {"participants": lambda: [FileParticipant("archive", str(archive))]} if archive else {}
    stream = exactly_once_stream(
        name=NAME,
        source=source or brokers.create_topic(bench.connection.bootstrap_servers),
        outputs=[dg.AssetSpec("orders_out", metadata={"exactly_once/topic": bench.topic})],
        sink_id=bench.sink_id,
        checks=Checks(origin=origin, verify_cron=verify_cron),
        **others,
    )(lambda events: events)
    kafka = {"bootstrap_servers": bench.connection.bootstrap_servers}
    resources = exactly_once_resources(work_dir="spark", checkpoints=str(bench.checkpoint.parent), kafka=kafka)
    return exactly_once_definitions(stream, resources=resources)


def evaluated(bench: Bench, archive=None, source=None, origin=None, **config):
    """Run the stream's job of the check; returns the evaluation."""
    job = definitions(bench, archive, source, origin).resolve_job_def(f"{NAME}_verify")
    ops = {"orders_out_verified": {"config": config}}
    with dg.DagsterInstance.ephemeral() as instance:
        done = job.execute_in_process(run_config={"ops": ops}, instance=instance)
    assert done.success and not done.get_asset_materialization_events()
    (found,) = done.get_asset_check_evaluations()
    return found


@pytest.mark.long
def test_a_stream_passes_and_what_an_operator_broke_fails_by_its_name(bench: Bench, warm: SparkDriver, archive) -> None:
    """Guards against a check that is green whatever happens, and against one that is red over a healthy stream: it
    must know the outputs that the stream declares, and its checkpoint.
    """
    before = evaluated(bench, archive)
    assert before.passed and "no batch yet" in before.description
    bench.complete(warm, batches=2)

    right = evaluated(bench, archive)
    assert right.passed, right.description
    assert right.metadata["batches_proven"].value == 2 and right.metadata["parts_unproven"].value == 0
    assert right.metadata["parts_proven"].value == 2 * 2 * 4
    assert evaluated(bench, archive, batches=1).metadata["batches_proven"].value == 1

    for path in archive.glob("batch=00000000000000000001-*/*"):
        path.unlink()
    broken = evaluated(bench, archive, settle_s=0)
    assert not broken.passed and broken.severity is dg.AssetCheckSeverity.ERROR
    assert "1 split sink" in broken.description
    rows = [record.data for record in broken.metadata["findings"].records]
    assert {row["anomaly"] for row in rows} == {"lost", "split sink", "outcome lie"}
    assert any(row["batch"] == "batch 1" and "archive shows nothing" in row["what"] for row in rows)


def launched(instance: dg.DagsterInstance, repository: dg.RepositoryDefinition, at: datetime) -> str:
    """Evaluate the schedule of the check for a time, and run what it asks for; returns the run's id."""
    schedule = repository.get_schedule_def(f"{NAME}_verify_schedule")
    with dg.build_schedule_context(
        instance=instance, scheduled_execution_time=at, repository_def=repository
    ) as context:
        tick = schedule.evaluate_tick(context)
    (request,) = tick.run_requests
    job = repository.get_job(request.job_name or schedule.job_name)
    done = job.execute_in_process(run_config=request.run_config, tags=request.tags, instance=instance)
    assert done.success
    return done.run_id


@pytest.mark.long
def test_a_tick_of_the_schedule_ends_as_the_result_of_the_check(bench: Bench, warm: SparkDriver, archive) -> None:
    """Guards against a schedule that is on and proves nothing: it asks for no run, for a job or a configuration that
    does not load, or for one whose result never gets to the asset.
    """
    bench.complete(warm, batches=2)
    repository = definitions(bench, archive, verify_cron="0 * * * *").get_repository_def()
    check = dg.AssetCheckKey(dg.AssetKey("orders_out"), "verified")
    due = datetime(2026, 3, 1, 4, tzinfo=UTC)

    def result(instance: dg.DagsterInstance, run_id: str):
        found = instance.event_log_storage.get_latest_asset_check_execution_by_key([check])[check]
        assert found.run_id == run_id
        return found.event.dagster_event.asset_check_evaluation_data

    with dg.instance_for_test() as instance:
        run_id = launched(instance, repository, due)
        right = result(instance, run_id)
        assert right.passed and right.metadata["batches_proven"].value == 2, right.description
        assert instance.get_run_by_id(run_id).tags["dagster/schedule_name"] == f"{NAME}_verify_schedule"

        for path in archive.glob("batch=00000000000000000001-*/*"):
            path.unlink()
        broken = result(instance, launched(instance, repository, due + timedelta(hours=1)))
        assert not broken.passed and "1 split sink" in broken.description, broken.description


def by_key(topic, record):
    """The key is the source's partition and offset."""
    partition, _, offset = record.key.decode().partition("-")
    return int(partition), int(offset)


@pytest.mark.long
def test_the_whole_output_is_compared_by_the_origin_that_the_stream_declares(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Guards against a check that accepts ``by_origin`` and compares nothing: an old second copy, which no decision
    of the last batches names, must fail it. Before the first batch, its schedule must not fail either.
    """
    declared = {"source": kafka_input.topic, "origin": by_key, "by_origin": True}
    before = evaluated(bench, **declared)
    assert before.passed and "no batch yet" in before.description, before.description

    kafka_input.fill(batches=2, rows=40)
    select = ["concat_ws('-', partition, offset) AS key", "value"]
    bench.job = Job(**{**vars(bench.job), "source": kafka_input.source(200), "select": select})
    warm.complete(bench.job)

    right = evaluated(bench, **declared)
    assert right.passed and "80 input records each" in right.description, right.description
    assert right.metadata["output_by_origin"].value == 80

    copy = oracle.read(bench.connection, [bench.topic])[0]
    other = Producer(bench.connection.librdkafka())
    other.produce(bench.topic, copy.value, copy.key, partition=0)
    other.flush(30)
    broken = evaluated(bench, **declared)
    assert not broken.passed and "1 duplicate" in broken.description

    with pytest.raises(dg.Failure, match=r"by_origin: .* does not declare how"):
        evaluated(bench, by_origin=True)
