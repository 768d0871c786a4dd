"""``verify`` on a real PostgreSQL: each anomaly is planted in the table and found by name; what is right is clean."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from exactly_once.outputs.files import FileParticipant
from exactly_once.outputs.postgres import PostgresParticipant
from exactly_once.participant import PartName
from exactly_once.protocol.records import PreparedPart
from testkit.planted_outputs import LOG, SINK, Planted
from testkit.postgres import PostgresServer, Standby
from testkit.processes import until


@pytest.fixture
def table(postgres: PostgresServer) -> str:
    for gid in postgres.prepared():
        postgres.sql(f"ROLLBACK PREPARED '{gid}'")
    postgres.sql("DROP TABLE IF EXISTS verified CASCADE")
    postgres.sql("CREATE TABLE verified (id int8, word text)")
    return "verified"


@pytest.fixture
def sink(postgres: PostgresServer, table: str) -> Planted:
    made = Planted(PostgresParticipant("warehouse", postgres.dsn(), table))
    for number in range(3):
        made.batch(number)
    return made


def test_committed_batches_are_proven_by_number_and_digest(sink: Planted, postgres: PostgresServer) -> None:
    """A false alarm over a healthy table, or over one that PostgreSQL has frozen or rewritten meanwhile."""
    for statement in ("SELECT 1", "VACUUM FREEZE verified", "VACUUM FULL verified"):
        postgres.sql(statement)
        verdict = sink.verdict()
        assert verdict.findings == [] and not verdict.unproven, statement
        assert (verdict.batches, verdict.parts, verdict.records) == (3, 6, 18)


def test_deleted_rows_are_lost(sink: Planted, postgres: PostgresServer) -> None:
    postgres.sql("DELETE FROM verified WHERE id = 111")
    assert sink.anomalies() == {"lost": 1}
    lost = sink.finding("lost")
    assert "part 1 of batch 1 in warehouse is decided" in lost.what and "2 of its 3 rows" in lost.what
    assert lost.records == 1 and lost.places[0].startswith("xid ")
    postgres.sql("DELETE FROM verified WHERE id BETWEEN 110 AND 119")
    assert sink.anomalies() == {"lost": 1, "torn batch": 1, "outcome lie": 1}


def test_rows_by_hand_are_phantoms(sink: Planted, postgres: PostgresServer) -> None:
    """Readers cannot tell them from the stream's."""
    postgres.sql("INSERT INTO verified VALUES (1, 'a person''s'), (2, 'another')")
    assert sink.anomalies() == {"phantom": 1}
    assert sink.finding("phantom").records == 2 and "xmin" in sink.finding("phantom").places[0]


def test_rows_from_before_the_window_are_left_out(sink: Planted) -> None:
    """The log has dropped their decisions: a false alarm over every table that is older than 64 batches."""
    verdict = sink.verdict(since=2)
    assert verdict.findings == [] and verdict.parts == 2


def test_a_changed_row_is_missed_and_strange(sink: Planted, postgres: PostgresServer) -> None:
    """An UPDATE makes another row of it, whatever it changes."""
    postgres.sql("UPDATE verified SET word = 'changed' WHERE id = 1")
    assert sink.anomalies() == {"lost": 1, "phantom": 1}


def test_in_a_table_that_others_change_only_what_is_certain_is_said(
    sink: Planted, postgres: PostgresServer, table: str
) -> None:
    """Their work is no anomaly; what they took away is not proven either."""
    postgres.sql("INSERT INTO verified VALUES (1, 'theirs')")
    postgres.sql("DELETE FROM verified WHERE id IN (1, 110, 111, 112)")
    verdict = sink.verdict(PostgresParticipant("warehouse", postgres.dsn(), table, shared=True))
    assert verdict.findings == [] and verdict.parts == 4 and verdict.batches == 1
    every, some = sorted(verdict.unproven)
    assert every.startswith("warehouse: ") and "all of its rows" in every and verdict.unproven[every] == 1
    assert some.startswith("warehouse: ") and "some of its rows" in some and verdict.unproven[some] == 1


def test_a_transaction_that_stays_prepared_after_its_completed_mark_is_unseen(sink: Planted) -> None:
    """A sink that marks what it has not committed; the rows hold locks besides."""
    sink.batch(3, commit=False)
    assert sink.anomalies() == {"unseen": 2, "outcome lie": 1}


def test_a_decided_transaction_that_was_rolled_back_is_lost(sink: Planted, postgres: PostgresServer) -> None:
    """By an operator, behind the sink's back."""
    decision = sink.batch(3, commit=False)
    for handle in decision.handles:
        postgres.sql(f"ROLLBACK PREPARED '{handle.name}'")
    assert sink.anomalies() == {"lost": 2, "outcome lie": 1}


def test_what_a_superseded_driver_left_prepared_lingers(sink: Planted) -> None:
    """A prepared transaction has no timeout: it holds locks, and VACUUM back, until somebody ends it."""
    left = sink.part(sink.outputs[0], 3, 0)
    assert sink.anomalies() == {}, "a batch on its way"
    sink.claim(4)
    assert sink.anomalies() == {"lingering": 1}
    assert sink.finding("lingering").transaction == left.name


def test_a_batch_that_the_table_has_and_a_file_has_not_is_split(
    postgres: PostgresServer, table: str, tmp_path: Any
) -> None:
    archive = FileParticipant("archive", str(tmp_path / "archive"))
    sink = Planted(archive, PostgresParticipant("warehouse", postgres.dsn(), table))
    decision = sink.batch(0)
    assert sink.anomalies() == {}
    for path in (tmp_path / "archive").glob("batch=*/*"):
        path.unlink()
    assert sink.anomalies() == {"lost": 2, "split sink": 1, "outcome lie": 1}
    split = sink.finding("split sink").what
    assert "visible in warehouse, " in split and "archive shows nothing" in split
    assert {h.participant for h in decision.handles} == {"archive", "warehouse"}


def test_a_role_that_may_not_read_is_told_so(sink: Planted, postgres: PostgresServer, table: str) -> None:
    """A missing right must look neither like a proof nor like a loss."""
    postgres.sql("DROP ROLE IF EXISTS blind")
    postgres.sql("CREATE ROLE blind LOGIN")
    postgres.sql("GRANT INSERT ON verified TO blind")
    verdict = sink.verdict(PostgresParticipant("warehouse", postgres.dsn(user="blind"), table))
    assert verdict.findings == [] and verdict.parts == 0
    (reason,) = verdict.unproven
    assert "EO-DENIED" in reason and "denied for table verified" in reason


@pytest.mark.long
def test_rows_that_an_asynchronous_standby_never_got_are_lost(own_postgres: PostgresServer) -> None:
    """After a failover that loses committed rows, "cannot tell" is no help to whoever has to write them again. The new
    primary gives their transaction ids out again: rows of a later batch must not stand in for them.
    """
    own_postgres.start().sql("CREATE TABLE verified (id int8, word text)")
    sink = Planted(PostgresParticipant("warehouse", own_postgres.dsn(), "verified"))
    sink.batch(0)
    standby = Standby(own_postgres)
    try:
        standby.start()
        until("the standby", standby.follows, 30)
        standby.kill()
        sink.batch(1)
        own_postgres.kill()
        standby.start().sql("SELECT pg_promote()")
        sink.outputs = (PostgresParticipant("warehouse", standby.dsn(), "verified"),)
        assert sink.anomalies() == {"lost": 2, "outcome lie": 1}
        assert "restore lost its transaction" in sink.verdict().findings[0].what
        again = sink.batch(2)
        first, second = (h.data["xid"] for h in again.handles)
        assert [f.places for f in sink.verdict().findings if f.anomaly.value == "lost"] == [
            (f"xid {first}",),
            (f"xid {second}",),
        ], "the same ids"
        assert sink.anomalies() == {"lost": 2, "outcome lie": 1}
        assert sink.verdict().parts == 4
    finally:
        standby.close()


def test_another_database_proves_no_loss(sink: Planted, postgres: PostgresServer, table: str) -> None:
    """A wrong DSN must not look like lost data."""
    postgres.sql("DROP DATABASE IF EXISTS elsewhere")
    postgres.sql("CREATE DATABASE elsewhere")
    postgres.sql("CREATE TABLE verified (id int8, word text)", database="elsewhere")
    verdict = sink.verdict(PostgresParticipant("warehouse", postgres.dsn("elsewhere"), table))
    assert verdict.findings == []
    [(why, parts)] = verdict.unproven.items()
    assert why.startswith("warehouse: ") and "is not the one" in why and parts == 6


def test_a_partitioned_table_is_read_as_one(postgres: PostgresServer) -> None:
    """Each partition is a table of its own for PostgreSQL."""
    postgres.sql("DROP TABLE IF EXISTS verified_days CASCADE")
    postgres.sql("CREATE TABLE verified_days (id int8, word text) PARTITION BY RANGE (id)")
    postgres.sql("CREATE TABLE verified_1 PARTITION OF verified_days FOR VALUES FROM (0) TO (11)")
    postgres.sql("CREATE TABLE verified_2 PARTITION OF verified_days FOR VALUES FROM (11) TO (1000)")
    sink = Planted(PostgresParticipant("warehouse", postgres.dsn(), "verified_days"))
    sink.batch(0)
    assert sink.verdict().parts == 2 and sink.anomalies() == {}


def test_the_digest_comes_back_for_the_types_that_spark_has(postgres: PostgresServer) -> None:
    """A right table must be proven, not only counted; a type that does not come back is counted, and said."""
    at = dt.datetime(2026, 7, 8, 9, 10, 11, 123456)
    kinds: dict[str, tuple[pa.DataType, str, Any]] = {
        "a": (pa.int16(), "int2", -7),
        "b": (pa.float64(), "float8", 0.1),
        "c": (pa.float32(), "float4", 0.1),
        "d": (pa.bool_(), "bool", True),
        "e": (pa.binary(), "bytea", b"\x00\xff"),
        "f": (pa.date32(), "date", at.date()),
        "g": (pa.timestamp("us"), "timestamp", at),
        "h": (pa.timestamp("us", "UTC"), "timestamptz", at.replace(tzinfo=dt.UTC)),
        "i": (pa.string(), "varchar(9)", "ü"),
    }
    other: dict[str, tuple[pa.DataType, str, Any]] = {"j": (pa.decimal128(10, 2), "numeric", Decimal("1.50"))}
    for columns, proven in ((kinds, True), (kinds | other, False)):
        postgres.sql("DROP TABLE IF EXISTS typed")
        postgres.sql(f"CREATE TABLE typed ({', '.join(f'{name} {sql}' for name, (_, sql, _) in columns.items())})")
        output = PostgresParticipant("typed", postgres.dsn(), "typed")
        schema = pa.schema([(name, kind) for name, (kind, _, _) in columns.items()])
        writer = output.begin(PartName(SINK, 3, 0, 0, "0.1", LOG, "typed"))
        row = {name: value for name, (_, _, value) in columns.items()}
        writer.write(pa.RecordBatch.from_pylist([row, dict.fromkeys(row)], schema=schema))
        handle = writer.pre_commit()
        assert isinstance(handle, PreparedPart) and output.commit([handle]) == []
        (found,) = output.found(SINK, [handle])
        assert found.visible and found.records == 2
        assert found.digest == (handle.digest if proven else "")


def test_a_look_changes_and_blocks_nothing(sink: Planted, postgres: PostgresServer) -> None:
    """Verify runs beside a live stream: its snapshot must end with it."""
    with psycopg.connect(postgres.dsn(), autocommit=True) as reader:
        sink.verdict()
        begun = "SELECT count(*) FROM pg_stat_activity WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid()"
        left = reader.execute(f"{begun} AND backend_type = 'client backend'").fetchone()
    assert left == (0,)
