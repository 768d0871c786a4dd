"""Locations of tables as people name them: real tables on the local disk."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("deltalake", reason="needs the extra delta")
pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from exactly_once.errors import StoreRefused
from exactly_once.outputs import delta
from exactly_once.outputs.delta import DeltaParticipant
from exactly_once.outputs.iceberg import IcebergParticipant

SCHEMA = pa.schema([("value", pa.int64())])


@pytest.mark.parametrize("name", ["orders", "my table", "orders#2", "a?b", "100%", "prüfung", "{env}", "a+b", "a:b"])
def test_a_delta_table_of_any_name_is_the_one_that_spark_reads(tmp_path: Path, name: str) -> None:
    """Loss: rows that are committed to a table beside the one that readers look at."""
    DeltaTable.create(str(tmp_path / name), SCHEMA)
    for url in (f"{tmp_path}/{name}", f"file:{tmp_path}/{name}", f"file://{tmp_path}/{name}/"):
        participant = DeltaParticipant("lake", url)
        participant.check("orders", SCHEMA)
        assert participant.url == str(tmp_path / name)
        log = [file.name for file in (tmp_path / name / "_delta_log").glob("*.json")]
        assert [n for n in participant._store().names("_delta_log") if n.endswith(".json")] == log


def test_a_delta_table_on_a_store_is_given_to_deltalake_as_it_reads_it() -> None:
    """Loss: as above; deltalake takes a URI, which ends at its # or its ?."""
    participant = DeltaParticipant("lake", "s3a://box/my table#2?x=ü/")
    assert participant.url == "s3a://box/my table#2?x=ü"
    assert delta._escaped(participant.url) == "s3a://box/my%20table%232%3Fx%3D%C3%BC"


@pytest.mark.parametrize("url", ["/data/a%20b", "s3://box/a[1]", "file://data/x"])
def test_a_location_that_deltalake_cannot_read_is_refused(url: str) -> None:
    """Outage: deltalake decodes twice, or panics, which no handler of exceptions catches."""
    with pytest.raises(StoreRefused, match="EO-STORE"):
        DeltaParticipant("lake", url)


def test_an_iceberg_table_whose_location_pyiceberg_cannot_read_is_refused(tmp_path: Path) -> None:
    """Loss: pyiceberg ends a path at its # and its ?, and writes the files to another folder than the table's."""
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/w"}
    catalog = load_catalog("lab", **properties)
    catalog.create_namespace("shop")
    participant = IcebergParticipant("lake", "shop.orders", "lab", properties)
    catalog.create_table("shop.orders", SCHEMA, location=f"file://{tmp_path}/my%20table[1]")
    participant.check("orders", SCHEMA)
    opened = participant._open()
    assert opened.refusal() is None
    there = opened.opened.metadata  # type: ignore[attr-defined]
    opened.opened.metadata = there.model_copy(update={"location": f"{there.location}#2"})  # type: ignore[attr-defined]
    assert "which pyiceberg cannot read" in (opened.refusal() or ("",))[0]
