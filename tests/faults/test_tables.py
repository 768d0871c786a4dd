"""A batch that goes to Kafka, to a table of Delta Lake and to one of Iceberg under one decision: all or none, with kill
-9 at the points around the commits of the tables.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from deltalake import DeltaTable, Schema
from pyiceberg.catalog import load_catalog

from exactly_once.outputs.delta import DeltaParticipant
from exactly_once.outputs.iceberg import IcebergParticipant
from exactly_once.protocol.records import KAFKA
from exactly_once.tools.verify import VerifyParameters, verify
from testkit import oracle
from testkit.fixtures import Bench, StartDriver
from testkit.stream import Job, Row, SparkDriver

OUTPUTS = (KAFKA, "lake", "ice")
COLUMNS = pa.schema([("key", pa.string()), ("value", pa.string())])

BEFORE_THE_DECISION = ("pre-commit-lake", "pre-commit-ice")
AFTER_THE_DECISION = ("table-commit-lake", "table-committed-lake", "table-commit-ice", "table-committed-ice")


@dataclass
class Tables:
    """The outputs of a bench, read by the readers of their own libraries."""

    bench: Bench
    root: Path

    @property
    def lake(self) -> str:
        return str(self.root / "lake")

    @property
    def properties(self) -> dict[str, str]:
        return {"type": "sql", "uri": f"sqlite:///{self.root}/catalog.db", "warehouse": f"file://{self.root}/warehouse"}

    def create(self) -> None:
        self.root.mkdir()
        DeltaTable.create(self.lake, Schema.from_arrow(COLUMNS))
        catalog = load_catalog("lab", **self.properties)
        catalog.create_namespace("shop")
        catalog.create_table("shop.orders", COLUMNS)

    def descriptions(self) -> list[dict[str, Any]]:
        return [
            {"class": "exactly_once.outputs.delta:DeltaParticipant", "name": "lake", "url": self.lake},
            {
                "class": "exactly_once.outputs.iceberg:IcebergParticipant",
                "name": "ice",
                "table": "shop.orders",
                "catalog": "lab",
                "properties": self.properties,
            },
        ]

    def participants(self) -> list[Any]:
        return [
            DeltaParticipant("lake", self.lake),
            IcebergParticipant("ice", "shop.orders", "lab", self.properties),
        ]

    def in_kafka(self) -> list[Row]:
        return sorted((m.key or "", m.value or "") for m in oracle.read(self.bench.connection, [self.bench.topic]))

    def in_delta(self) -> list[Row]:
        rows = DeltaTable(self.lake).to_pyarrow_table().to_pylist()
        return sorted((row["key"], row["value"]) for row in rows)

    def in_iceberg(self) -> list[Row]:
        rows = load_catalog("lab", **self.properties).load_table("shop.orders").scan().to_arrow().to_pylist()
        return sorted((row["key"], row["value"]) for row in rows)

    def assert_all(self, expected: list[Row]) -> None:
        """Every output holds these rows once, and nothing is left in any."""
        wanted = sorted(expected)
        assert self.in_kafka() == wanted
        assert self.in_delta() == wanted
        assert self.in_iceberg() == wanted
        self.bench.assert_settled()
        assert list(self.root.glob("**/_exactly_once/*")) == []

    def assert_proven(self) -> None:
        """The checker reads the rows of both tables back, and compares them with the decisions."""
        report = verify(self.bench.connection, VerifyParameters(self.bench.sink_id), outputs=self.participants())
        assert report.clean and not report.unproven, report.as_json()


@pytest.fixture
def tables(bench: Bench, tmp_path: Path) -> Tables:
    made = Tables(bench, tmp_path / "tables")
    made.create()
    bench.job = Job(**{**asdict(bench.job), "participants": made.descriptions()})
    return made


@pytest.mark.long  # the imports of both libraries in a new driver, 19 s of processor time
def test_batches_reach_the_topic_and_both_tables_once_and_the_checker_proves_it(
    tables: Tables, warm: SparkDriver
) -> None:
    """Guards against an output that is forgotten, or written again by the next start."""
    bench = tables.bench
    for batches in (2, 1):
        bench.complete(warm, batches=batches)
        tables.assert_all(bench.input.expected())
    assert {h.participant for d in bench.log().decisions for h in d.handles} == set(OUTPUTS)
    assert DeltaTable(tables.lake).version() == 3, "one commit of the table for each batch"
    tables.assert_proven()

    DeltaTable(tables.lake).delete("value LIKE 'b2-%'")
    seen = verify(bench.connection, VerifyParameters(bench.sink_id, settle_s=0), outputs=tables.participants())
    assert seen.clean and sum(seen.unproven.values()) > 0, seen.as_json()
    next(iter((tables.root / "warehouse" / "shop" / "orders" / "data").glob("*=ice.parquet"))).unlink()
    broken = verify(bench.connection, VerifyParameters(bench.sink_id, settle_s=0), outputs=tables.participants())
    assert not broken.clean, broken.as_json()


@pytest.mark.long
def test_paimon_9666_a_batch_whose_mark_is_gone_is_not_committed_again(tables: Tables, warm: SparkDriver) -> None:
    """Duplicates: paimon#9666. The driver died between the commit of the table and ``commits/N``, so Spark runs the
    batch again under its old number; the deletion of that file is the state which such a death leaves.
    """
    bench = tables.bench
    bench.complete(warm, batches=2)
    newest = max(int(f.name) for f in (bench.checkpoint / "commits").iterdir() if f.name.isdigit())
    (bench.checkpoint / "commits" / str(newest)).unlink()
    (bench.checkpoint / "commits" / f".{newest}.crc").unlink(missing_ok=True)
    warm.complete(bench.job)
    tables.assert_all(bench.input.expected())
    bench.complete(warm)
    tables.assert_all(bench.input.expected())
    tables.assert_proven()


@pytest.mark.long
@pytest.mark.parametrize("point", BEFORE_THE_DECISION)
def test_what_is_not_decided_is_in_no_table(point: str, tables: Tables, driver: StartDriver, warm: SparkDriver) -> None:
    """Guards against a batch that one output has and another has not."""
    bench = tables.bench
    bench.kill_at(point, driver())
    assert tables.in_kafka() == tables.in_delta() == tables.in_iceberg() == sorted(bench.input.expected(slice(0, 1)))

    bench.complete(warm)

    tables.assert_all(bench.input.expected())
    tables.assert_proven()


@pytest.mark.long
@pytest.mark.parametrize("point", AFTER_THE_DECISION)
def test_what_is_decided_comes_to_both_tables_once_whoever_finishes_it(
    point: str, tables: Tables, driver: StartDriver, warm: SparkDriver
) -> None:
    """Guards against a decided batch that stays in one output alone, and against one that another driver adds twice."""
    bench = tables.bench
    bench.kill_at(point, driver())
    assert bench.decided_batches() == [0, 1]

    bench.complete(warm)

    tables.assert_all(bench.input.expected())
    tables.assert_proven()
