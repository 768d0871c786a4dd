"""A sink that the Python data source wrote, of commit 5c8e47f and before, goes on with the Java one.

``tests/data/upgrade`` is what that commit left of three streams with PySpark 4.2.0: checkpoint (without Spark's own
checksums), commit log and consumer group. Host, process and paths of the claims are made up. The records of the topics,
and their transactions under the same ids, are made here.

- ``rest``: batches 0 and 1 are through.
- ``flight``: batch 1 is undecided; kill -9 when all parts were prepared.
- ``decided``: batch 1 is decided; kill -9 before any commit.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer, TopicPartition

from exactly_once.commitlog import log_topic
from exactly_once.commitlog.commit_log import read_log
from exactly_once.deadline import Deadline
from exactly_once.digest import RowDigest
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.participants.kafka.digest_scope import PLAIN, TOPIC, add_read
from exactly_once.protocol.checksum import distribution_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import commit_log_topic, offsets_group
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import OffsetRange, Place
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once.txn.coordinators import End, describe, end_all, end_one, end_txn_version
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import broker as brokers
from testkit import oracle
from testkit.stream import ROOT, Job, Row, SparkDriver

DATA = ROOT / "tests" / "data" / "upgrade"

#: Rows of each batch; an input partition is a part.
BATCH, PARTITIONS = 20, 2

#: The ids that the killed driver's tasks of batch 1 had open: no record names them.
OPEN = ("eo:upgrade-flight:1:0:0.2", "eo:upgrade-flight:1:1:0.3")


def rows(batch: int, partition: int | None = None) -> list[Row]:
    """The input of a batch, or what one of its partitions has of it."""
    first = batch * BATCH
    numbers = [first + n for n in range(BATCH) if partition in (None, n % 7 % PARTITIONS)]
    return [(f"k{n % 7}", f"order-{n}") for n in numbers]


#: What each record has beside key and value, in a test of rows that have more; and the column that makes it.
HEADERS = [("origin", b"old")]
HEADERS_COLUMN = "array(named_struct('key', 'origin', 'value', cast('old' as binary))) headers"


def digest_of(some: Sequence[Row], scope: str = PLAIN, topic: str = "") -> str:
    """The digest that the old version had of these rows."""
    digest = RowDigest()
    read = [SimpleNamespace(key=k.encode(), value=v.encode(), headers=HEADERS, timestamp=0) for k, v in some]
    add_read(digest, scope, topic, 0, read)
    return digest.text


class OldSink:
    """A sink as the old version left it, on a broker of today; with ``headers``, its rows have that column too."""

    def __init__(self, connection: Connection, state: str, folder: Path, *, headers: bool = False):
        self.connection, self.state, self.data = connection, state, DATA / state
        self.headers = HEADERS if headers else None
        self.sink_id = f"upgrade-{state}"
        self.input, self.topic = f"{self.sink_id}-in", f"{self.sink_id}-out"
        self.checkpoint = folder / "checkpoint"
        self.producers: list[Producer] = []
        shutil.copytree(self.data / "checkpoint", self.checkpoint)
        for topic in (self.input, self.topic):
            brokers.create_topic(connection.bootstrap_servers, topic, PARTITIONS)
        for batch in (0, 1):
            self.put(batch)
        source = {**connection.spark(), "subscribe": self.input, "startingOffsets": "earliest"}
        options = {
            **connection.spark(),
            "sink.id": self.sink_id,
            "topic": self.topic,
            "checkpointLocation": str(self.checkpoint),
        }
        columns = ["key", "value", HEADERS_COLUMN] if headers else ["key", "value"]
        self.job = Job({"format": "kafka", "options": source}, options, select=columns)
        self._restore_log()
        if state == "flight":
            for part, name in enumerate(OPEN):
                self._prepare(name, rows(1, part))

    def put(self, batch: int) -> None:
        """Write the input of a batch."""
        producer = Producer(self.connection.librdkafka())
        for partition in range(PARTITIONS):
            for key, value in rows(batch, partition):
                producer.produce(self.input, value, key, partition)
        assert producer.flush(30) == 0

    def log(self) -> LogState:
        """What the commit log says."""
        return read_log(self.connection, self.sink_id)

    def abort_part(self, part: int) -> None:
        """Abort a transaction of the last decision, as an operator may."""
        decision = self.log().decisions[-1]
        [h] = [h for h in decision.transactions if h.part == part]
        with Admin(self.connection) as admin:
            told = h.transactional_id, h.producer_id, h.epoch
            assert end_one(admin, *told, commit=False, version=decision.end_txn_version) is Outcome.DONE

    def assert_exactly_once(self, batches: int) -> None:
        """So many batches of input are in the output, each row once, and nothing is under way."""
        oracle.assert_settled(self.connection, self.sink_id, [self.topic])
        expected = [row for batch in range(batches) for row in rows(batch)]
        oracle.assert_exactly(oracle.read(self.connection, [self.topic]), expected)

    def _prepare(self, name: str, some: Sequence[Row]) -> tuple[int, int, dict[tuple[str, int], OffsetRange]]:
        """Leave a transaction open as a task does: producer, epoch, and what stands where."""
        settings = {"transactional.id": name, "partitioner": "murmur2_random", "log_level": 2}
        producer = Producer({**self.connection.librdkafka(), **settings})
        producer.init_transactions(30)
        producer.begin_transaction()
        written: dict[tuple[str, int], OffsetRange] = {}

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            where, at = (self.topic, int(message.partition() or 0)), int(message.offset() or 0)
            before = written.get(where, OffsetRange(at, 0))
            written[where] = OffsetRange(min(before.first_offset, at), before.records + 1)

        for key, value in some:
            producer.produce(self.topic, value, key, on_delivery=delivered, headers=self.headers)
        assert producer.flush(30) == 0
        self.producers.append(producer)  # so that it does not abort what it has open
        with Admin(self.connection) as admin:
            d = describe(admin, [name])[name]
        return d.producer_id, d.producer_epoch, written

    def _restore_log(self) -> None:
        """Write the recorded commit log and offsets, with the cluster's own ids of topics and producers."""
        records = [json.loads(line) for line in (self.data / "commit-log.jsonl").read_text().splitlines()]
        completed = {r["value"]["batch_id"] for r in records if r["value"]["kind"] == "completed"}
        log = commit_log_topic(self.sink_id)
        with Admin(self.connection) as admin:
            log_topic.ensure(admin, log, Deadline(30))
            ids, version = admin.topic_ids([self.topic]), end_txn_version(admin)
        producer = Producer(self.connection.librdkafka())
        for record in records:
            value = record["value"]
            if value["kind"] == "decision":
                value |= {"topic_ids": ids, "end_txn_version": version}
                handles = value["handles"]["kafka"]
                for handle in handles:
                    self._restore_part(handle, value["batch_id"])
                if value["batch_id"] in completed:
                    with Admin(self.connection) as admin:
                        ended = end_all(admin, [End(*handle[:3]) for handle in handles], True, version)
                        assert set(ended.values()) == {Outcome.DONE}
            producer.produce(log, json.dumps(value), record["key"], headers=list(record["headers"].items()))
        assert producer.flush(30) == 0
        offsets = json.loads((self.data / "group.json").read_text())
        ends = [TopicPartition(topic, p, at, metadata=said) for topic, p, at, said in offsets]
        brokers.commit_offsets(self.connection, offsets_group(self.sink_id), ends)

    def _restore_part(self, handle: list[Any], batch: int) -> None:
        """Write the rows of a recorded handle, and put the transaction that has them now into it."""
        [some] = [r for p in range(PARTITIONS) if digest_of(r := rows(batch, p)) == handle[6]]
        producer, epoch, written = self._prepare(handle[0], some)
        place = min(Place(*where, extent.first_offset) for where, extent in written.items())
        handle[1:3], handle[7], handle[9] = [producer, epoch], place, distribution_of(written)
        if self.headers:
            handle[6], handle[8] = digest_of(some, TOPIC, self.topic), TOPIC


@pytest.mark.parametrize(
    ("state", "drained"),
    [
        pytest.param("rest", 0, marks=pytest.mark.long),
        ("flight", 0),
        pytest.param("decided", 1, marks=pytest.mark.long),
    ],
)
def test_a_sink_of_the_old_version_goes_on_with_the_new_one(
    state: str, drained: int, connection: Connection, tmp_path: Path, warm: SparkDriver
) -> None:
    """Mishap: an upgrade that writes a batch twice or not at all, or that needs a stop between two batches."""
    old = OldSink(connection, state, tmp_path)
    old.put(2)

    warm.complete(old.job)

    old.assert_exactly_once(3)
    assert sorted(d.batch_id for d in old.log().decisions) == [0, 1, 2]
    assert old.log().tally.drained == drained
    report = verify(connection, VerifyParameters(old.sink_id, checkpoint=str(old.checkpoint), settle_s=5))
    assert report.clean and not report.unproven, report


@pytest.mark.long
def test_a_part_that_the_old_version_decided_and_that_is_lost_is_written_again(
    own_broker: Callable[[], EmbeddedBroker], tmp_path: Path, warm: SparkDriver
) -> None:
    """Mishap: keys and values alone have the digest that they had, and a person has to look for these rows anyway."""
    servers = {"kafka.bootstrap.servers": own_broker().bootstrap_servers}  # the names in a recorded log are taken once
    old = OldSink(Connection.from_options(servers), "decided", tmp_path)
    old.abort_part(1)

    warm.complete(old.job)

    old.assert_exactly_once(2)
    assert old.log().decisions[-1].rewritten == ("kafka/1",)


@pytest.mark.long
def test_a_lost_part_whose_rows_have_headers_waits_for_a_person(
    own_broker: Callable[[], EmbeddedBroker], tmp_path: Path, warm: SparkDriver
) -> None:
    """Mishap: docs/upgrade.md says that such rows cannot be proven. Written all the same, they may be others; passed
    over, they are lost without a word.
    """
    servers = {"kafka.bootstrap.servers": own_broker().bootstrap_servers}
    old = OldSink(Connection.from_options(servers), "decided", tmp_path, headers=True)
    old.abort_part(1)
    found = verify(old.connection, VerifyParameters(old.sink_id, checkpoint=str(old.checkpoint), settle_s=5))
    assert (found.batches, found.records) == (1, BATCH), "by the old digests, batch 0 has the rows that were decided"
    old.put(2)

    ended = warm.run(old.job)
    assert ended.code == "EO-EXPIRED" and "gives other rows" in ended.sentence, ended.failure
    seen = [*rows(0), *rows(1, 0)]
    oracle.assert_exactly(oracle.read(old.connection, [old.topic]), seen)

    warm.complete(old.job.having(**ended.consent("sink.accept.lost")))
    oracle.assert_settled(old.connection, old.sink_id, [old.topic])
    written = oracle.read(old.connection, [old.topic])
    oracle.assert_exactly(written, [*seen, *rows(2)])
    assert {m.headers for m in written} == {tuple(HEADERS)}
