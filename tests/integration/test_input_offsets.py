"""The consumer group of a stream: what ordinary lag tools see of it, as the brokers tell it."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict

import pytest
from kafka.admin import KafkaAdminClient

from dagster_exactly_once.resources.checkpoints import CheckpointReader
from exactly_once.commitlog.commit_log import Offsets
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import offsets_group
from testkit.fixtures import Bench, KafkaInput, StartDriver
from testkit.processes import until
from testkit.stream import PATIENCE_S, Job, SparkDriver


def of_group(connection: Connection, group: str) -> Offsets:
    """What ``kafka-consumer-groups --describe`` would show."""
    admin = KafkaAdminClient(**connection.kafka_python())
    try:
        found: dict[str, dict[int, int]] = {}
        for partition, offset in admin.list_group_offsets([group])[group].items():
            found.setdefault(partition.topic, {})[partition.partition] = offset.offset
        return found
    finally:
        admin.close()


def reading(bench: Bench, source: KafkaInput) -> Job:
    """The bench's job with a Kafka input."""
    return Job(**{**asdict(bench.job), "source": source.source(1000), "select": ["key", "value"]})


@pytest.mark.long
def test_a_lag_tool_sees_how_far_the_stream_is(bench: Bench, kafka_input: KafkaInput, warm: SparkDriver) -> None:
    """Invariant 9: the group's offsets are those of the last batch, not of what was merely read."""
    group = offsets_group(bench.sink_id)
    for _ in range(2):
        kafka_input.fill(batches=1, rows=20)
        warm.complete(reading(bench, kafka_input))
        assert of_group(bench.connection, group) == CheckpointReader(root="").committed_offsets(str(bench.checkpoint))
    bench.assert_exactly(kafka_input.sent)


@pytest.mark.long
def test_the_offsets_move_with_the_decision_and_not_before_it(
    bench: Bench, kafka_input: KafkaInput, driver: StartDriver
) -> None:
    """Offsets that moved before the decision would hide a batch that is still to be written."""
    group = offsets_group(bench.sink_id)
    kafka_input.fill(batches=1, rows=20)
    for point, moved in (("all-prepared", False), ("decided", True)):
        victim = driver()
        victim.arm(point)
        victim.start(reading(bench, kafka_input))
        until(f"the stream comes to {point}", lambda v=victim, p=point: v.has_reached(p), PATIENCE_S)
        victim.kill9()
        assert bool(of_group(bench.connection, group)) is moved


def test_a_source_that_is_not_kafka_has_no_group(bench: Bench, warm: SparkDriver) -> None:
    """Numbers of files must not appear as offsets of a topic."""
    bench.complete(warm)
    assert of_group(bench.connection, offsets_group(bench.sink_id)) == {}
    bench.assert_exactly_once()


def test_the_group_is_left_alone_when_asked(bench: Bench, kafka_input: KafkaInput, warm: SparkDriver) -> None:
    """With the input on another cluster, a topic of the same name here would show a lag that is not its own."""
    kafka_input.fill(batches=1, rows=20)
    warm.complete(reading(bench, kafka_input).having(sink_input_offsets="false"))
    assert of_group(bench.connection, offsets_group(bench.sink_id)) == {}
    bench.assert_exactly(kafka_input.sent)


@pytest.mark.long
def test_a_stream_whose_checkpoint_is_gone_goes_on_at_the_groups_offsets(
    bench: Bench, kafka_input: KafkaInput, driver: StartDriver, warm: SparkDriver
) -> None:
    """docs/production.md says so: guards against a new checkpoint that repeats or skips the last batch, here one that
    was decided and not committed.
    """
    kafka_input.fill(batches=1, rows=20)
    victim = driver()
    victim.arm("decided")
    victim.start(reading(bench, kafka_input))
    until("the stream comes to decided", lambda: victim.has_reached("decided"), PATIENCE_S)
    victim.kill9()
    shutil.rmtree(bench.checkpoint)
    kafka_input.fill(batches=1, rows=20)
    offsets = of_group(bench.connection, offsets_group(bench.sink_id))
    job = reading(bench, kafka_input)
    job.source["options"]["startingOffsets"] = json.dumps(offsets)
    refused = warm.run(job).with_code("EO-SINK-OWNED")

    warm.complete(job.having(**refused.consent("sink.takeover")))

    bench.assert_exactly(kafka_input.sent)
