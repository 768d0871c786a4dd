"""Streams that go on while what they run on is upgraded: each with its input, and with what must be in its output."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException

from exactly_once.kafka.connection import Connection
from exactly_once.tools.verify import VerifyParameters, verify
from testkit import broker as brokers
from testkit.fixtures import Bench, KafkaInput, make_bench
from testkit.processes import until
from testkit.stateful_oracle import Deduplication, Join, Operator, TransformWithState, Windows, parts_of
from testkit.stream import PATIENCE_S, Ended, Job, Refused, Row, Run, SparkDriver

ROCKS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
FORMAT_2 = {"spark.sql.streaming.stateStore.checkpointFormatVersion": "2"}

#: Batches follow from the input alone: none is run for the watermark's sake.
NO_OTHERS = {"spark.sql.streaming.noDataMicroBatches.enabled": "false"}

#: Rows of a batch from Kafka.
BATCH = 60


@dataclass
class Upgraded:
    """A stream with its bench.

    Attributes
    ----------
    add_batch : callable
        Adds the input of one micro-batch.
    expected : callable
        Returns the rows that must be in the output.
    conf : dict
        The settings of the session at each start.
    since : str
        The oldest PySpark that has its query.
    """

    name: str
    bench: Bench
    add_batch: Callable[[], object]
    expected: Callable[[], list[Row]]
    conf: dict[str, str] = field(default_factory=dict)
    since: str = ""

    @property
    def job(self) -> Job:
        """The query."""
        return self.bench.job

    def decided(self) -> list[int]:
        """Return the batches in the commit log; none before the first start."""
        return self.bench.decided_batches() if (self.bench.checkpoint / "offsets").exists() else []

    def start(self, driver: SparkDriver, job: Job) -> Run:
        """Start a query with the settings of this stream, which other streams of the driver do not get."""
        with driver.having(self.conf):
            return driver.start(job)

    def complete(self, driver: SparkDriver, batches: int = 1) -> None:
        """Add so many micro-batches, and let a query end when it has written all of them."""
        for _ in range(batches):
            self.add_batch()
        ended = self.start(driver, self.job).end()
        assert ended.failure is None, f"{self.name}: {ended.failure}\n{driver.log_tail()}"

    def refused(self, driver: SparkDriver) -> Ended:
        """Start the query, and return its failure."""
        return self.start(driver, self.job).end()

    def hold(self, driver: SparkDriver, point: str) -> None:
        """Start the query, and bring its next micro-batch to ``point``, where it stays."""
        run = self.start(driver, self.job.until_stopped())
        self.await_idle(run)
        driver.arm(point)
        self.add_batch()
        run.await_true(f"{self.name} at {point}", lambda: driver.has_reached(point))

    def await_idle(self, run: Run) -> None:
        """Wait until the query has no batch under way: Spark has committed what is decided."""
        run.await_true("a query that waits for input", lambda: self._is_idle(run))

    def _is_idle(self, run: Run) -> bool:
        log = self.bench.log()
        return bool(log.decisions) and not log.open_decisions and run.is_committed(log.decisions[-1].batch_id)

    def await_batches(self, count: int) -> None:
        """Wait until so many batches more are decided."""
        first = self.decided()[-1]
        until(f"{count} batches of {self.name}", lambda: self.decided()[-1] >= first + count, PATIENCE_S, every_s=0.2)

    def assert_clean(self) -> None:
        """Each row is in the output once, nothing is under way, and ``verify`` finds nothing."""
        self.bench.assert_exactly(self.expected())
        parameters = VerifyParameters(self.bench.sink_id, checkpoint=str(self.bench.checkpoint), settle_s=5)
        report = verify(self.bench.connection, parameters)
        assert report.clean and not report.unproven, (self.name, report)
        print(
            f"{self.name}: {len(self.expected())} rows out of {self.decided()[-1] + 1} batches, once; verify is clean"
        )


class Steadily:
    """Adds batches to a running stream from a thread, about one each second, until the block ends.

    With a ``driver``, a run that has ended is started again, as the sensors would do.
    """

    def __init__(self, stream: Upgraded, run: Run, driver: SparkDriver | None = None):
        self.stream, self.run, self.driver, self.ends = stream, run, driver, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _feed(self) -> None:
        while not self._over.wait(1):
            with suppress(KafkaException, AssertionError):
                self.stream.add_batch()
            if self.driver is not None and self.run.has_ended():
                self.ends += 1
                with suppress(Refused):
                    self.run = self.stream.start(self.driver, self.stream.job.until_stopped())


def passed(connection: Connection, folder: Path, name: str = "pass", **options: str) -> Upgraded:
    """Return a stream that passes records on from Kafka to Kafka."""
    bench = make_bench(connection, folder / name)
    source = KafkaInput(connection, brokers.create_topic(connection.bootstrap_servers, partitions=4), [])
    job = Job(source.source(BATCH), bench.job.options, select=["key", "value"]).having(**options)
    bench.job = job

    def add() -> None:
        source.add(f"{name}-{len(source.sent)}", BATCH)

    return Upgraded(name, bench, add, lambda: source.sent)


def stateful(
    connection: Connection,
    folder: Path,
    name: str,
    operator: Operator,
    mode: str = "append",
    *,
    conf: dict[str, str] | None = None,
    since: str = "",
) -> Upgraded:
    """Return a stateful stream over files; in Update mode it goes through ``foreach_batch``."""
    bench = make_bench(connection, folder / name, parts=2)
    bench.job = replace(
        bench.job,
        transform=operator.transform,
        arguments=operator.arguments(mode),
        output_mode=mode,
        participants=[] if mode == "update" else None,
    )

    def add() -> None:
        bench.input.add_rows(parts_of(operator.rows(len(bench.input.batches))))

    return Upgraded(
        name, bench, add, lambda: operator.expected(len(bench.input.batches), mode)[0], NO_OTHERS | (conf or {}), since
    )


def all_kinds(connection: Connection, folder: Path) -> list[Upgraded]:
    """Return a stream of each kind of query."""
    return [
        passed(connection, folder),
        stateful(connection, folder, "windows", Windows()),
        stateful(connection, folder, "windows-rocksdb", Windows(), conf=ROCKS),
        stateful(connection, folder, "windows-update", Windows(), "update"),
        stateful(connection, folder, "deduplication", Deduplication()),
        stateful(connection, folder, "join", Join()),
        # PySpark has it for rows since 4.1
        stateful(connection, folder, "transformWithState", TransformWithState(), conf=ROCKS, since="4.1"),
    ]


def go_through(streams: Iterable[Upgraded], steps: Sequence[tuple[str, str, Callable[[], SparkDriver]]]) -> None:
    """Let the streams go on through ``steps``, and find each clean.

    A step is a release, a point of the protocol ("" for none), and what starts its driver. At each step every stream
    goes on with two batches; then all of them are brought to the point, and the driver is killed there.
    """
    some = list(streams)
    for release, point, start in steps:
        driver = start()
        there = [s for s in some if s.since <= release]
        for stream in there:
            stream.complete(driver, 2)
        for stream in there if point else ():
            stream.hold(driver, point)
        print(f"{release}: {', '.join(f'{s.name} {s.decided()[-1]}' for s in there)}, {point or 'ended'}", flush=True)
        if point:
            driver.kill9()
        else:
            driver.end()
    for stream in some:
        stream.assert_clean()
