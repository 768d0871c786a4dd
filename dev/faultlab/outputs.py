"""More outputs of the stream beside its topic, and what a reader finds in them: files and a table of PostgreSQL; if
wanted, also a table of Delta Lake and one of Iceberg, to which others write too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exactly_once.outputs.files import FileParticipant
from exactly_once.outputs.postgres import PostgresParticipant
from exactly_once.participant import Participant
from faultlab.judge import LabVerdict, compare
from testkit import oracle
from testkit.oracle import Row
from testkit.postgres import PostgresServer

if TYPE_CHECKING:
    from faultlab.tables import Tables

FILES, TABLE = "archive", "warehouse"
DELTA, ICEBERG = "lake", "ice"

#: Points of the protocol that a stream with these outputs passes too.
POINTS = (
    *(f"{step}-{output}" for step in ("pre-commit", "commit") for output in ("kafka", FILES, TABLE)),
    "files-gathered",
)

#: Those of a stream that writes to the other two as well.
TABLE_POINTS = tuple(
    f"{step}-{output}"
    for step in ("pre-commit", "commit", "table-commit", "table-committed")
    for output in (DELTA, ICEBERG)
)


class LabOutputs:
    """A folder, and a database server of its own. A context manager.

    Parameters
    ----------
    folder : Path
        For the files.
    tables : Tables, optional
        The tables of Delta Lake and Iceberg, which are there.

    Attributes
    ----------
    server : PostgresServer
        It runs.
    struck : bool
        While a fault holds the server: then it can be asked nothing, and no other one strikes it.
    """

    def __init__(self, folder: Path, tables: Tables | None = None):
        self.folder, self.server, self.struck, self.tables = folder, PostgresServer(), False, tables
        self.server.start()
        self.server.sql(f"CREATE TABLE {TABLE} (key text, value text)")

    def __enter__(self) -> LabOutputs:
        return self

    def __exit__(self, *error: object) -> None:
        if self.tables:
            self.tables.close()
        self.server.close()

    @property
    def points(self) -> tuple[str, ...]:
        """The points of the protocol that the stream passes with these outputs, too."""
        return POINTS + (TABLE_POINTS if self.tables else ())

    def descriptions(self) -> list[dict[str, Any]]:
        """Return :attr:`testkit.stream.Job.participants`."""
        return [
            {"class": "exactly_once.outputs.files:FileParticipant", "name": FILES, "url": str(self.folder)},
            {
                "class": "exactly_once.outputs.postgres:PostgresParticipant",
                "name": TABLE,
                "dsn": self.server.dsn(),
                "table": TABLE,
                "columns": ["key", "value"],
            },
            *(self.tables.descriptions() if self.tables else ()),
        ]

    def participants(self) -> list[Participant[Any]]:
        """Return the participants that :func:`exactly_once.verify` takes."""
        return [
            FileParticipant(FILES, str(self.folder)),
            PostgresParticipant(TABLE, self.server.dsn(), TABLE),
            *(self.tables.participants() if self.tables else ()),
        ]

    def judge(self, verdict: LabVerdict, expected: Sequence[Row]) -> None:
        """Add what these outputs lack or have too much, and what nobody has ended in them: none keeps an order."""
        if self.tables:
            self.tables.rest()
        in_tables = self.tables.rows() if self.tables else {}
        for output, found in {FILES: self._in_files(), TABLE: self._in_table(), **in_tables}.items():
            one = compare(sorted(found), sorted((k or "", v or "") for k, v in expected))
            for anomaly, some in one.examples.items():
                verdict.add(f"{output}: {anomaly}", some)
                verdict.anomalies[f"{output}: {anomaly}"] = one.anomalies[anomaly]
        staged = [f for f in self.folder.glob("_staging/**/eo~*") if f.is_file()]
        verdict.add(f"{FILES}: lingering", staged)
        verdict.add(f"{TABLE}: lingering", sorted(self.server.prepared()))
        verdict.add("tables: lingering", self.tables.marks() if self.tables else [])
        for anomaly, what in (self.tables.wrong() if self.tables else {}).items():
            verdict.add(anomaly, what)

    def _in_files(self) -> list[Row]:
        return [(row["key"], row["value"]) for row in oracle.in_files(self.folder)]

    def _in_table(self) -> list[Row]:
        return [(key, value) for key, value in self.server.sql(f"SELECT key, value FROM {TABLE}")]
