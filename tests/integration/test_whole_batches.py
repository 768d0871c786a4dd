"""Readers have whole batches: the sink says where they end, and each recipe of docs/whole-batches.md stops there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from exactly_once.commitlog import progress
from exactly_once.commitlog.commit_log import read_log
from exactly_once.coordinator import start
from exactly_once.coordinator.recover import recover
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import Fenced, InvalidOption, UnknownTopic
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.records import Completed
from exactly_once.tools.verify import VerifyParameters
from exactly_once.tools.verify import verify as prove
from testkit import broker as brokers
from testkit import oracle
from testkit.made_sink import MadeSink, rows
from testkit.processes import until
from testkit.stream import ROOT, SparkDriver
from testkit.whole_batches import RECIPES, Recipes


@pytest.fixture
def sink(connection: Connection, topic: str) -> MadeSink:
    """It has one whole batch, of two parts."""
    name = brokers.fresh_name("progress")
    with Admin(connection) as admin:
        progress.ensure(admin, name, Deadline(30))
    made = MadeSink(connection, topic, progress_topic=name)
    made.claim()
    made.batch(0, rows(0, 0), rows(0, 1))
    return made


def values(*batches: int) -> list[str]:
    """Return what these batches consist of."""
    return sorted(value for batch in batches for part in (0, 1) for _, value, _ in rows(batch, part))


def of(sink: MadeSink, driver: SparkDriver | None = None) -> Recipes:
    """Return the recipes for readers of the sink."""
    return Recipes(sink.connection, sink.topic, sink.sink_id, sink.progress_topic, driver)


def visible(sink: MadeSink) -> list[str]:
    """Return what a plain read_committed reader gets."""
    return sorted(str(m.value) for m in oracle.read(sink.connection, [sink.topic]))


#: Decides batch 1, of two parts, and completes it as a driver does.
DRIVER = """
import sys
from exactly_once.coordinator.complete import complete
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline
from exactly_once.kafka.connection import Connection
from testkit.made_sink import MadeSink, rows

servers, topic, sink_id, progress_topic = sys.argv[1:]
sink = MadeSink(Connection(servers), topic, sink_id, progress_topic=progress_topic)
sink.token = 1
sink.claim()
decision = sink.decide(1, [sink.write(0, rows(1, 0)), sink.write(1, rows(1, 1))])
complete(Session.without_driver(sink.connection, sink_id, (), Deadline(60)), decision)
"""


def kill_between_two_commits(sink: MadeSink, failpoints: Path) -> None:
    """Let another process decide batch 1, and kill it with kill -9 when the first of its two parts is committed."""
    failpoints.mkdir()
    (failpoints / "some-ended").write_text("hang")
    names = [sink.connection.bootstrap_servers, sink.topic, sink.sink_id, sink.progress_topic]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EXACTLY_ONCE_FAILPOINTS": str(failpoints)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *names], env=environment)
    try:
        until("the commit of one part", (failpoints / "some-ended.reached").exists, 60)
    finally:
        driver.kill()
        driver.wait()
    until("the records of one part", lambda: len(visible(sink)) == len(values(0)) + len(values(1)) // 2)


@pytest.mark.long
def test_no_recipe_shows_the_half_of_a_batch_that_a_killed_driver_left_and_each_shows_all_of_it_once_recovered(
    sink: MadeSink, tmp_path: Path, warm: SparkDriver
) -> None:
    """Half a batch in a table, or one that never comes: the driver died between the commits of two parts, and a
    recovery, which knows none of the stream's options, completes the batch.
    """
    readers = of(sink, warm)
    loader = readers.consumer()
    assert readers.python(loader) == values(0)
    kill_between_two_commits(sink, tmp_path / "failpoints")
    assert readers.all_of_them() == dict.fromkeys(RECIPES, values(0))
    assert readers.python(loader) == []
    since = readers.told()["topics"][sink.topic]

    assert recover(sink.connection, sink.sink_id).clean

    assert readers.all_of_them() == dict.fromkeys(RECIPES, values(0, 1))
    assert readers.python(loader) == readers.spark(since) == values(1)
    assert readers.told()["batch"] == 1


@pytest.mark.long
def test_the_recipe_that_follows_reads_as_soon_as_a_batch_is_whole(sink: MadeSink, warm: SparkDriver) -> None:
    """A reader that waits for ever, or that reads before the batch is whole."""
    readers = of(sink, warm)
    with readers.following() as counts:
        until("the first batch", lambda: counts()[-1:] == [len(values(0))], 60)
        sink.batch(1, rows(1, 0), rows(1, 1))
        until("the second batch", lambda: counts()[-1:] == [len(values(0, 1))], 60)
        assert set(counts()) == {len(values(0)), len(values(0, 1))}


class Watched(Consumer):
    """A consumer that keeps what it was told: topic, partition, and whether there was no more."""

    def __init__(self, settings: dict[str, Any]):
        super().__init__(settings)
        self.seen: list[tuple[str | None, int | None, bool]] = []

    def poll(self, timeout: float = -1) -> Any:
        message = super().poll(timeout)
        if message is not None:
            self.seen.append((message.topic(), message.partition(), message.error() is not None))
        return message


@pytest.mark.long
def test_a_reader_waits_for_records_of_a_whole_batch_that_another_writers_transaction_holds_back(
    sink: MadeSink,
) -> None:
    """Half a batch: its end is told already, and consumers do not get that far yet."""
    other = MadeSink(sink.connection, sink.topic)
    other.claim()
    held = other.write(0, [("k", "of another", 0)])
    sink.batch(1, rows(1, 0), rows(1, 1))
    readers = of(sink)
    consumer = readers.consumer(Watched)
    with ThreadPoolExecutor(1) as beside:
        reading = beside.submit(readers.python, consumer)
        until("a look at where the records are held back", lambda: (sink.topic, 0, True) in consumer.seen)
        assert not reading.done() and len(visible(sink)) < len(values(0, 1))
        other.end([held], commit=False)
        assert reading.result(60) == values(0, 1)


def test_a_driver_that_was_replaced_cannot_put_an_older_end_behind_a_newer_one(sink: MadeSink) -> None:
    """A reader that goes back: it would load a batch twice, or take what it has for gone."""
    handles = [sink.write(part, rows(1, part)) for part in (0, 1)]
    decision = sink.decide(1, handles)
    sink.end(handles)
    with Admin(sink.connection) as admin:
        old = progress.progress_of(admin, sink.progress_topic, decision)
    newer = MadeSink(sink.connection, sink.topic, sink.sink_id, progress_topic=sink.progress_topic)
    newer.token, newer.decided = sink.token, sink.decided
    newer.claim()
    newer.complete(1)
    newer.batch(2, rows(2, 0))
    before = of(sink).told()
    assert before["batch"] == 2

    with pytest.raises(Fenced):
        sink.log.append(Completed("q", 1, sink.token, now_ms()), Deadline(30), progress=old)

    assert of(sink).told() == before


def test_the_checker_does_not_take_the_record_for_a_stray_of_the_sink(sink: MadeSink) -> None:
    """A red check of every stream with the option: the sink writes where no decision says so."""
    assert prove(sink.connection, VerifyParameters(sink.sink_id, settle_s=0)).findings == ()


def test_every_partition_of_every_topic_that_is_left_has_its_end(sink: MadeSink) -> None:
    """A reader's query that fails since a partition is not named; or a sink that stops over a topic that is gone."""
    before = brokers.create_topic(sink.connection.bootstrap_servers, partitions=3)
    decision = replace(sink.decided[0], topic_ids={before: "an id", "gone": "another"})
    with Admin(sink.connection) as admin:
        found = json.loads(progress.progress_of(admin, sink.progress_topic, decision).value)
        high = {str(p): marks.high for p, marks in admin.watermarks(sink.topic).items()}
    assert found == {"batch": 0, "topics": {sink.topic: high, before: {"0": 0, "1": 0, "2": 0}}}
    assert len(high) == 4 and min(high.values()) > 0


def options(connection: Connection, topic: str, folder: Path, progress_topic: str) -> dict[str, str]:
    """Return those of a stream."""
    own = {"sink.id": brokers.fresh_name("sink"), "topic": topic, "checkpointLocation": str(folder / "c")}
    return {**connection.spark(), **own, "sink.progress.topic": progress_topic}


def test_a_topic_that_would_lose_the_record_is_refused_before_the_start(
    connection: Connection, topic: str, tmp_path: Path
) -> None:
    """Readers of a quiet stream that find nothing a week after its last batch; or an output's readers that find it."""
    kept_by_age = brokers.create_topic(connection.bootstrap_servers)
    with pytest.raises(InvalidOption, match=r"cleanup\.policy=delete"):
        start.check(options(connection, topic, tmp_path, kept_by_age))


def test_a_topic_that_is_not_there_is_made_by_the_start_and_not_by_the_check_before_it(
    connection: Connection, topic: str, tmp_path: Path
) -> None:
    """A check that leaves topics behind; or a stream that does not start since nobody made the topic."""
    name = brokers.fresh_name("progress")
    start.check(options(connection, topic, tmp_path, name))
    with Admin(connection) as admin:
        with pytest.raises(UnknownTopic, match=rf"the topic {name} of sink\.progress\.topic"):
            progress.check(admin, name)
        progress.ensure(admin, name, Deadline(30))
        assert admin.topic_partitions([name]) == {name: 1}
        assert admin.topic_config(name)["cleanup.policy"] == "compact"


def test_a_recovery_without_the_topic_says_so_and_fences_nobody(connection: Connection, topic: str) -> None:
    """Outage: a driver is stopped by a recovery that then cannot complete its batch."""
    sink = MadeSink(connection, topic, progress_topic=brokers.fresh_name("gone"))
    sink.claim()
    with pytest.raises(UnknownTopic, match=sink.progress_topic):
        recover(connection, sink.sink_id)
    owner = read_log(connection, sink.sink_id).owner
    assert owner is not None and (owner.token, owner.progress) == (1, sink.progress_topic)
