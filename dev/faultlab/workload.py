"""The input of a run: a topic, and writers that fill it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from confluent_kafka import Consumer, Producer, TopicPartition

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import offsets_group
from faultlab.state import firsts
from testkit import oracle
from testkit.broker import create_topic, delete_topic, fresh_name
from testkit.oracle import Row
from testkit.processes import until
from testkit.stream import ROOT

#: Ends a writer that hangs at a dead broker, in seconds: as long as it may take for a commit.
WRITER_END_S = 40.0

#: What a stream under test does with its input: each record tells the place that it came from.
SELECT = (
    "cast(key as string) key",
    "concat(topic, '-', partition, '-', offset, '|', cast(value as string)) value",
)

#: A header beside them that names the input record in the words of ``exactly-once verify --origin``.
ORIGIN = "header:src"
ORIGIN_COLUMN = (
    "array(named_struct('key', 'src', 'value', cast(concat(topic, '-', partition, '-', offset) as binary))) headers"
)


def place(topic: str, partition: int, offset: int, unique: str) -> str:
    """Return the value that :data:`SELECT` gives to a record of the input."""
    return f"{topic}-{partition}-{offset}|{unique}"


def owed(connection: Connection, topic: str) -> list[Row]:
    """Key and value that :data:`SELECT` gives to each committed record of an input, in the order of each key."""
    read = oracle.read(connection, [topic], timeout_s=120)
    return [(m.key, place(m.topic, m.partition, m.offset, m.value or "")) for m in read]


@dataclass
class LabWriter:
    """One process that writes the input."""

    name: str
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0


class Workload:
    """An input topic with several transactional writers, of unique ids and a few keys. A key stays in one partition.

    Parameters
    ----------
    connection : Connection
        The cluster, past every proxy: the writers and the judge are not under test.
    folder : Path
        For the writers' logs.
    seed : int
        Of the writers' sizes, keys and aborts.
    partitions, writers, keys : int
        How many.
    rate : float
        Records a second, of all writers together.
    aborts : float
        The share of transactions that a writer aborts.
    repeats : float
        The share of records that a writer sends a second time, with the same key and id.
    topic : str
        One that is there; by default a new one.
    starts : int
        The number of the writers' first start: ids of different starts never meet.
    """

    def __init__(
        self,
        connection: Connection,
        folder: Path,
        seed: int = 0,
        *,
        partitions: int = 3,
        writers: int = 2,
        keys: int = 20,
        rate: float = 200.0,
        aborts: float = 0.2,
        repeats: float = 0.0,
        topic: str = "",
        starts: int = 0,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.connection, self.partitions, self.rate = connection, partitions, rate
        self.topic = topic or create_topic(connection.bootstrap_servers, fresh_name("in"), partitions)
        self.writers = [LabWriter(f"w{n}-{self.topic}", starts=starts) for n in range(writers)]
        self._folder, self._seed, self._keys, self._aborts = folder, seed, keys, aborts
        self._repeats = repeats
        self._past: list[Row] = []  #: what is owed of a topic that was made again since
        self._log: IO[bytes] | None = None

    def start(self) -> None:
        """Start every writer that does not run."""
        for writer in self.writers:
            self.start_writer(writer)

    def start_writer(self, writer: LabWriter) -> None:
        """Start a writer. Its transactional id stays: it aborts what its former process left open."""
        if writer.process is not None and writer.process.poll() is None:
            return
        command = [sys.executable, "-m", "faultlab.writer", self.connection.bootstrap_servers, self.topic, writer.name]
        command += ["--start", str(writer.starts), "--rate", str(self.rate / len(self.writers))]
        command += ["--keys", str(self._keys), "--aborts", str(self._aborts), "--seed", str(self._seed)]
        command += ["--repeats", str(self._repeats)]
        writer.starts += 1
        with (self._folder / f"{writer.name}.log").open("ab") as log:
            writer.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )

    def kill_writer(self, writer: LabWriter) -> None:
        """Kill a writer with ``kill -9``, with whatever transaction it has open."""
        if writer.process is not None:
            writer.process.kill()
            writer.process.wait()

    def stop(self) -> None:
        """Let every writer end its transaction; wait until no transaction of the input is open."""
        running = [w.process for w in self.writers if w.process is not None and w.process.poll() is None]
        for process in running:
            assert process.stdin is not None
            process.stdin.close()
        for process in running:
            try:
                process.wait(WRITER_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        with Admin(self.connection, WRITER_END_S) as admin:
            until("the end of the input's transactions", lambda: not oracle.held_back(admin, [self.topic]), 30)

    def close(self) -> None:
        """Leave no process behind."""
        for writer in self.writers:
            self.kill_writer(writer)

    def expected(self) -> list[Row]:
        """Key and value of every record that a system owes, in the order that each key must keep. Of a record that was
        sent twice, the first. Of an input that was made again: what was decided of the old topic, and all of the new.
        """
        rows = [*self._past, *owed(self.connection, self.topic)]
        return firsts(rows) if self._repeats else rows

    def recreate(self, sink_id: str, share: float) -> tuple[int, int]:
        """Delete the input and make it again; the writers go on in the new topic. Nothing reads it meanwhile.

        What the sink has decided of the old topic is owed: the records before the offsets of its consumer group, which
        each decision moves along.

        Parameters
        ----------
        share : float
            The new topic begins with so many records for each one of the old topic.

        Returns
        -------
        (int, int)
            The records of the old topic that are gone undecided, and those with which the new one begins.
        """
        for writer in self.writers:
            self.kill_writer(writer)
        servers, ends = self.connection.bootstrap_servers, self._decided(sink_id)
        old = oracle.read(self.connection, [self.topic], timeout_s=120)
        decided = [m for m in old if m.offset < ends[m.partition]]
        self._past += [(m.key, place(m.topic, m.partition, m.offset, m.value or "")) for m in decided]
        delete_topic(servers, self.topic)
        create_topic(servers, self.topic, self.partitions)
        producer, new = Producer({**self.connection.librdkafka(), "log_level": 0}), int(share * len(old))
        for n in range(new):
            producer.produce(self.topic, f"{self.topic}.again.{n}", f"k{n % self._keys}")
            producer.poll(0)
        assert producer.flush(60) == 0
        self.start()
        return len(old) - len(decided), new

    @property
    def was_recreated(self) -> bool:
        """True when the input was made again."""
        return bool(self._past)

    def _decided(self, sink_id: str) -> dict[int, int]:
        """Return the offsets of the sink's consumer group, by partition."""
        reader = Consumer(
            {**self.connection.librdkafka(), "group.id": offsets_group(sink_id), "isolation.level": "read_uncommitted"}
        )
        try:
            wanted = [TopicPartition(self.topic, p) for p in range(self.partitions)]
            return {t.partition: max(0, t.offset) for t in reader.committed(wanted, timeout=30)}
        finally:
            reader.close()

    def source(self, connection: Connection, per_batch: int | None = None) -> dict[str, object]:
        """Return the input as a source of Spark, for :attr:`testkit.stream.Job.source`."""
        limit = {"maxOffsetsPerTrigger": str(per_batch)} if per_batch else {}
        options = {"subscribe": self.topic, "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
        return {"format": "kafka", "options": {**connection.spark(), **options, **limit}}
