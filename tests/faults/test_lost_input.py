"""The input of the batch in flight is gone: what the commit log says of the batch decides what is lost, and the way
out.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from dagster_exactly_once.runs.failures import diagnose
from faultlab.state import TRANSFORM
from testkit import repair
from testkit.fixtures import Bench, KafkaInput
from testkit.stream import Job, SparkDriver

SELECT = ["cast(key as string) key", "cast(value as string) value"]


def reading(bench: Bench, source: KafkaInput) -> Job:
    """The bench's job over an input topic, in batches of whatever is there."""
    return replace(bench.job, source=source.source(1_000_000), select=SELECT)


def delete_records(source: KafkaInput) -> None:
    """Delete all records of the input, as retention does."""
    admin = AdminClient({**source.connection.librdkafka(), "log_level": 0})
    ends = [TopicPartition(source.topic, p, -1) for p in range(4)]
    for done in admin.delete_records(ends).values():
        done.result(30)


def lose_input_of_second_batch(point: str, job: Job, source: KafkaInput, driver: SparkDriver) -> None:
    """Complete a batch, fail the next one at ``point``, and delete the input of both."""
    source.add("first", 40)
    driver.complete(job)
    source.add("second", 40)
    driver.arm(point, "raise")
    assert f"failpoint {point}" in (driver.run(job).failure or "")
    delete_records(source)


def warned(bench: Bench, driver: SparkDriver) -> str:
    """Return the one warning of the start."""
    [warning] = re.findall(rf"sink {bench.sink_id}: EO-WARN-INPUT .*", driver.log.read_text())
    return str(warning)


@pytest.mark.long
@pytest.mark.parametrize("transform", ["", pytest.param(TRANSFORM, marks=pytest.mark.long, id="with state")])
def test_a_committed_batch_whose_input_is_gone_is_marked_by_the_repair_and_the_stream_goes_on(
    transform: str, bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Mishap: nothing was missing in the output, and no start got on: Spark reads the rows that the drain throws away,
    and the advice was to write everything again under a new sink id.
    """
    job = replace(reading(bench, kafka_input), transform=transform)
    lose_input_of_second_batch("decided", job, kafka_input, warm)
    stuck = warm.run(job)
    assert stuck.code is None and diagnose(RuntimeError(stuck.failure)).code == "SPARK-INPUT-LOST", stuck.failure
    assert sorted(bench.visible()) == sorted(kafka_input.sent)
    warning = warned(bench, warm)
    assert "batch 1 is completed" in warning and f"--sink {bench.sink_id} --write-commit --apply" in warning

    done = repair.mend(bench, write_commit=True)

    assert [(f.name, f.action.value) for f in done.to_do] == [("commits/1", "rebuild")]
    written = [*kafka_input.sent, *kafka_input.add("third", 8)]
    again = kafka_input.add("second", 40)  # whoever drops what was there before knows all of them
    warm.complete(job)
    assert sorted(bench.visible()) == sorted(written if transform else [*written, *again])
    bench.assert_settled()
    assert bench.decided_batches() == [0, 1, 2]


@pytest.mark.long
def test_the_records_of_an_undecided_batch_whose_input_is_gone_are_named_as_lost_and_no_commit_is_written(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """A loss: guards against a repair that marks what was never written."""
    job = reading(bench, kafka_input)
    lose_input_of_second_batch("all-prepared", job, kafka_input, warm)
    assert diagnose(RuntimeError(warm.run(job).failure)).code == "SPARK-INPUT-LOST"
    assert "batch 1 is not decided" in warned(bench, warm)

    found = repair.mend(bench, write_commit=True)

    assert [f.name for f in found.refused] == ["commits/1"] and not found.applied
    assert sorted(bench.visible()) == sorted(kafka_input.sent[:40])
    source = {**job.source, "options": {**job.source["options"], "failOnDataLoss": "false"}}
    more = kafka_input.add("third", 8)
    warm.complete(replace(job, source=source))
    bench.assert_exactly([*kafka_input.sent[:40], *more])


@pytest.mark.long
def test_rolled_back_rows_whose_input_is_gone_are_named_as_lost(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """A loss: "the output is correct for the input that the stream has read", said the page, and the rows of the batch
    were in no output.
    """
    job = reading(bench, kafka_input)
    lose_input_of_second_batch("decided", job, kafka_input, warm)
    decision = bench.log().decisions[-1]
    bench.abort_parts(decision, *(h.part for h in decision.transactions))
    assert diagnose(RuntimeError(warm.run(job).failure)).code == "SPARK-INPUT-LOST"
    assert "part that was rolled" in warned(bench, warm)
    source = {**job.source, "options": {**job.source["options"], "failOnDataLoss": "false"}}
    job = replace(job, source=source)
    expired = warm.run(job).with_code("EO-EXPIRED")
    more = kafka_input.add("third", 8)
    warm.complete(job.having(**expired.consent("sink.accept.lost")))
    bench.assert_exactly([*kafka_input.sent[:40], *more])
