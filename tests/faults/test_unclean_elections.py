"""Brokers without the newest records become leaders: Kafka loses what it has acknowledged.

No sink keeps exactly-once on such a topic. It has to name what is lost, and to do no harm beyond that.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from exactly_once.commitlog.log_topic import TOPIC_CONFIG
from exactly_once.coordinator.recover import recover
from exactly_once.errors import all_errors
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.groups import published_offsets
from exactly_once.participants.kafka.transactions import open_transactions
from exactly_once.protocol.named_sources import Ends
from exactly_once.protocol.names import commit_log_topic, offsets_group
from exactly_once.protocol.takeover import read_up_to
from exactly_once.tools.operation.model import OperationContext
from exactly_once.tools.operation.rules import Refused
from exactly_once.tools.operation.transactions import COMMIT, TransactionParameters
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once.tools.verify.anomalies import Anomaly, Finding
from exactly_once.tools.verify.by_origin.comparison import Question
from exactly_once.tools.verify.by_origin.origin import Origin
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from faultlab.judge import LabVerdict, judge_output
from faultlab.workload import ORIGIN, ORIGIN_COLUMN, SELECT, owed
from testkit import broker as brokers
from testkit import oracle
from testkit.elections import create_topic_on_two, elect_uncleanly, leave_behind
from testkit.fixtures import Bench, KafkaInput, StartDriver
from testkit.processes import until
from testkit.stream import Ended, Input, Job, Row, Run, SparkDriver

#: A restart that the code promises to heal is tried so often.
STARTS = 5

#: A broker that ends may cost the group the offsets of a minute (EO-WARN-GROUP).
FOLLOWS_S = 100.0

#: Few enough that a finding names each of them.
ROWS = 3


class Stream:
    """A stream from Kafka to an output, whose records name their input, on a cluster of three.

    ``unsafe`` (the output, or the commit log) is the topic of which an unclean election loses records.
    """

    def __init__(self, broker: EmbeddedBroker, folder: Path, log_is_unsafe: bool = False):
        self.broker, servers = broker, broker.bootstrap_servers
        self.connection = Connection.from_options({"kafka.bootstrap.servers": servers})
        self.sink_id = brokers.fresh_name("sink")
        self.output = f"{self.sink_id}-out"
        log = commit_log_topic(self.sink_id)
        self.unsafe = log if log_is_unsafe else self.output
        if log_is_unsafe:
            create_topic_on_two(servers, log, 1, TOPIC_CONFIG)
            brokers.create_topic(servers, self.output, 4)
        else:
            create_topic_on_two(servers, self.output, 4)
        self.input = KafkaInput(self.connection, brokers.create_topic(servers, partitions=4), [])
        options = {
            **self.connection.spark(),
            "sink.id": self.sink_id,
            "topic": self.output,
            "checkpointLocation": str(folder / "checkpoint"),
        }
        source = self.input.source(1_000)
        job = Job(source, options, [*SELECT, ORIGIN_COLUMN])
        self.bench = Bench(self.connection, self.sink_id, self.output, Input(folder / "unused"), job)

    @property
    def job(self) -> Job:
        return self.bench.job

    def feed(self) -> None:
        """Write :data:`ROWS` records for each partition of the input, in one transaction."""
        self.input.add_uneven(*[ROWS] * 4)

    def begin(self, driver: SparkDriver) -> Run:
        """Start the stream; when its first records are visible, only one broker gets what is behind them."""
        self.feed()
        run = driver.start(self.job.until_stopped())
        self.await_visible(run)
        leave_behind(self.broker, self.unsafe)
        return run

    def await_visible(self, run: Run) -> None:
        """Until readers see everything that was fed."""
        run.await_true("the output", lambda: len(self.bench.visible()) >= len(self.input.sent))

    def is_followed(self, run: Run) -> bool:
        """Whether the consumer group names the batch of the last decision, with new records in the output."""
        self.feed()
        self.await_visible(run)
        with Admin(self.connection) as admin:
            published = published_offsets(admin, offsets_group(self.sink_id)).batches
        return set(published.values()) == {self.bench.decided_batches()[-1]}

    def shows(self, row: Row) -> bool:
        """Whether readers see this record of the input."""
        return any(key == row[0] and (value or "").endswith(f"|{row[1]}") for key, value in self.bench.visible())

    def complete(self, driver: SparkDriver) -> list[str]:
        """Start until it ends well; each end before it is one that a restart heals. Returns their codes."""
        codes: list[str] = []
        while (ended := driver.run(self.job)).failure is not None:
            codes.append(ended.code or ended.sentence)
            assert len(codes) < STARTS and _heals(ended), codes
        return codes

    def commit_what_is_open(self) -> None:
        """Commit the open transactions of the sink, as a person who types out what that may do."""
        with Admin(self.connection) as admin:
            parts = open_transactions(self.sink_id, admin, lambda part: True)
        context = OperationContext(self.connection)
        for name in [p.transactional_id for p in parts]:
            with pytest.raises(Refused) as refused:
                COMMIT.apply(context, TransactionParameters(id=name))
            COMMIT.apply(context, TransactionParameters(id=name, force=refused.value.phrase))

    def groups_offsets(self) -> Ends:
        """Where the decisions end, as docs/production.md says."""
        with Admin(self.connection) as admin:
            return published_offsets(admin, offsets_group(self.sink_id)).offsets

    def beginning_at(self, offsets: Ends, driver: SparkDriver) -> Job:
        """The stream with a new checkpoint, which takes the sink."""
        shutil.rmtree(self.bench.checkpoint)
        source = {**self.job.source, "options": {**self.job.source["options"], "startingOffsets": json.dumps(offsets)}}
        job = replace(self.job, source=source)
        return job.having(**driver.run(job).consent("sink.takeover"))

    def judged(self) -> LabVerdict:
        """The output beside the input, by the lab's own reader."""
        return judge_output(self.connection, self.output, owed(self.connection, self.input.topic), self.sink_id)

    def missing(self) -> set[str]:
        """The records of the input that are not in the output, as ``topic-partition@offset``."""
        there = {(value or "").partition("|")[0] for _, value in self.bench.visible()}
        read = oracle.read(self.connection, [self.input.topic])
        return {
            f"{m.topic}-{m.partition}@{m.offset}" for m in read if f"{m.topic}-{m.partition}-{m.offset}" not in there
        }

    def findings(self) -> list[Finding]:
        """Of ``exactly-once verify``, by the commit log and by origin."""
        question = Question(Origin.parse(ORIGIN), refuse_foreign=True)
        checkpoint = str(self.bench.checkpoint)
        found = verify(
            self.connection,
            VerifyParameters(self.sink_id, checkpoint=checkpoint, origin=question, topics=[self.output], settle_s=3),
        )
        return [f for f in found.findings if f.anomaly is not Anomaly.OFFSET_SKEW]


def _heals(ended: Ended) -> bool:
    return ended.code is None or all_errors()[ended.code].restart_heals


@pytest.mark.long
@pytest.mark.parametrize("point", [None, "all-prepared", "decided", "some-ended"])
def test_records_that_an_unclean_election_loses_are_named_and_nothing_else_is_harmed(
    point: str | None,
    own_broker: Callable[..., EmbeddedBroker],
    driver: StartDriver,
    tmp_path: Path,
) -> None:
    """Guards against a loss that nobody notices, and against what would make it worse: a stream that stands still, a
    batch that is written twice, keys out of order. The driver lives through it, or is killed at a point before it.
    """
    stream = Stream(own_broker(nodes=3), tmp_path)
    first = driver()
    run = stream.begin(first)
    stream.feed()
    stream.await_visible(run)
    if point is not None:
        first.arm(point)
        stream.feed()
        run.await_true(point, lambda: first.has_reached(point))
        first.kill9()
    elect_uncleanly(stream.broker, stream.unsafe)
    stream.feed()
    if point is None:
        run.await_true("records behind the election", lambda: stream.shows(stream.input.sent[-1]))
        first.kill9()

    stream.complete(driver())

    verdict, found = stream.judged(), stream.findings()
    assert set(verdict.anomalies) == {"lost"}, str(verdict)
    losses = [f for f in found if f.anomaly is Anomaly.LOST]
    by_log = [f for f in losses if f.transaction]
    by_origin = [f for f in losses if not f.transaction]
    lost = verdict.anomalies["lost"]
    assert sum(f.records for f in by_log) == sum(f.records for f in by_origin) == lost >= 4 * ROWS, found
    assert all(f.batch and f.places for f in losses), losses
    assert {p for f in by_origin for p in f.places} == stream.missing(), losses


@pytest.mark.long
@pytest.mark.parametrize("point", ["decided", "some-ended", "all-ended"])
def test_a_batch_whose_decision_an_unclean_election_loses_is_refused_and_then_written_once(
    point: str, own_broker: Callable[..., EmbeddedBroker], driver: StartDriver, tmp_path: Path
) -> None:
    """Guards against a duplicate: Spark runs the batch again, and the commit log does not know it any more. Its rows
    are in the output, all of them or some, or none is (decided).
    """
    stream = Stream(own_broker(nodes=3), tmp_path, log_is_unsafe=True)
    first = driver()
    run = stream.begin(first)
    until("the group to follow the decisions", lambda: stream.is_followed(run), FOLLOWS_S, 1.0)
    first.arm(point)
    stream.feed()
    run.await_true(point, lambda: first.has_reached(point))
    first.kill9()
    assert "EO-WARN-UNCLEAN" in first.log.read_text() and stream.unsafe in first.log.read_text()
    elect_uncleanly(stream.broker, stream.unsafe)
    written = len(stream.bench.visible())
    second = driver()

    refused = second.run(stream.job).with_code("EO-REWOUND")
    assert f"consumer group eo.{stream.sink_id} says" in refused.sentence
    if point == "decided":
        recover(stream.connection, stream.sink_id)  # rolls it back
        job = stream.job.having(**refused.consent("sink.adopt"))
    else:
        stream.commit_what_is_open()
        at_the_logs_end = stream.beginning_at(read_up_to(stream.bench.log().decisions), second)
        second.run(at_the_logs_end).with_code("EO-REWOUND")  # it would write again what the log has lost
        job = stream.beginning_at(stream.groups_offsets(), second)
        job = job.having(**second.run(job).with_code("EO-REWOUND").consent("sink.adopt"))
    stream.feed()
    second.complete(job)
    verdict = stream.judged()
    assert verdict.clean and verdict.read > written, str(verdict)


@pytest.mark.long
def test_a_driver_that_lives_through_a_commit_log_that_goes_back_writes_everything_once(
    own_broker: Callable[..., EmbeddedBroker], driver: StartDriver, tmp_path: Path
) -> None:
    """Guards against a driver that decides by what it remembers, beside a log that says otherwise."""
    stream = Stream(own_broker(nodes=3), tmp_path, log_is_unsafe=True)
    first = driver()
    run = stream.begin(first)
    for _ in range(2):
        stream.feed()
        stream.await_visible(run)
    elect_uncleanly(stream.broker, stream.unsafe)
    stream.feed()
    if not run.has_ended():
        run.stop()()
    first.kill9()

    codes = stream.complete(driver())

    print(codes)
    verdict = stream.judged()
    assert verdict.clean, str(verdict)


def test_a_first_batch_whose_commit_log_is_gone_is_not_written_again(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Guards against a duplicate: a checkpoint without a committed batch looks like that of a new sink."""
    kafka_input.add_uneven(5, 5, 5, 5)
    job = replace(bench.job, source=kafka_input.source(1_000), select=["key", "value"])
    warm.complete(job)
    for name in ("0", ".0.crc"):
        (bench.checkpoint / "commits" / name).unlink(missing_ok=True)  # as a stop in the commit leaves it
    brokers.delete_topic(bench.connection.bootstrap_servers, commit_log_topic(bench.sink_id))

    refused = warm.run(job.having(sink_operator="another"))  # which claims, as another application does

    assert refused.code == "EO-REWOUND", refused.failure
    assert "log has no decision" in refused.sentence
    bench.assert_exactly(kafka_input.sent)


@pytest.mark.long
@pytest.mark.parametrize("how", ["reset", "deleted"])
def test_a_start_cannot_tell_that_a_decision_is_lost_once_somebody_has_taken_the_group(
    how: str, bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Holds the production guide's warning: only the group names the batch, and Kafka lets an operator take it."""
    kafka_input.add_uneven(5, 5, 5, 5)
    job = replace(bench.job, source=kafka_input.source(1_000), select=["key", "value"])
    warm.complete(job)
    for name in ("0", ".0.crc"):
        (bench.checkpoint / "commits" / name).unlink(missing_ok=True)
    servers, group = bench.connection.bootstrap_servers, offsets_group(bench.sink_id)
    brokers.delete_topic(servers, commit_log_topic(bench.sink_id))
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    if how == "reset":
        to_the_beginning = [TopicPartition(kafka_input.topic, p, 0) for p in range(4)]
        admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, to_the_beginning)])[group].result(30)
    else:
        admin.delete_consumer_groups([group])[group].result(30)

    warm.complete(job)

    assert sorted(bench.visible()) == sorted(kafka_input.sent * 2)
