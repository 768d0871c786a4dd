"""A batch that goes to Kafka, to files and to PostgreSQL under one decision: all or none, with kill -9 at every point
between them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.coordinator.claim import make_claim
from exactly_once.coordinator.recover import recover
from exactly_once.deadline import Deadline, now_ms
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.outputs.files import FileParticipant
from exactly_once.outputs.postgres import PostgresParticipant
from exactly_once.participant import PartName
from exactly_once.protocol.names import commit_log_topic, incarnation
from exactly_once.protocol.records import KAFKA
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once.tools.verify.by_log.judge import OTHER_OUTPUT
from testkit import oracle
from testkit.broker import delete_topic, fresh_name
from testkit.fixtures import Bench, StartDriver
from testkit.postgres import PostgresServer
from testkit.stream import Job, Row, SparkDriver

#: In the order in which tasks pre-commit and the driver commits.
OUTPUTS = (KAFKA, "archive", "warehouse")

BEFORE_THE_DECISION = ("mid-write", *(f"pre-commit-{o}" for o in OUTPUTS), "all-prepared")
AFTER_THE_DECISION = ("decided", *(f"commit-{o}" for o in OUTPUTS), "all-ended", "completed")


@dataclass
class Outputs:
    """The three outputs of a bench, read by readers that the sink does not use."""

    bench: Bench
    files: Path
    server: PostgresServer
    table: str

    def in_kafka(self) -> list[Row]:
        return sorted((m.key or "", m.value or "") for m in oracle.read(self.bench.connection, [self.bench.topic]))

    def in_files(self) -> list[Row]:
        return sorted((r["key"], r["value"]) for r in oracle.in_files(self.files))

    def in_postgres(self) -> list[Row]:
        return sorted(self.server.sql(f"SELECT key, value FROM {self.table}"))

    def staged(self) -> list[Path]:
        return [f for f in self.files.glob("_staging/**/eo~*") if f.is_file()]

    def assert_all(self, expected: list[Row]) -> None:
        """Every output holds these rows once, and nothing is left in any."""
        wanted = sorted(expected)
        assert self.in_kafka() == wanted
        assert self.in_files() == wanted
        assert self.in_postgres() == wanted
        self.bench.assert_settled()
        assert self.staged() == [] and self.server.prepared() == set()


@pytest.fixture
def outputs(bench: Bench, tmp_path: Path, postgres: PostgresServer) -> Iterator[Outputs]:
    table = f"t_{bench.sink_id.replace('-', '_')}"
    postgres.sql(f"CREATE TABLE {table} (key text, value text)")
    files = tmp_path / "archive"
    participants: list[dict[str, Any]] = [
        {"class": "exactly_once.outputs.files:FileParticipant", "name": "archive", "url": str(files)},
        {
            "class": "exactly_once.outputs.postgres:PostgresParticipant",
            "name": "warehouse",
            "dsn": postgres.dsn(),
            "table": table,
        },
    ]
    bench.job = Job(**{**asdict(bench.job), "participants": participants})
    yield Outputs(bench, files, postgres, table)


@pytest.mark.long
def test_batches_reach_every_output_once_over_a_stop_and_a_start(outputs: Outputs, warm: SparkDriver) -> None:
    """Guards against an output that is forgotten, or written again by the next start."""
    bench = outputs.bench
    for batches in (2, 1):
        bench.complete(warm, batches=batches)
        outputs.assert_all(bench.input.expected())
    assert {h.participant for d in bench.log().decisions for h in d.handles} == set(OUTPUTS)


@pytest.mark.long
def test_the_checker_proves_every_output_of_a_stream_and_names_what_an_operator_broke(
    outputs: Outputs, warm: SparkDriver
) -> None:
    """Guards against a checker that knows the handles of its tests alone: these are real, over a stop and a start."""
    bench = outputs.bench
    for batches in (2, 1):
        bench.complete(warm, batches=batches)
    given = [
        FileParticipant("archive", str(outputs.files)),
        PostgresParticipant("warehouse", outputs.server.dsn(), outputs.table),
    ]

    report = verify(bench.connection, VerifyParameters(bench.sink_id, checkpoint=str(bench.checkpoint)), outputs=given)

    assert report.clean and not report.unproven, report.as_json()
    assert (report.batches, report.parts, report.records) == (3, 3 * 3 * 4, 3 * 3 * 200)
    alone = verify(bench.connection, VerifyParameters(bench.sink_id))
    assert alone.clean and alone.batches == 0
    assert alone.unproven == {OTHER_OUTPUT: 3 * 2 * 4}

    next(outputs.files.glob("batch=00000000000000000001-*/*")).unlink()
    outputs.server.sql(f"DELETE FROM {outputs.table} WHERE value LIKE 'b2-%'")
    broken = verify(bench.connection, VerifyParameters(bench.sink_id, settle_s=0), outputs=given)

    assert broken.counts == {"lost": 5, "torn batch": 1, "split sink": 1, "outcome lie": 2}
    assert broken.batches == 1


@pytest.mark.long
def test_two_tables_of_one_server_take_part_in_one_batch(
    bench: Bench, warm: SparkDriver, postgres: PostgresServer
) -> None:
    """Guards against names of prepared transactions that two outputs share: they are one server's, whatever the
    database, so the second output could never prepare.
    """
    name = bench.sink_id.replace("-", "_")
    postgres.sql(f"CREATE DATABASE d_{name}")
    places = [(f"a_{name}", "postgres"), (f"b_{name}", "postgres"), (f"a_{name}", f"d_{name}")]
    participants: list[dict[str, Any]] = []
    for i, (table, database) in enumerate(places):
        postgres.sql(f"CREATE TABLE {table} (key text, value text)", database=database)
        kind = "exactly_once.outputs.postgres:PostgresParticipant"
        participants.append({"class": kind, "name": f"p{i}", "dsn": postgres.dsn(database), "table": table})
    bench.job = Job(**{**asdict(bench.job), "participants": participants})
    for _ in range(2):
        bench.complete(warm)
        for table, database in places:
            seen = postgres.sql(f"SELECT key, value FROM {table}", database=database)
            assert sorted(seen) == sorted(bench.input.expected())
    bench.assert_exactly_once()
    assert postgres.prepared() == set()


def test_a_recovery_sweeps_what_a_deleted_log_left_and_nothing_of_another_cluster(
    connection: Connection, postgres: PostgresServer
) -> None:
    """Guards against two clusters (staging and production) whose sinks of one name roll back each other's parts in the
    database that they share, and against prepared transactions of a log that is gone: they hold locks until somebody
    ends them.
    """
    sink = fresh_name("sink")
    log = CommitLog(connection, sink)
    log.claim(lambda state: make_claim(state, "query", now_ms(), "stream"), Deadline(30))
    log.close()
    with Admin(connection) as admin:
        cluster, topic = admin.cluster_and_topic_id(commit_log_topic(sink))
        assert admin.cluster_and_topic_id(commit_log_topic(sink)) == (cluster, topic) and cluster and topic
    table = f"t_{sink.replace('-', '_')}"
    postgres.sql(f"CREATE TABLE {table} (id int8)")
    participant = PostgresParticipant("warehouse", postgres.dsn(), table)
    mine, deleted, others = (
        PartName(sink, token, 0, 0, "0.0", incarnation(*ids), "warehouse")
        for token, ids in ((1, (cluster, topic)), (99, (cluster, "deleted")), (1, ("staging", "log")))
    )
    for name in (mine, deleted, others):
        writer = participant.begin(name)
        writer.write(pa.record_batch([pa.array([1])], names=["id"]))
        assert writer.pre_commit() is not None

    report = recover(connection, sink, others=[participant])

    assert {output: set(names) for output, names in report.rolled_back.items()} == {
        "warehouse": {str(mine), str(deleted)}
    }
    assert set(report.as_metadata()["rolled_back"]["warehouse"]) == {
        str(mine),
        str(deleted),
    }
    assert {gid for gid in postgres.prepared() if sink in gid} == {str(others)}
    postgres.sql(f"ROLLBACK PREPARED '{others}'")


@pytest.mark.long
def test_a_sink_that_begins_anew_publishes_beside_the_files_of_before(outputs: Outputs, driver: StartDriver) -> None:
    """Guards against names that come again with a commit log that was deleted: the folder of the first batch is taken,
    so the stream could never publish it, and a lost file would pass for one of before.
    """
    bench = outputs.bench
    bench.input.add()
    for _ in range(2):  # new drivers, whose task attempts count from 0
        spark = driver()
        spark.complete(bench.job)
        spark.kill9()
        delete_topic(bench.connection.bootstrap_servers, commit_log_topic(bench.sink_id))
        shutil.rmtree(bench.checkpoint)

    assert outputs.in_files() == outputs.in_postgres() == outputs.in_kafka() == sorted(2 * bench.input.expected())
    assert outputs.staged() == [] and outputs.server.prepared() == set()


@pytest.mark.long
@pytest.mark.parametrize("point", BEFORE_THE_DECISION)
def test_what_is_not_decided_is_in_no_output_and_comes_with_the_next_start(
    point: str, outputs: Outputs, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a batch that one output has and another has not: a file without its records, a row without its
    file.
    """
    bench = outputs.bench
    bench.kill_at(point, driver())
    first = sorted(bench.input.expected(slice(0, 1)))
    assert outputs.in_kafka() == outputs.in_files() == outputs.in_postgres() == first
    assert bench.decided_batches() == [0]

    bench.complete(warm)

    outputs.assert_all(bench.input.expected())


@pytest.mark.long
@pytest.mark.parametrize("point", AFTER_THE_DECISION)
def test_what_is_decided_comes_to_every_output_once_whoever_finishes_it(
    point: str, outputs: Outputs, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a decided batch that stays in one output alone, and against one that another writes twice."""
    bench = outputs.bench
    bench.kill_at(point, driver())
    assert bench.decided_batches() == [0, 1]
    decision = bench.log().decisions[1]

    bench.complete(warm)

    outputs.assert_all(bench.input.expected())
    assert bench.log().decisions[1] == decision


@pytest.mark.long
def test_an_output_that_cannot_pre_commit_keeps_the_batch_out_of_all(outputs: Outputs, warm: SparkDriver) -> None:
    """Guards against two of three: the rows violate a constraint of the table, so no output may show the batch."""
    bench = outputs.bench
    bench.complete(warm)
    refused = f"ALTER TABLE {outputs.table} ADD CONSTRAINT no_b1 CHECK (value NOT LIKE 'b1-p2-%')"
    outputs.server.sql(refused)
    bench.input.add()

    ended = warm.run(bench.job)

    assert ended.failure is not None and "no_b1" in ended.failure
    outputs.assert_all(bench.input.expected(slice(0, 1)))
    outputs.server.sql(f"ALTER TABLE {outputs.table} DROP CONSTRAINT no_b1")
    warm.complete(bench.job)
    outputs.assert_all(bench.input.expected())


@pytest.mark.long
@pytest.mark.parametrize("with_kafka", [False, True])
def test_a_driver_that_a_recovery_has_superseded_rolls_back_what_it_prepared_in_every_output(
    with_kafka: bool, outputs: Outputs, warm: SparkDriver
) -> None:
    """Guards against prepared rows that nobody rolls back: the recovery knows no output but Kafka and is gone, and a
    prepared transaction of PostgreSQL has no timeout, so its locks stay.
    """
    bench = outputs.bench
    job = bench.job if with_kafka else bench.job.having(topic=None)
    run = bench.begin(warm, job)
    bench.hold(run, "mid-write", "sleep 4")
    recover(bench.connection, bench.sink_id)

    run.end().with_code("EO-FENCED")
    assert outputs.staged() == [] and outputs.server.prepared() == set()
    bench.assert_settled()
    assert outputs.in_postgres() == outputs.in_files() == sorted(bench.input.expected(slice(0, 1)))
    warm.complete(job)
    assert outputs.in_postgres() == outputs.in_files() == sorted(bench.input.expected())


@pytest.mark.long
def test_a_decided_part_that_one_output_lost_is_written_again_there_and_nowhere_else(
    outputs: Outputs, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a replay that duplicates the outputs which have the part."""
    bench = outputs.bench
    bench.kill_at("commit-warehouse", driver())
    lost = next(h for h in bench.log().decisions[1].handles if h.participant == "warehouse" and h.part == 2)
    outputs.server.sql(f"ROLLBACK PREPARED '{lost.name}'")

    bench.complete(warm)

    outputs.assert_all(bench.input.expected())
    assert bench.log().decisions[1].rewritten == ("warehouse/2",)


@pytest.mark.long
def test_a_start_without_an_output_that_has_decided_parts_is_refused_and_loses_nothing(
    outputs: Outputs, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a batch that is marked as completed while one of its outputs still waits for its commit."""
    bench = outputs.bench
    bench.kill_at("commit-archive", driver())
    assert bench.job.participants is not None
    fewer = Job(**{**asdict(bench.job), "participants": bench.job.participants[1:]})

    ended = warm.run(fewer).with_code("EO-PARTICIPANT")
    assert "'archive'" in ended.sentence
    warm.complete(bench.job)
    outputs.assert_all(bench.input.expected())
