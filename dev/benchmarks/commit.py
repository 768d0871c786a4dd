"""Measures the steps of one commit, for a growing number of parts: no Spark, only the engine's own steps."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.common import median
from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.coordinator.complete import complete
from exactly_once.coordinator.recover import recover
from exactly_once.coordinator.session import Session
from exactly_once.deadline import Deadline, now_ms
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.participants.kafka.participant import KafkaParticipant
from exactly_once.protocol.encoding import encode
from exactly_once.protocol.records import Claim, Completed, Decision
from exactly_once.txn.coordinators import describe, end_txn_version
from exactly_once.txn.leaders import mismatches
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.kafka_part import PartTransaction
from testkit.part_ids import part_id

#: Parts of a batch, and the number of batches: opening the parts takes most of the time.
SIZES = ((1, 20), (16, 20), (32, 20), (128, 10), (1_000, 4), (5_000, 2))

#: The brokers' maximum: the benchmark opens 5,000 parts one after the other before it ends the first.
TIMEOUT_MS = 900_000


@dataclass(frozen=True)
class Commit:
    """Medians in ms: to open one part, to check that all are alive, to ask for topics and leaders, to decide, to
    end all, to mark; and the size of the decision as JSON.
    """

    brokers: int
    parts: int
    open_ms: float
    alive_ms: float
    leaders_ms: float
    decide_ms: float
    end_ms: float
    mark_ms: float
    decision_bytes: int


def measure(folder: Path, brokers: int, sizes: tuple[tuple[int, int], ...] = SIZES) -> Iterator[Commit]:
    """Run once for each of ``sizes`` on a fresh cluster; its topics have a replica on every broker."""
    shutil.rmtree(folder, ignore_errors=True)
    with EmbeddedBroker(folder / f"brokers-{brokers}", nodes=brokers) as cluster:
        connection = Connection.from_options({"kafka.bootstrap.servers": cluster.bootstrap_servers})
        for parts, repeats in sizes:
            yield _measure(connection, brokers, parts, repeats + 1)  # the first one opens the connections


def _measure(connection: Connection, brokers: int, parts: int, repeats: int) -> Commit:
    """Commit ``repeats`` batches of ``parts`` transactions with one record each."""
    sink_id, topic = f"bench-commit-{uuid.uuid4().hex[:6]}", _topic(connection, brokers)
    times: dict[str, list[float]] = {}

    def timed(name: str, since: float) -> float:
        now = time.perf_counter()
        times.setdefault(name, []).append((now - since) * 1000)
        return now

    with Admin(connection) as admin, Admin(connection) as of_tasks:
        version = end_txn_version(admin)
        log = CommitLog(connection, sink_id)
        session = Session(log, KafkaParticipant(connection, sink_id))
        _, claim = log.claim(lambda _: Claim(1, "bench", now_ms(), "stream", "bench", 0), Deadline(30))
        for batch in range(repeats):
            handles = []
            for part in range(parts):
                start = time.perf_counter()
                name = part_id(sink_id, claim.token, part, "0.0")
                transaction = PartTransaction(connection, {}, name, TIMEOUT_MS, of_tasks)
                timed("open", start)
                transaction.send(topic, b"key-%d" % part, b"value")
                handles.append(transaction.prepare(part, 10))
            t = time.perf_counter()
            described = describe(admin.renew(30), (h.transactional_id for h in handles))
            t = timed("alive", t)
            admin.topic_ids([topic])
            assert mismatches(admin, handles, described) == ({}, "")
            t = timed("leaders", t)
            decision = Decision("bench", batch, claim.token, tuple(handles), "", version, now_ms())
            log.append(decision, Deadline(30), {topic: {0: batch}})  # with an input offset, as a stream from Kafka has
            t = timed("decide", t)
            complete(session, decision)
            t = timed("end", t)
            log.append(Completed("bench", batch, claim.token, now_ms()), Deadline(30))
            timed("mark", t)
        session.close()
    recover(connection, sink_id, 30)
    steps = {f"{name}_ms": median(all_times[1:]) for name, all_times in times.items()}
    return Commit(brokers, parts, decision_bytes=len(encode(decision)), **steps)


def _topic(connection: Connection, brokers: int) -> str:
    name = f"bench-commit-{uuid.uuid4().hex[:6]}"
    admin = AdminClient({"bootstrap.servers": connection.bootstrap_servers})
    for future in admin.create_topics([NewTopic(name, num_partitions=4, replication_factor=brokers)]).values():
        future.result(30)
    return name
