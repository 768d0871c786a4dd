"""A table of Delta Lake and one of Iceberg as outputs of the lab's stream, read by their own libraries, which another
process writes to and maintains at the same time.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table, TableProperties

from exactly_once.outputs.delta import DeltaParticipant
from exactly_once.outputs.iceberg import IcebergParticipant
from exactly_once.participant import Participant
from faultlab.outputs import DELTA, ICEBERG
from testkit.oracle import Row
from testkit.stream import ROOT

#: The key of the rows that the other process writes.
OTHER = "another's"

#: What the other process has done, one JSON array a line: table, step, values.
JOURNAL = "others"

#: Its last append and its last rewriting of a table, on a busy machine.
END_S = 60.0

_NAME = "shop.orders"

_COLUMNS = pa.schema([("key", pa.string()), ("value", pa.string())])


def others_rows(values: Sequence[str]) -> pa.Table:
    """Return rows of the other process."""
    return pa.table([[OTHER] * len(values), list(values)], schema=_COLUMNS)


class LabTable(Protocol):
    """A table without partitions, as its own library sees it."""

    name: str

    def create(self) -> None: ...

    def rows(self) -> list[Row]: ...

    def append(self, rows: pa.Table) -> None:
        """Add rows, as another program does."""

    def maintain(self) -> None:
        """Write all rows into new files; remove older versions, and the files that only these named."""


class Lake:
    """The table of Delta Lake."""

    name = DELTA

    def __init__(self, folder: Path):
        self.location = folder / "lake"
        self._kept = 0

    def create(self) -> None:
        DeltaTable.create(str(self.location), Schema.from_arrow(_COLUMNS))

    def rows(self) -> list[Row]:
        return [(row["key"], row["value"]) for row in DeltaTable(str(self.location)).to_pyarrow_table().to_pylist()]

    def append(self, rows: pa.Table) -> None:
        write_deltalake(str(self.location), rows, mode="append")

    def maintain(self) -> None:
        """As :meth:`LabTable.maintain`; files that no version has named yet stay, as within every retention."""
        table = DeltaTable(str(self.location))
        table.optimize.compact()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        table.create_checkpoint()
        for old in self.location.glob("_delta_log/*.json"):  # those that a reader of the last checkpoint may still need
            if int(old.stem) < self._kept:
                old.unlink()
        self._kept = table.version()


class Ice:
    """The table of Iceberg; its catalogue is a file of SQLite."""

    name = ICEBERG

    def __init__(self, folder: Path):
        self.properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/ice"}

    def create(self) -> None:
        catalog = load_catalog("lab", **self.properties)
        catalog.create_namespace("shop")
        catalog.create_table(_NAME, _COLUMNS)

    def rows(self) -> list[Row]:
        return [(row["key"], row["value"]) for row in self._table().scan().to_arrow().to_pylist()]

    def append(self, rows: pa.Table) -> None:
        self._table().append(rows)

    def maintain(self) -> None:
        """As :meth:`LabTable.maintain`. Raises pyiceberg's CommitFailedException when another one commits meanwhile."""
        table = self._table()
        # in this copy alone: a second try would replace rows that were not read
        once = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        read = table.scan()
        replaced = [task.file.file_path for task in read.plan_files()]
        table.overwrite(read.to_arrow())
        for path in replaced:
            Path(path.removeprefix("file://")).unlink()
        tomorrow = dt.datetime.now() + dt.timedelta(1)
        self._table().maintenance.expire_snapshots().older_than(tomorrow).commit()

    def _table(self) -> Table:
        return load_catalog("lab", **self.properties).load_table(_NAME)


class Tables:
    """Two new tables below a folder. Another process appends to both and maintains them, until :meth:`rest`.

    Parameters
    ----------
    folder : Path
    seed : int
        Of what the other process does.
    """

    def __init__(self, folder: Path, seed: int = 0):
        folder.mkdir(parents=True)
        self.folder, self.lake, self.ice = folder, Lake(folder), Ice(folder)
        self.both: tuple[LabTable, ...] = (self.lake, self.ice)
        for table in self.both:
            table.create()
        (folder / JOURNAL).touch()
        with (folder / "writer.log").open("wb") as log:
            self._other = subprocess.Popen(
                [sys.executable, "-m", "faultlab.table_writer", str(folder), "--seed", str(seed)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    def rest(self) -> None:
        """Let the other process end what it does."""
        assert self._other.stdin is not None
        self._other.stdin.close()
        self._other.wait(END_S)

    def close(self) -> None:
        """Leave no process behind."""
        self._other.kill()
        self._other.wait()

    def descriptions(self) -> list[dict[str, Any]]:
        """Return :attr:`testkit.stream.Job.participants`."""
        written, lake = {"columns": list(_COLUMNS.names)}, str(self.lake.location)
        delta = {"class": "exactly_once.outputs.delta:DeltaParticipant", "name": DELTA, "url": lake}
        iceberg = {"class": "exactly_once.outputs.iceberg:IcebergParticipant", "name": ICEBERG, "table": _NAME}
        return [delta | written, iceberg | written | {"catalog": "lab", "properties": self.ice.properties}]

    def participants(self) -> list[Participant[Any]]:
        """Return the participants that :func:`exactly_once.verify` takes."""
        lake, ice = str(self.lake.location), self.ice.properties
        return [DeltaParticipant(DELTA, lake), IcebergParticipant(ICEBERG, _NAME, "lab", ice)]

    def rows(self) -> dict[str, list[Row]]:
        """Return what readers see of the stream now, by output."""
        return {table.name: [row for row in table.rows() if row[0] != OTHER] for table in self.both}

    def wrong(self) -> dict[str, list[str]]:
        """Return what the other process has lost, or has twice, by anomaly; call it at rest."""
        found: dict[str, list[str]] = {}
        for table in self.both:
            seen = Counter(str(value) for key, value in table.rows() if key == OTHER)
            told = self.steps(table.name)
            added = {value for step, values in told if step == "appended" for value in values}
            begun = {value for step, values in told if step == "begins" for value in values}
            found[f"{table.name}: another's lost"] = sorted(added - set(seen))
            found[f"{table.name}: another's duplicate"] = sorted(value for value, n in seen.items() if n > 1)
            found[f"{table.name}: another's phantom"] = sorted(set(seen) - begun)
        if code := self._other.poll():
            last = (self.folder / "writer.log").read_text().splitlines()[-1:]
            found["the other writer of the tables ended"] = [" ".join([f"with {code}", *last])]
        return found

    def steps(self, name: str) -> list[tuple[str, list[str]]]:
        """Return what the other process has done to a table: each step, and the values of its rows."""
        lines = (self.folder / JOURNAL).read_text().splitlines()
        return [(step, values) for table, step, values in map(json.loads, lines) if table == name]

    def __str__(self) -> str:
        done = {table.name: Counter(step for step, _ in self.steps(table.name)) for table in self.both}
        return "; ".join(
            f"beside {name}: {n['appended']} appends, {n['maintained']} times maintained, {n['overtaken']} overtaken"
            for name, n in done.items()
        )

    def marks(self) -> list[Path]:
        """Return what is begun or prepared."""
        return sorted(self.folder.glob("**/_exactly_once/*"))
