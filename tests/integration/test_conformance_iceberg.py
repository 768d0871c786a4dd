"""Iceberg as a participant: the conformance suite on local disk with a SQL catalogue, and what is special about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg", reason="needs the extra iceberg")

from pyiceberg.catalog import load_catalog

from exactly_once.outputs.conformance import ParticipantConformance
from exactly_once.outputs.iceberg import IcebergParticipant


def catalog_at(root: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}


@pytest.mark.long
class TestIceberg(ParticipantConformance):
    """Read by pyiceberg's own scan; what is left is found by looking into the folder."""

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.properties = catalog_at(tmp_path)
        self.catalog = load_catalog("lab", **self.properties)
        self.catalog.create_namespace("shop")
        self.root = Path(self.catalog.create_table("shop.orders", self.schema).location().removeprefix("file://"))

    def participant(self) -> IcebergParticipant:
        return IcebergParticipant("iceberg", "shop.orders", "lab", self.properties)

    def table(self) -> Any:
        return self.catalog.load_table("shop.orders")

    def visible(self) -> list[dict[str, Any]]:
        return list(self.table().scan().to_arrow().select(self.schema.names).to_pylist())

    def leftovers(self) -> set[str]:
        named = {Path(task.file.file_path).name for task in self.table().scan().plan_files()}
        found = {p.name for folder in ("_exactly_once", "data") for p in self.root.glob(f"{folder}/*")} - named
        return {name.removesuffix(".parquet").replace("=", ":") for name in found}

    def foreign(self) -> set[str]:
        (self.root / "_exactly_once" / "notes.txt").write_text("a person's")
        (self.root / "_exactly_once" / "eo=orders_1=1=7=0.parquet").write_text("no attempt: not a name of ours")
        return {"notes.txt", "eo:orders_1:1:7:0"}

    def lose(self, handle: Any) -> None:
        (path,) = self.root.glob(f"data/{handle.name.replace(':', '=')}.parquet")
        path.unlink()
