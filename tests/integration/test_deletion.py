"""Records that the settings of their topic delete: the stream says so, and goes on."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from exactly_once.coordinator import start
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import oracle
from testkit.broker import change_topic
from testkit.fixtures import Bench, make_bench
from testkit.processes import until
from testkit.stream import Job, SparkDriver

DAY_MS = 86_400_000


def dated(bench: Bench, days: float, foreach: bool = False, *more: str) -> Job:
    """The bench's job, whose rows have a time so many days ago, and ``more`` columns."""
    ms = int(time.time() * 1000 - days * DAY_MS)
    columns = ["key", "value", f"timestamp_millis({ms}) timestamp", *more]
    job = replace(bench.job, transform="testkit.transforms:selected", arguments={"columns": columns})
    return replace(job, participants=[]) if foreach else job


@pytest.mark.long
@pytest.mark.parametrize("foreach", [False, True], ids=["format", "foreach_batch"])
def test_rows_that_are_older_than_their_topic_keeps_are_named_once_with_their_time_and_its_setting(
    foreach: bool, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against 100 records that are written, and that nobody ever reads, without a word."""
    change_topic(bench.connection.bootstrap_servers, bench.topic, "retention.ms", str(7 * DAY_MS))
    bench.input.add(2)
    before = len(warm.log.read_bytes())
    warm.complete(dated(bench, days=6.9, foreach=foreach))
    assert "EO-WARN-RETENTION" not in warm.log.read_bytes()[before:].decode()

    bench.complete(warm, dated(bench, days=30.5, foreach=foreach), batches=2)
    [warned] = re.findall(r"EO-WARN-RETENTION (.*)", warm.log.read_bytes()[before:].decode())
    since = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 30.5 * 86_400))
    assert f"records of topic {bench.topic} have times from {since}" in warned
    assert "30 days ago" in warned and f"retention.ms={7 * DAY_MS}" in warned and f"segment.ms={7 * DAY_MS}" in warned


def test_a_retention_that_becomes_shorter_under_a_stream_is_named_with_the_next_batch(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against records that are gone for weeks, under a stream that asked for the setting when it began."""
    servers, before = bench.connection.bootstrap_servers, len(warm.log.read_bytes())
    change_topic(servers, bench.topic, "retention.ms", str(7 * DAY_MS))
    run = bench.begin(warm, dated(bench, days=3))
    change_topic(servers, bench.topic, "retention.ms", str(DAY_MS))
    bench.input.add()
    run.await_true("the warning", lambda: b"EO-WARN-RETENTION" in warm.log.read_bytes()[before:])
    run.stop()()
    [warned] = re.findall(r"EO-WARN-RETENTION (.*)", warm.log.read_bytes()[before:].decode())
    assert f"retention.ms={DAY_MS}" in warned and "3 days ago" in warned


@pytest.mark.long
def test_a_topic_that_keeps_everything_or_takes_the_time_of_arrival_is_not_named(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a warning that nobody reads any more."""
    servers, before = bench.connection.bootstrap_servers, len(warm.log.read_bytes())
    change_topic(servers, bench.topic, "retention.ms", str(DAY_MS))
    change_topic(servers, bench.topic, "message.timestamp.type", "LogAppendTime")
    bench.complete(warm, dated(bench, days=30))
    change_topic(servers, bench.topic, "message.timestamp.type", "CreateTime")
    change_topic(servers, bench.topic, "retention.ms", "-1")
    bench.complete(warm, dated(bench, days=30))
    assert "EO-WARN-RETENTION" not in warm.log.read_bytes()[before:].decode()
    bench.assert_exactly_once()


def test_check_says_which_records_the_topic_deletes(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Guards against a setting that somebody hears of when the records are gone."""
    caplog.set_level(logging.WARNING)
    servers = bench.connection.bootstrap_servers
    change_topic(servers, bench.topic, "retention.ms", str(7 * DAY_MS))
    start.check(bench.job.options, [("value", "string")])
    assert "EO-WARN-RETENTION" not in caplog.text
    start.check(bench.job.options, [("value", "string"), ("timestamp", "timestamp")])
    assert f"topic {bench.topic} has retention.ms={7 * DAY_MS}" in caplog.text and "older than 7 days" in caplog.text
    caplog.clear()
    change_topic(servers, bench.topic, "retention.ms", "-1")
    start.check(bench.job.options, [("value", "string"), ("timestamp", "timestamp")])
    assert "EO-WARN-RETENTION" not in caplog.text


def test_records_that_are_deleted_while_their_batch_is_open_are_named(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a committed batch of which nothing is there: leaders answer as if all of it were."""
    bench.input.add()
    before = len(warm.log.read_bytes())
    run = warm.hold(bench.job, "all-prepared", "wait")
    to_the_end = [TopicPartition(bench.topic, p, -1) for p in range(4)]
    admin = AdminClient({"bootstrap.servers": bench.connection.bootstrap_servers, "log_level": 0})
    for done in admin.delete_records(to_the_end).values():
        done.result(30)
    warm.release("all-prepared")

    assert run.end().failure is None
    # the driver warns beside the last completed mark, for which the end of the run does not wait
    until("the warning", lambda: b"EO-WARN-REMOVED" in warm.log.read_bytes()[before:])
    [warned] = re.findall(r"EO-WARN-REMOVED (.*)", warm.log.read_bytes()[before:].decode())
    assert f"records of batch 0 of sink '{bench.sink_id}'" in warned and "DeleteRecords" in warned
    assert not oracle.read(bench.connection, [bench.topic])
    bench.assert_settled()


@pytest.mark.long
@pytest.mark.parametrize("foreach", [False, True], ids=["format", "foreach_batch"])
def test_records_that_retention_takes_beside_their_open_transaction_are_named(
    foreach: bool, own_broker: Callable[..., EmbeddedBroker], tmp_path: Path, warm: SparkDriver
) -> None:
    """Guards against a backfill of old event times of which nothing is there: retention does not wait for the end of a
    transaction, and leaders count its records as before (Kafka 4.3.1).
    """
    bench = with_retention_checks(own_broker, tmp_path)
    bench.input.add()
    before = len(warm.log.read_bytes())
    run = warm.hold(dated(bench, days=10, foreach=foreach), "all-prepared", "wait")
    with Admin(bench.connection, 60.0) as admin:
        run.await_true("retention", lambda: all(m.low == m.high > 0 for m in admin.watermarks(bench.topic).values()))
    warm.release("all-prepared")

    assert run.end().failure is None
    until("the warning", lambda: b"EO-WARN-REMOVED" in warm.log.read_bytes()[before:])
    [warned] = re.findall(r"EO-WARN-REMOVED (.*)", warm.log.read_bytes()[before:].decode())
    assert f"records of batch 0 of sink '{bench.sink_id}'" in warned
    assert bench.visible() == []
    bench.assert_settled()


def with_retention_checks(own_broker: Callable[..., EmbeddedBroker], folder: Path) -> Bench:
    """A sink whose output keeps records for a day, on a broker that looks each second."""
    servers = own_broker(properties={"log.retention.check.interval.ms": "1000"}).bootstrap_servers
    bench = make_bench(Connection(servers), folder / "bench")
    change_topic(servers, bench.topic, "retention.ms", str(DAY_MS))
    return bench


@pytest.mark.long
def test_a_commit_marker_takes_old_records_before_it_and_later_ones_stay(
    own_broker: Callable[..., EmbeddedBroker], tmp_path: Path, warm: SparkDriver
) -> None:
    """Holds what the reference says of old times: each partition's first transaction is gone, and no other one. Guards
    against a verifier that calls what retention took lost.
    """
    bench = with_retention_checks(own_broker, tmp_path)
    bench.complete(warm, dated(bench, 10, False, "0 partition"), batches=3)
    with Admin(bench.connection, 60.0) as admin:
        until("retention", lambda: admin.watermarks(bench.topic)[0].low > 0)
    assert sorted(bench.visible()) == sorted(bench.input.expected(slice(1, None)))
    found = verify(bench.connection, VerifyParameters(bench.sink_id, checkpoint=str(bench.checkpoint), settle_s=5))
    assert found.clean and found.unproven, found
