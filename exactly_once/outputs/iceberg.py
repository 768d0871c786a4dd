"""A table of Apache Iceberg as an output. Needs the extra ``iceberg`` (pyiceberg) on the driver and on the executors.

The proof of a batch is a **property of the table**, set in the commit that adds the files. The summary of a snapshot
would go with the snapshot when it expires, and the snapshots of other writers do not carry it on. A property stays
until somebody removes it, whoever commits to the table. The summary names the batch too, for people
(:mod:`exactly_once.outputs.tables`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pyarrow import fs

from exactly_once.errors import ExtraMissing, InvalidSchema, StoreRefused
from exactly_once.outputs.files.stores import ArrowStore, LocalStore
from exactly_once.outputs.tables import Conflict, OpenTable, TableParticipant, connected
from exactly_once.outputs.tables.files import TableLocation

try:
    from pyiceberg.catalog import Catalog, load_catalog
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
    from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
    from pyiceberg.table import Table as Opened
except ImportError as e:
    raise ExtraMissing.of_output("Iceberg", "pyiceberg", "iceberg", e) from None

#: The prefix of a proof's key in the table's properties.
PROOF = "exactly-once."

#: The table property that bounds pyiceberg's own retries.
_RETRIES = "commit.retry.num-retries"


class IcebergParticipant(TableParticipant):
    """Rows into a table of Iceberg: one snapshot of the table for each batch.

    Parameters
    ----------
    name : str
        The participant's name in decisions: letters, digits, ``_``, ``-``.
    table : str
        The table's name in its catalogue, such as ``shop.orders``.
    catalog : str
        The catalogue's name in pyiceberg's configuration (``~/.pyiceberg.yaml``, ``PYICEBERG_CATALOG__...``).
    properties : mapping, optional
        The catalogue's settings, as ``pyiceberg.catalog.load_catalog`` takes them, beside that configuration.
        Preferably without secrets.
    columns : sequence of str, optional
        The columns of the rows to write. Default: all, by name.
    """

    def __init__(
        self,
        name: str,
        table: str,
        catalog: str = "default",
        properties: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
    ):
        super().__init__(name, columns)
        self.table, self.catalog, self.properties = table, catalog, connected(properties)
        self._loaded: Catalog | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, table={self.table!r}, catalog={self.catalog!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": None}

    def _open(self) -> OpenTable:
        self._loaded = self._loaded or load_catalog(self.catalog, **self.properties)
        try:
            return _Iceberg(self._loaded.load_table(self.table))
        except NoSuchTableError as e:
            raise StoreRefused(
                f"{self.name}: the catalogue {self.catalog} has no table {self.table}",
                f"Create the table, without partitions: load_catalog({self.catalog!r}).create_table({self.table!r}, "
                "schema)",
            ) from e

    def close(self) -> None:
        if self._loaded is not None:
            self._loaded.close()
        self._loaded = None


def _file_system(properties: Mapping[str, str], scheme: str, netloc: str, path: str) -> fs.FileSystem:
    return fs.SubTreeFileSystem(path, PyArrowFileIO(dict(properties)).fs_by_scheme(scheme, netloc))


class _Iceberg(OpenTable):
    def __init__(self, opened: Opened):
        self.opened, self.shown = opened, f"the Iceberg table {'.'.join(opened.name())}"
        scheme, netloc, path = PyArrowFileIO.parse_location(opened.location())
        connect = partial(_file_system, dict(opened.io.properties), scheme, netloc, path)
        store = LocalStore(path) if scheme == "file" else ArrowStore(opened.location(), connect)
        self.place = TableLocation(str(opened.metadata.table_uuid), schema_to_pyarrow(opened.schema()), store)

    def refusal(self) -> tuple[str, str] | None:
        location = self.opened.location()
        if {"#", "?"} & set(location):  # pyiceberg ends its paths there, and would write to another folder
            return f"has the location {location}, which pyiceberg cannot read", "Move the table, without # and ? in it"
        if not self.opened.spec().is_unpartitioned():
            return f"has partitions ({self.opened.spec()})", "Write to a table without partitions"
        if self.opened.metadata.format_version > 2:
            return f"has format version {self.opened.metadata.format_version}", "Write to a table of version 1 or 2"
        return None

    def files(self) -> Mapping[str, str]:
        root = f"{self.opened.location()}/"
        deleted = "somebody has deleted rows of it since, without a new file"
        return {
            task.file.file_path.removeprefix(root): deleted if task.delete_files else ""
            for task in self.opened.scan().plan_files()
        }

    def rows(self) -> int | None:
        count: int = self.opened.scan().count()
        return count

    def proof(self, key: str) -> int:
        return int(self.opened.metadata.properties.get(PROOF + key, -1))

    def append(self, sizes: Mapping[str, int], proofs: Mapping[str, int]) -> None:
        # In this copy alone: pyiceberg would commit again above another's snapshot, which may hold the proof.
        once = {**self.opened.metadata.properties, _RETRIES: "0"}
        self.opened.metadata = self.opened.metadata.model_copy(update={"properties": once})
        kept = {PROOF + key: str(number) for key, number in proofs.items()}
        files = [f"{self.opened.location()}/{path}" for path in sizes]
        try:
            with self.opened.transaction() as transaction:
                transaction.add_files(files, snapshot_properties=kept, check_duplicate_files=False)
                transaction.set_properties(kept)
        except CommitFailedException as e:
            raise Conflict(str(e)) from e
        except ValueError as e:  # raised for each file whose columns are not the table's
            raise InvalidSchema(
                f"{self.shown} rejects the files of a decided batch ({e})",
                f"Restore the previous names and types of the columns of {self.shown}, and start the stream again",
            ) from e

    def written(self) -> list[str]:
        snapshot = self.opened.current_snapshot()
        if snapshot is None:
            return []
        manifests = snapshot.manifests(self.opened.io)
        own = [m.manifest_path for m in manifests if m.added_snapshot_id == snapshot.snapshot_id]
        files = [self.opened.metadata_location, snapshot.manifest_list, *own]
        return [PyArrowFileIO.parse_location(path)[2] for path in files]
