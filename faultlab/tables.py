"""A table of Delta Lake and one of Iceberg as outputs of the lab's stream, read by their own libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyiceberg.catalog import load_catalog

from exactly_once.participant import Participant
from exactly_once.participants.delta import DeltaParticipant
from exactly_once.participants.iceberg import IcebergParticipant
from faultlab.outputs import DELTA, ICEBERG
from testkit.oracle import Row

_NAME = "shop.orders"

_COLUMNS = pa.schema([("key", pa.string()), ("value", pa.string())])


class Tables:
    """Two new tables below a folder, without partitions; the Iceberg one has a catalogue in SQLite."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True)
        self.folder = folder
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/ice"}
        DeltaTable.create(self._lake, Schema.from_arrow(_COLUMNS))
        catalog = load_catalog("lab", **self.properties)
        catalog.create_namespace("shop")
        catalog.create_table(_NAME, _COLUMNS)

    @property
    def _lake(self) -> str:
        return str(self.folder / "lake")

    def descriptions(self) -> list[dict[str, Any]]:
        """Return :attr:`testkit.stream.Job.participants`."""
        written = {"columns": list(_COLUMNS.names)}
        delta = {"class": "exactly_once.participants.delta:DeltaParticipant", "name": DELTA, "url": self._lake}
        iceberg = {"class": "exactly_once.participants.iceberg:IcebergParticipant", "name": ICEBERG, "table": _NAME}
        return [delta | written, iceberg | written | {"catalog": "lab", "properties": self.properties}]

    def participants(self) -> list[Participant[Any]]:
        """Return the participants that :func:`exactly_once.verify.verify` takes."""
        return [DeltaParticipant(DELTA, self._lake), IcebergParticipant(ICEBERG, _NAME, "lab", self.properties)]

    def rows(self) -> dict[str, list[Row]]:
        """Return what readers see now, by output."""
        found = {
            DELTA: DeltaTable(self._lake).to_pyarrow_table(),
            ICEBERG: load_catalog("lab", **self.properties).load_table(_NAME).scan().to_arrow(),
        }
        return {name: [(row["key"], row["value"]) for row in rows.to_pylist()] for name, rows in found.items()}

    def marks(self) -> list[Path]:
        """Return what is begun or prepared."""
        return sorted(self.folder.glob("**/_exactly_once/*"))
