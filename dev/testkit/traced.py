"""A stream made without Spark, whose output records name their input: so that a test can lose, repeat and swap them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Producer

from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.checkpoint_text import digest_of
from exactly_once.protocol.records import Claim, Completed, Decision
from exactly_once.tools.verify.by_origin.comparison import Question, ReadsElsewhere, compare_origins
from exactly_once.tools.verify.by_origin.ledger import ComparisonResult
from exactly_once.tools.verify.by_origin.origin import Origin
from exactly_once.tools.verify.expected import expected_input
from exactly_once.txn.coordinators import end_txn_version
from testkit import broker as brokers
from testkit import oracle
from testkit.processes import until


class Row(NamedTuple):
    """An output record: its partition, its key, what it says of its origin (None: nothing), its value, and headers
    behind that of its origin.
    """

    partition: int
    key: str | None
    source: str | None
    value: str = "v"
    headers: tuple[tuple[str, bytes], ...] = ()


def place(source: str) -> str:
    """Return the place of the input record that an output record names, as findings write it."""
    head, _, offset = source.rpartition("-")
    return f"{head}@{offset}"


class Traced:
    """An input of two partitions (or that of another stream), an output of three, a commit log and a checkpoint. Its
    decisions name ``topics``. ``elsewhere`` reads it for the checker; None stands for the checker's own process.
    """

    elsewhere: ReadsElsewhere | None = None
    #: Topics for dead letters.
    rejected: tuple[str, ...] = ()

    def __init__(self, connection: Connection, location: Path, config: dict[str, str] | None = None, of: str = ""):
        self.connection, self.location = connection, location
        self.sink_id = brokers.fresh_name("traced")
        servers = connection.bootstrap_servers
        self.input = of or brokers.create_topic(servers, brokers.fresh_name("in"), 2, config)
        self.output = brokers.create_topic(servers, brokers.fresh_name("out"), 3)
        self.topics: tuple[str, ...] = (self.output,)
        self.log = CommitLog(connection, self.sink_id)
        claim = Claim(1, "q", 0, "stream", "elsewhere", 1, str(location), 0.0, "")
        self.log.claim(lambda state: claim, Deadline(30))
        self.last = -1
        for folder in ("offsets", "commits", "sources/0"):
            (location / folder).mkdir(parents=True)
        (location / "metadata").write_text('{"id":"q"}')
        (location / "sources/0/0").write_text(f"\0v1\n{json.dumps({self.input: {'0': 0, '1': 0}})}")

    def feed(self, count: int, commit: bool = True, partition: int | None = None) -> list[tuple[int, int, str]]:
        """Write input in one transaction; returns partition, offset and key of each new record that is committed."""
        before = {(m.partition, m.offset) for m in self.inputs()}
        producer = brokers.open_transaction(self.connection)
        for n in range(count):
            producer.produce(self.input, f"v{n}", f"k{n % 5}", partition=n % 2 if partition is None else partition)
        producer.flush(30)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)
        with Admin(self.connection) as admin:  # a commit returns before the end markers are written
            until("the end markers of the input", lambda: not oracle.held_back(admin, [self.input]), 30, every_s=0.02)
        return [(m.partition, m.offset, m.key or "") for m in self.inputs() if (m.partition, m.offset) not in before]

    def inputs(self) -> list[oracle.Message]:
        """Return the committed input."""
        return oracle.read(self.connection, [self.input])

    def rows(self, records: Iterable[tuple[int, int, str]]) -> list[Row]:
        """One output record for each input record."""
        return [Row(int(key[1:]) % 3, key, f"{self.input}-{p}-{o}") for p, o, key in records]

    def write(self, rows: Sequence[Row], end: bool | None = True, topic: str = "") -> Producer:
        """Write output, or to ``topic``, in one transaction; ``end`` it by a commit (True), an abort (False), or not at
        all (None).
        """
        producer = brokers.open_transaction(self.connection)
        for row in rows:
            headers: list[tuple[str, str | bytes | None]] = [] if row.source is None else [("src", row.source.encode())]
            headers += row.headers
            producer.produce(topic or self.output, row.value, row.key, partition=row.partition, headers=headers)
        producer.flush(30)
        if end is not None:
            (producer.commit_transaction if end else producer.abort_transaction)(30)
        return producer

    def decide(self, complete: bool = True) -> str:
        """Decide a batch that reads all input there is; returns its name."""
        self.last += 1
        with Admin(self.connection) as admin:
            ends = {str(p): w.last_stable for p, w in admin.watermarks(self.input).items()}
            version = end_txn_version(admin)
        text = f'v1\n{{"batchTimestampMs":5}}\n{json.dumps({self.input: ends})}'
        (self.location / "offsets" / str(self.last)).write_text(text)
        self.log.append(
            Decision("q", self.last, 1, (), digest_of(text), version, 0, topics=self.topics, offsets=text), Deadline(30)
        )
        if complete:
            self.log.append(Completed("q", self.last, 1, 0), Deadline(30))
            (self.location / "commits" / str(self.last)).write_text("v1\n{}")
        return f"batch {self.last}"

    def batch(self, count: int = 10) -> list[Row]:
        """Feed, write and decide a batch as a stream does; returns its output."""
        rows = self.rows(self.feed(count))
        self.write(rows)
        self.decide()
        return rows

    def compared(
        self,
        inputs: Sequence[str] = (),
        checkpoint: bool = True,
        settle_s: float = 0.5,
        origin: str = "header:src",
        last: int | None = None,
        **asked: Any,
    ) -> ComparisonResult:
        """Compare the outputs with the input by ``origin``; ``asked`` is the rest of the question."""
        location = str(self.location) if checkpoint else None
        return compare_origins(
            self.connection,
            [self.output, *self.rejected],
            Question(Origin.parse(origin), **asked),
            lambda: expected_input(self.connection, self.sink_id, location, inputs, last=last),
            settle_s=settle_s,
            elsewhere=self.elsewhere,
        )
