"""A new version of a stream continues after the last decided batch of the old one: with Spark, under kill -9.

The output is read by the oracle's client, which the sink does not use: whatever dies, each row is there once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import exactly_once
from exactly_once.coordinator.recover import recover
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import offsets_group
from exactly_once.protocol.takeover import ends_of
from exactly_once.tools import cli
from exactly_once.tools.operation.rules import Refused
from testkit import oracle
from testkit.broker import create_topic
from testkit.fixtures import Bench, KafkaInput, StartDriver
from testkit.stream import Job, Run, SparkDriver
from testkit.successor import retire
from tests.integration.test_input_offsets import of_group

#: The place of each row's input record, as a header.
ORIGIN = (
    "array(named_struct('key', 'src', 'value', cast(concat_ws('-', topic, partition, offset) AS binary))) AS headers"
)


def old_job(bench: Bench, kafka_input: KafkaInput) -> Job:
    return replace(bench.job, source=kafka_input.source(150), select=["key", "value"])


def new_job(bench: Bench, kafka_input: KafkaInput, checkpoint: Path, beside: str = "") -> Job:
    """The new version: another checkpoint, another sink id, and rows that say who wrote them.

    ``beside`` is another topic, for a query that reads along.
    """
    old = old_job(bench, kafka_input)
    options = {
        **old.options,
        "sink.id": f"{bench.sink_id}-v2",
        "checkpointLocation": str(checkpoint),
        "topic": beside or bench.topic,
    }
    begin = exactly_once.starting_offsets(options, bench.sink_id, beside=bool(beside))
    source = {**old.source, "options": {**old.source["options"], "startingOffsets": begin}}
    return replace(old, source=source, options=options)


def stop_in_second_batch(
    running: SparkDriver, job: Job, bench: Bench, kafka_input: KafkaInput, point: str, action: str = "hang"
) -> Run:
    """Let ``running`` write its first input, and the next batch come to ``point``."""
    run = running.start(job.until_stopped())
    run.await_true("the first input", lambda: len(bench.visible()) == len(kafka_input.sent))
    running.arm(point, action)
    kafka_input.add_uneven(30, 10, 20, 20)
    run.await_true(point, lambda: running.has_reached(point))
    return run


def retire_old(connection: Connection, bench: Bench) -> Mapping[str, Any]:
    return retire(connection, bench.sink_id, f"{bench.sink_id}-v2")


def let_go(connection: Connection, sink_id: str) -> None:
    """Take the sink from a driver that lives on without its stream."""
    with pytest.raises(Refused) as alive:
        exactly_once.recover(connection, sink_id)
    assert exactly_once.recover(connection, sink_id, force=alive.value.phrase).clean


@pytest.mark.long
def test_a_new_version_continues_after_the_last_decided_batch(
    connection: Connection, bench: Bench, kafka_input: KafkaInput, warm: SparkDriver, tmp_path: Path
) -> None:
    """Loss or duplicate: each row of the input is in the output of one of the two, and the old one starts no more."""
    old = old_job(bench, kafka_input)
    kafka_input.fill(2, 100)
    warm.complete(old)
    kafka_input.add_uneven(10, 20, 0, 30)  # which the old one never sees
    with pytest.raises(Refused, match="is alive"):
        retire_old(connection, bench)
    let_go(connection, bench.sink_id)

    found = retire_old(connection, bench)

    retired = bench.log().retired
    assert retired is not None and ends_of(retired) == of_group(connection, offsets_group(bench.sink_id))
    assert warm.run(old).code == "EO-RETIRED"
    new = new_job(bench, kafka_input, tmp_path / "new")
    warm.complete(new)
    kafka_input.add_uneven(5, 5, 5, 5)
    warm.complete(new_job(bench, kafka_input, tmp_path / "new"))  # the same program, started again
    bench.assert_exactly(kafka_input.sent)
    assert retire_old(connection, bench)["starting_offsets"] == found["starting_offsets"]


@pytest.mark.long
@pytest.mark.parametrize("point", ["mid-write", "all-prepared", "decided", "some-ended"])
def test_whatever_the_old_driver_died_of_the_output_is_complete_and_single(
    point: str,
    connection: Connection,
    bench: Bench,
    kafka_input: KafkaInput,
    driver: StartDriver,
    warm: SparkDriver,
    tmp_path: Path,
) -> None:
    """Before the decision the new query writes the batch, after it the old sink does; never both, never neither."""
    old = old_job(bench, kafka_input)
    kafka_input.fill(2, 100)
    killed = driver()
    stop_in_second_batch(killed, old, bench, kafka_input, point)
    killed.kill9()
    before = bench.decided_batches()[-1]
    with pytest.raises(Refused, match=r"open|not proven committed"):
        retire_old(connection, bench)
    assert recover(connection, bench.sink_id).clean

    found = retire_old(connection, bench)

    assert found["batch_id"] == before
    assert warm.run(old).code == "EO-RETIRED"
    warm.complete(new_job(bench, kafka_input, tmp_path / "new"))
    bench.assert_exactly(kafka_input.sent)


@pytest.mark.long
def test_a_driver_that_is_frozen_while_its_sink_gets_a_successor_decides_nothing(
    connection: Connection,
    bench: Bench,
    kafka_input: KafkaInput,
    driver: StartDriver,
    warm: SparkDriver,
    tmp_path: Path,
) -> None:
    """Duplicate: it wakes up right before its decision, when the successor has written the batch."""
    old = old_job(bench, kafka_input)
    frozen = driver()
    kafka_input.fill(1, 100)
    run = stop_in_second_batch(frozen, old, bench, kafka_input, "all-prepared", "wait")
    frozen.freeze()
    let_go(connection, bench.sink_id)
    retire_old(connection, bench)
    warm.complete(new_job(bench, kafka_input, tmp_path / "new"))

    frozen.release("all-prepared")
    frozen.thaw()

    ended = run.end()
    assert ended.code in ("EO-FENCED", "EO-EXPIRING")
    bench.assert_exactly(kafka_input.sent)


@pytest.mark.long
def test_a_new_version_reads_along_into_a_shadow_topic_and_takes_over_with_its_own_checkpoint(
    connection: Connection, bench: Bench, kafka_input: KafkaInput, warm: SparkDriver, tmp_path: Path
) -> None:
    """Blue/green. Loss or duplicate: the green query takes over after, or before, what the blue one has written."""
    shadow = create_topic(connection.bootstrap_servers, f"{bench.topic}-shadow", partitions=4)
    blue = old_job(bench, kafka_input)
    kafka_input.fill(1, 100)
    warm.complete(blue)
    before = len(kafka_input.sent)
    green = new_job(bench, kafka_input, tmp_path / "green", beside=shadow)
    green.select.append(ORIGIN)
    kafka_input.add_uneven(30, 10, 20, 20)
    warm.complete(green)
    oracle.assert_exactly(oracle.read(connection, [shadow]), kafka_input.sent[before:])
    verify = ["verify", green.options["sink.id"], "--checkpoint", str(tmp_path / "green"), "--origin", "header:src"]
    verify += ["--settle", "5", "--bootstrap-servers", connection.bootstrap_servers]
    assert cli.main(verify) == 0

    let_go(connection, bench.sink_id)
    let_go(connection, green.options["sink.id"])
    with pytest.raises(Refused, match=rf"{green.options['sink.id']!r} .*not read the same"):
        retire_old(connection, bench)
    warm.complete(blue)  # it reads to the end of the input as well
    let_go(connection, bench.sink_id)
    bench.assert_exactly(kafka_input.sent)
    found = retire_old(connection, bench)
    assert found["has_run"]

    kafka_input.add_uneven(10, 10, 10, 10)
    warm.complete(green.having(topic=bench.topic))
    bench.assert_exactly(kafka_input.sent)
    oracle.assert_exactly(oracle.read(connection, [shadow]), kafka_input.sent[before : before + 80])
    assert cli.main([*verify, "--topic", shadow, "--topic", bench.topic]) == 0  # blue's records say no origin


@pytest.mark.long
def test_a_query_with_state_is_given_up_only_by_its_name(
    connection: Connection, bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Loss: rows that only the state of the old query has are in no output."""
    kafka_input.fill(1, 100)
    warm.complete(replace(old_job(bench, kafka_input), transform="testkit.transforms:windowed_count"))
    let_go(connection, bench.sink_id)
    with pytest.raises(Refused, match=r"keeps state in .*/state \(1 operator\)") as refused:
        retire_old(connection, bench)
    owner = bench.log().owner
    assert owner is not None and owner.query_id is not None and owner.query_id in refused.value.way_out
    found = retire(connection, bench.sink_id, f"{bench.sink_id}-v2", loses_state=owner.query_id)
    assert json.loads(found["starting_offsets"]).keys() == {kafka_input.topic}
