"""Fixtures of the tests that run real streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from exactly_once.commitlog.commit_log import read_log
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import commit_log_topic
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import Decision
from exactly_once.txn.coordinators import end_one
from testkit import broker as brokers
from testkit import oracle
from testkit.stream import Input, Job, Row, Run, SparkDriver

StartDriver = Callable[..., SparkDriver]


@dataclass
class Bench:
    """One sink with an input, an output topic and a checkpoint of its own."""

    connection: Connection
    sink_id: str
    topic: str
    input: Input
    job: Job

    @property
    def checkpoint(self) -> Path:
        return Path(self.job.options["checkpointLocation"])

    def log(self) -> LogState:
        """Return what the commit log says."""
        return read_log(self.connection, self.sink_id)

    def counted(self) -> int:
        """Return the records that the newest decision counts, over the life of the sink."""
        counted = self.log().decisions[-1].counted
        assert counted is not None and set(counted.records) == {self.topic}
        return counted.records[self.topic]

    def decided_batches(self) -> list[int]:
        """Return the batches that are decided."""
        return sorted(d.batch_id for d in self.log().decisions)

    def complete(self, driver: SparkDriver, job: Job | None = None, batches: int = 1) -> None:
        """Add so many batches, and let a query end well when it has written them."""
        self.input.add(batches)
        driver.complete(job or self.job)

    def complete_exactly_once(self, driver: SparkDriver, job: Job | None = None, batches: int = 1) -> None:
        """Do :meth:`complete` and :meth:`assert_exactly_once`."""
        self.complete(driver, job, batches)
        self.assert_exactly_once()

    def begin(self, driver: SparkDriver, job: Job | None = None, batches: int = 1) -> Run:
        """Return a query that has committed its first batches, and waits for more."""
        self.input.add(batches)
        run = driver.start((job or self.job).until_stopped())
        run.await_commit(batches - 1)
        return run

    def hold(self, run: Run, point: str, action: str = "hang") -> None:
        """Bring the next batch of a query to ``point``."""
        run.driver.arm(point, action)
        self.input.add()
        run.await_point(point)

    def kill_at(self, point: str, driver: SparkDriver, job: Job | None = None) -> Decision:
        """Bring a stream to ``point`` of its second batch, and kill -9 everything; return the last decision."""
        self.hold(self.begin(driver, job), point)
        driver.kill9()
        return self.log().decisions[-1]

    def hold_third_batch(self, driver: SparkDriver, job: Job, point: str) -> Run:
        """Start ``job``, let it complete two batches, and bring the third one to ``point``, where it stays.

        A batch passes its points until its mark is in the log: one that is armed before may stop the second batch.
        """
        self.input.add(2)
        run = driver.start(job.until_stopped())
        run.await_true("two marks", lambda: self.decided_batches() == [0, 1] and not self.log().open_decisions)
        self.hold(run, point)
        return run

    def abort_parts(self, decision: Decision, *parts: int) -> None:
        """Abort some transactions of a decision behind the sink's back, as an operator may."""
        with Admin(self.connection) as admin:
            for handle in decision.transactions:
                if handle.part in parts:
                    end = end_one(
                        admin,
                        handle.transactional_id,
                        handle.producer_id,
                        handle.epoch,
                        False,
                        decision.end_txn_version,
                    )
                    assert end is Outcome.DONE

    def open_parts(self) -> int:
        """Return how many parts hold a transaction open."""
        return oracle.open_parts(self.connection, self.sink_id)

    def log_is_held_back(self) -> bool:
        """Return whether a record of the commit log waits for the end of its transaction."""
        with Admin(self.connection) as admin:
            return bool(oracle.held_back(admin, [commit_log_topic(self.sink_id)]))

    def assert_settled(self) -> None:
        """Assert that nothing of the sink is under way, and that no reader of its topic is held back."""
        oracle.assert_settled(self.connection, self.sink_id, [self.topic])

    def visible(self) -> list[tuple[str | None, str | None]]:
        """Return what a read_committed reader sees now."""
        return [(m.key, m.value) for m in oracle.read(self.connection, [self.topic])]

    def assert_exactly_once(self) -> None:
        """All input is in the output once, in order, and nothing is under way."""
        self.assert_exactly(self.input.expected())

    def assert_exactly(self, expected: list[tuple[str, str]]) -> None:
        """Assert that the output holds exactly ``expected``, and that nothing is under way."""
        self.assert_settled()
        oracle.assert_exactly(oracle.read(self.connection, [self.topic]), expected)


@dataclass
class KafkaInput:
    """An input topic with four partitions, written in transactions, some of them aborted. A key stays in one
    partition.
    """

    connection: Connection
    topic: str
    sent: list[Row]

    def fill(self, batches: int, rows: int) -> None:
        """Write ``batches`` times ``rows`` rows that count, and half as many that do not."""
        producer = Producer({**self.connection.librdkafka(), "transactional.id": self.topic})
        producer.init_transactions(30)
        for batch in range(batches):
            for fate, size in (("aborted", rows // 2), ("sent", rows)):
                producer.begin_transaction()
                some = [(f"k{n % 28}", f"{fate}-{batch}-{n}") for n in range(size)]
                for n, (key, value) in enumerate(some):
                    producer.produce(self.topic, value, key, partition=n % 4)
                if fate == "sent":
                    producer.commit_transaction(30)
                    self.sent += some
                else:
                    producer.flush(30)
                    producer.abort_transaction(30)

    def add(self, name: str, rows: int) -> list[Row]:
        """Write ``rows`` rows, whose values begin with ``name``, evenly and without a transaction; return them."""
        producer = Producer(self.connection.librdkafka())
        some = [(f"k{n % 28}", f"{name}-{n}") for n in range(rows)]
        for n, (key, value) in enumerate(some):
            producer.produce(self.topic, value, key, partition=n % 4)
        assert producer.flush(30) == 0
        self.sent += some
        return some

    def add_uneven(self, *rows: int) -> None:
        """Write so many rows to each partition, in one transaction."""
        producer = brokers.open_transaction(self.connection, self.topic)
        for partition, count in enumerate(rows):
            some = [(f"u{partition}.{n % 3}", f"uneven-{len(self.sent)}-{partition}-{n}") for n in range(count)]
            for key, value in some:
                producer.produce(self.topic, value, key, partition=partition)
            self.sent += some
        producer.commit_transaction(30)

    def source(self, per_batch: int) -> dict[str, Any]:
        """Return :attr:`Job.source`; ``per_batch`` counts offsets, those of markers and aborted rows too."""
        options = {
            **self.connection.spark(),
            "subscribe": self.topic,
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
            "maxOffsetsPerTrigger": str(per_batch),
        }
        return {"format": "kafka", "options": options}


def make_bench(connection: Connection, folder: Path, **input_size: int) -> Bench:
    """Return a bench on the cluster of ``connection``."""
    sink_id = brokers.fresh_name("sink")
    topic = brokers.create_topic(connection.bootstrap_servers, f"{sink_id}-out", partitions=4)
    data = Input(folder, **input_size)
    options = {
        **connection.spark(),
        "sink.id": sink_id,
        "topic": topic,
        "checkpointLocation": str(folder / "checkpoint"),
    }
    return Bench(connection, sink_id, topic, data, Job(data.source(), options))


@pytest.fixture
def bench(connection: Connection, tmp_path: Path) -> Bench:
    """Return a sink on the shared broker, with four parts of fifty rows in each batch and no batch yet."""
    return make_bench(connection, tmp_path / "bench")


@pytest.fixture
def kafka_input(connection: Connection) -> KafkaInput:
    """Return an empty input topic on the shared broker."""
    return KafkaInput(connection, brokers.create_topic(connection.bootstrap_servers, partitions=4), [])


@pytest.fixture
def driver(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartDriver]:
    """Start a driver to be killed: ``driver(master="local[2]", conf={...}, environment={...})``."""
    started: list[SparkDriver] = []

    def start(
        master: str = "local[2]", conf: dict[str, str] | None = None, environment: dict[str, str] | None = None
    ) -> SparkDriver:
        started.append(SparkDriver(tmp_path / f"driver-{len(started)}", master, conf, environment))
        return started[-1]

    yield start
    for one in started:
        one.close()
        print(f"--- end of {one.log}\n{one.log_tail()}")  # pytest shows it beside a failure


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkDriver]:
    """Yield a driver that stays, for what needs no death: starts after a crash, and everything that ends by itself."""
    stays = SparkDriver(tmp_path_factory.mktemp("warm") / "driver")
    yield stays
    stays.close()
