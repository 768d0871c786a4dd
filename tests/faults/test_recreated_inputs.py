"""An input topic that was deleted and made again: its offsets name other records, and no start reads on in silence."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from dagster_exactly_once.runs.failures import diagnose
from exactly_once.kafka.admin import Admin
from testkit.broker import create_topic, delete_topic
from testkit.fixtures import Bench, KafkaInput
from testkit.stream import Ended, Job, Row, SparkDriver

#: The two ways into the sink: its format, and ``foreach_batch`` with Kafka alone.
WAYS = [pytest.param(None, id="format"), pytest.param([], id="foreach_batch")]


def reading(bench: Bench, source: KafkaInput, participants: list[dict[str, str]] | None = None) -> Job:
    """The bench's job over an input topic, in batches of whatever is there."""
    job = {**asdict(bench.job), "source": source.source(1_000_000), "participants": participants}
    return Job(**{**job, "select": ["cast(key as string) key", "cast(value as string) value"]})


def make_again(source: KafkaInput, rows: int) -> tuple[str, str, list[Row]]:
    """Delete the input topic, and make it again with ``rows`` other rows; return the old id, the new one, the rows."""
    with Admin(source.connection) as admin:
        [old] = admin.topic_ids([source.topic]).values()
        delete_topic(source.connection.bootstrap_servers, source.topic)
        create_topic(source.connection.bootstrap_servers, source.topic, partitions=4)
        [new] = admin.renew(30).topic_ids([source.topic]).values()
    return old, new, source.add("new", rows)


def assert_refused(ended: Ended, source: KafkaInput, old: str, new: str) -> None:
    """The refusal names the topic and both ids."""
    assert ended.code == "EO-INPUT-RECREATED", ended.failure
    assert all(name in ended.sentence for name in (source.topic, old, new)), ended.sentence
    assert ended.consent("sink.adopt") == {"sink_adopt": new}


@pytest.mark.long
@pytest.mark.parametrize("participants", WAYS)
def test_an_input_topic_that_was_made_again_is_not_read_from_the_middle_before_a_person_says_so(
    participants: list[dict[str, str]] | None, bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Invariant 10, a loss: the new topic had more records than the old one, Spark went on at the old offsets, and
    4,000 of 9,000 records were never read.
    """
    job = reading(bench, kafka_input, participants)
    written = kafka_input.add("old", 80)
    warm.complete(job)
    old, new, rows = make_again(kafka_input, 200)

    refused = warm.run(job)

    assert_refused(refused, kafka_input, old, new)
    bench.assert_exactly(written)
    assert bench.decided_batches() == [0]
    warm.complete(job.having(**refused.consent("sink.adopt")))
    bench.assert_exactly([*written, *rows[80:]])  # as the message says: those before the old offsets are never read
    written += [*rows[80:], *kafka_input.add("more", 8)]
    warm.complete(job)
    bench.assert_exactly(written)


@pytest.mark.quick("decided")
@pytest.mark.parametrize("point", ["all-prepared", "decided"])
def test_a_batch_that_was_planned_in_the_deleted_topic_is_committed_if_it_is_decided_and_else_refused(
    point: str, bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Invariant 10: guards against the batch in flight, whose offsets Spark takes from the checkpoint, with records of
    the new topic; and against a refusal that lets the transactions of a decided batch time out.
    """
    job = reading(bench, kafka_input)
    written = kafka_input.add("old", 80)
    warm.complete(job)
    flying = kafka_input.add("flying", 40)
    warm.arm(point, "raise")
    assert f"failpoint {point}" in (warm.run(job).failure or "")
    old, new, _ = make_again(kafka_input, 400)

    refused = warm.run(job)

    assert_refused(refused, kafka_input, old, new)
    if point == "decided":
        bench.assert_exactly([*written, *flying])
    else:
        assert sorted(bench.visible()) == sorted(written)


@pytest.mark.long
def test_a_batch_of_an_input_topic_that_is_made_again_while_it_runs_is_not_decided(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Invariant 10: guards against ids that are read at the start alone; the tasks of this batch may have read either
    topic.
    """
    job = reading(bench, kafka_input)
    written = kafka_input.add("old", 80)
    warm.complete(job)
    kafka_input.add("flying", 40)
    run = warm.hold(job, "all-prepared", "wait")
    old, new, _ = make_again(kafka_input, 400)
    warm.release("all-prepared")

    assert_refused(run.end(), kafka_input, old, new)
    bench.assert_exactly(written)


@pytest.mark.long
def test_a_new_checkpoint_reads_all_of_an_input_topic_that_was_made_again(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """The way out that the refusal names: guards against advice that does not work, or that wants one word more."""
    job = reading(bench, kafka_input)
    written = kafka_input.add("old", 80)
    warm.complete(job)
    _, _, rows = make_again(kafka_input, 200)
    refused = warm.run(job)
    anew = job.having(checkpointLocation=f"{bench.checkpoint}-2", **refused.consent("sink.takeover"))

    warm.complete(anew)

    bench.assert_exactly([*written, *rows])


@pytest.mark.long
def test_an_input_of_another_cluster_is_not_compared_with_a_topic_of_its_name_here(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Guards against a stream that a topic stops which it does not read: ``sink.input.offsets=false`` says so."""
    job = reading(bench, kafka_input).having(sink_input_offsets="false")
    written = kafka_input.add("old", 80)
    warm.complete(job)
    assert bench.log().decisions[-1].input_ids == {}
    _, _, rows = make_again(kafka_input, 200)

    warm.complete(job)

    bench.assert_exactly([*written, *rows[80:]])


@pytest.mark.long
def test_an_input_topic_that_was_made_again_with_fewer_records_is_named_whatever_spark_says_first(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Guards against Spark's own error, which does not say that the topic is another one; with failOnDataLoss=false
    Spark would say nothing at all.
    """
    job = reading(bench, kafka_input)
    kafka_input.add("old", 80)
    warm.complete(job)
    old, new, _ = make_again(kafka_input, 20)
    source = {**job.source, "options": {**job.source["options"], "failOnDataLoss": "false"}}

    assert diagnose(RuntimeError(warm.run(job).failure)).code == "SPARK-INPUT-LOST"  # on its plan of the batch
    assert_refused(warm.run(job), kafka_input, old, new)
    assert_refused(warm.run(replace(job, source=source)), kafka_input, old, new)
