"""The waits of a batch: the requests one after the other, between its tasks' first one and its commit, on a real broker
that is far away. docs/lab/waits.md has them, and says why each is needed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from exactly_once.coordinator.start import check
from exactly_once.kafka.connection import Connection
from testkit.broker import create_topic, fresh_name
from testkit.far import Asked, FarBroker, one_after_the_other
from testkit.fixtures import Bench, make_bench
from testkit.processes import until
from testkit.stream import Job, Run, SparkDriver

#: Long beside what a step computes, so that what is asked at once is seen at once.
ROUND_TRIP_S = 0.03

#: The first batches of a query claim, and look up leaders and coordinators.
WARM_UP = 4

#: Of these the quickest counts: a pause of a busy machine looks like one more wait.
MEASURED = 8

PARTS = 2

#: The version of EndTxn with which the commit log ends its own transactions; those of parts have a later one.
LOGS_END = 3


@pytest.fixture(scope="module")
def far_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarBroker]:
    broker = FarBroker(tmp_path_factory.mktemp("far"))
    with broker:
        yield broker
        broker.kill()


class FarStream:
    """A stream from a near topic to a far one, of which each batch has a row for each partition in both parts."""

    def __init__(self, broker: FarBroker, folder: Path):
        self.near, self.broker = Connection(broker.bootstrap_servers), broker
        self.bench: Bench = make_bench(self.near, folder, parts=PARTS)
        self.source = create_topic(broker.bootstrap_servers, fresh_name("far-in"), PARTS)
        options = {**self.near.spark(), "subscribe": self.source, "startingOffsets": "earliest"}
        far = {**self.bench.job.options, **Connection(broker.far_servers).spark()}
        self.job = Job({"format": "kafka", "options": options}, far, ["key", "value"]).until_stopped()
        # one request for both partitions: mostly one batch
        self._producer, self._sent = Producer({**self.near.librdkafka(), "linger.ms": 50}), 0

    def add(self, run: Run) -> list[Asked]:
        """Send more rows; return what was asked far away until they were committed and marked."""
        since_s = time.monotonic()
        for part in range(PARTS):
            for n in range(20):
                self._producer.produce(self.source, b"x", b"k%d" % n, partition=part)
        self._producer.flush(10)
        self._sent += PARTS * 20

        def marked() -> bool:
            log = self.bench.log()
            done = bool(log.decisions) and not log.open_decisions
            return done and log.decisions[-1].counted.records == {self.bench.topic: self._sent}

        run.await_true("the mark", marked)
        return self.broker.line.asked(since_s)


def of_batch(asked: list[Asked]) -> list[Asked]:
    """Return the requests from the first that a task begins its part with to the last one that commits a part; none if
    Spark has made two batches of these rows.
    """
    tasks = [a for a in asked if a.client.startswith("producer-") and a.api == "InitProducerId"]
    ends = [a for a in asked if a.client == "exactly-once-control" and a.api == "EndTxn" and a.version > LOGS_END]
    if (len(tasks), len(ends)) != (PARTS, PARTS) or len({a.client for a in tasks}) < PARTS:
        return []
    began, ended = min(a.sent_s for a in tasks), max(a.answered_s for a in ends)
    return sorted((a for a in asked if a.sent_s >= began and a.answered_s <= ended), key=lambda a: a.sent_s)


def shown(requests: list[Asked]) -> str:
    """Return them as a table, in ms since the first one."""
    began = requests[0].sent_s
    return "\n".join(
        f"{(a.sent_s - began) * 1000:7.1f} {(a.answered_s - began) * 1000:7.1f}  {a.client} {a.api} v{a.version}"
        for a in requests
    )


def test_a_batch_waits_for_so_many_round_trips(far_broker: FarBroker, warm: SparkDriver, tmp_path: Path) -> None:
    """Guards against one more request on the way of each batch, which a broker beside the test hides."""
    stream = FarStream(far_broker, tmp_path / "far")
    run = warm.start(stream.job)
    for _ in range(WARM_UP):
        stream.add(run)
    far_broker.be_far(ROUND_TRIP_S)
    batches = [batch for _ in range(MEASURED) if (batch := of_batch(stream.add(run)))]
    far_broker.be_far(0.0)
    run.stop()()
    quickest = min(batches, key=lambda some: len(one_after_the_other(some)))
    print(shown(quickest))
    waits = one_after_the_other(quickest)
    assert len(waits) <= 7, shown(waits)
    began = min(a.sent_s for a in quickest if a.api == "Produce")
    behind = one_after_the_other([a for a in quickest if a.sent_s >= began])
    assert len(behind) <= 4, shown(behind)


def claim_of_a_new_sink(broker: FarBroker, driver: SparkDriver, folder: Path) -> list[Asked]:
    """Start a stream far away; return what its check and its claim ask, up to the answer to the claim's sweep."""
    stream = FarStream(broker, folder)
    until("nothing else to be asked", lambda: not broker.line.asked(time.monotonic() - 0.5))
    broker.be_far(ROUND_TRIP_S)
    since_s = time.monotonic()
    run = driver.start(stream.job)
    stream.add(run)
    broker.be_far(0.0)
    asked = [a for a in broker.line.asked(since_s) if a.client == "exactly-once-control"]
    run.stop()()
    swept_s = min(a.answered_s for a in asked if a.api == "ListTransactions")
    return sorted((a for a in asked if a.sent_s <= swept_s), key=lambda a: a.sent_s)


def test_the_claim_of_a_new_sink_waits_for_so_many_round_trips(
    far_broker: FarBroker, warm: SparkDriver, tmp_path: Path
) -> None:
    """Guards against a first batch that waits longer with each look that a claim learns: behind a kill, somebody waits
    for it, and where fifty streams start, each wait is one for a processor.
    """
    before = FarStream(far_broker, tmp_path / "before")
    beside = warm.start(before.job)  # whose client the others share
    before.add(beside)
    claims = [claim_of_a_new_sink(far_broker, warm, tmp_path / f"far-{n}") for n in range(3)]
    beside.stop()()
    quickest = min(claims, key=lambda some: len(one_after_the_other(some)))
    print(shown(quickest))
    waits = one_after_the_other(quickest)
    assert 12 <= len(waits) <= 19, shown(waits)  # 2 of the check, 17 of the claim


def test_a_start_beside_other_streams_asks_only_what_is_its_own(far_broker: FarBroker, tmp_path: Path) -> None:
    """Guards against a driver of many streams in which each start connects, and asks for what the one before was told:
    they start one after the other, so that all wait for each.
    """
    far, topic = Connection(far_broker.far_servers), create_topic(far_broker.bootstrap_servers, fresh_name("start"), 1)

    def options() -> dict[str, str]:
        sink = fresh_name("start")
        return {**far.spark(), "sink.id": sink, "topic": topic, "checkpointLocation": str(tmp_path / sink)}

    check(options())
    since_s = time.monotonic()
    far_broker.be_far(ROUND_TRIP_S)
    check(options())
    far_broker.be_far(0.0)
    asked = sorted(far_broker.line.asked(since_s), key=lambda a: a.sent_s)
    assert {a.client for a in asked} == {"exactly-once-control"}, shown(asked)
    assert len(one_after_the_other(asked)) <= 2, shown(asked)
    assert not {a.api for a in asked} & {"DescribeConfigs", "SaslHandshake"}, shown(asked)
    assert [a.api for a in asked].count("ApiVersions") == 1, "for the features, which a start must not have of before"
