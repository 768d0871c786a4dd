"""A table of Delta Lake as an output. Needs the extra ``delta`` (deltalake) on the driver and on the executors.

The proof of a batch is what Delta has for this purpose, the *transaction identifier*: an action ``txn`` with an
application id and a version, in the commit that adds the files. Checkpoints of the log carry it on, so compaction,
VACUUM and the clean-up of old logs keep it (:mod:`exactly_once.outputs.tables`).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from exactly_once.errors import ExtraMissing, StoreRefused
from exactly_once.outputs.files.stores import ArrowStore, LocalStore, Store, place_of
from exactly_once.outputs.tables import Conflict, OpenTable, TableParticipant, connected
from exactly_once.outputs.tables.files import TableLocation, check_columns, each, footer_of

try:
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError, TableNotFoundError
    from deltalake.fs import DeltaStorageHandler
    from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction
except ImportError as e:
    raise ExtraMissing.of_output("Delta", "deltalake", "delta", e) from None

#: Table features that ask nothing of a plain append. A check, a generated column or another name of a column does ask
#: something, and then stands in the properties below.
_FEATURES = frozenset(
    (
        *("appendOnly", "changeDataFeed", "checkConstraints", "clustering", "domainMetadata", "generatedColumns"),
        *("invariants", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"),
    )
)

#: Characters of a location that deltalake (1.6) cannot read: it decodes an escape twice, and panics at a bracket.
_UNREAD = re.compile(r"[\[\]]|%[0-9A-Fa-f]{2}")

#: Prefixes of properties, of the table and of its columns, for which a writer must compute or check something.
_PROPERTIES = ("delta.constraints.", "delta.setTransactionRetentionDuration")
_COLUMNS = ("delta.invariants", "delta.generationExpression", "delta.identity.")


class DeltaParticipant(TableParticipant):
    """Rows into a table of Delta Lake: one commit of the table for each batch.

    Parameters
    ----------
    name : str
        The participant's name in decisions: letters, digits, ``_``, ``-``.
    url : str
        The table's location: a path that driver and executors share, or one such as ``s3://bucket/orders``. As Spark
        reads it: nothing in it is escaped.
    storage_options : mapping, optional
        As deltalake takes them, such as ``AWS_ENDPOINT_URL``. Preferably without secrets: deltalake reads them from the
        environment of each process.
    columns : sequence of str, optional
        The columns of the rows to write. Default: all, by name.
    """

    def __init__(
        self,
        name: str,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        columns: Sequence[str] | None = None,
    ):
        super().__init__(name, columns)
        place = place_of(url)
        if unread := _UNREAD.search(place.path):
            raise StoreRefused(
                f"{name}: deltalake cannot read the table's location {url}, for its {unread[0]!r}",
                "Move the table to a location without it; a blank, # or ? in the location stands for itself",
            )
        self.url = LocalStore(place.path).root if place.is_local else str(place)
        self.options = connected(storage_options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, url={self.url!r})"

    def _open(self) -> OpenTable:
        try:
            opened = DeltaTable(_escaped(self.url), storage_options=self.options)
        except TableNotFoundError as e:
            raise StoreRefused(
                f"{self.name}: there is no Delta table in {self.url} ({e})",
                f"Create the table, without partitions: DeltaTable.create({self.url!r}, schema)",
            ) from e
        return _Delta(opened, self._store())

    def _store(self) -> Store:
        if place_of(self.url).is_local:
            return LocalStore(self.url)
        return ArrowStore(self.url, partial(_file_system, self.url, self.options))


def _file_system(url: str, options: Mapping[str, str]) -> fs.FileSystem:
    return fs.PyFileSystem(_Handler(_escaped(url), dict(options)))


def _escaped(url: str) -> str:
    """Return a location as deltalake reads it: a local one as a path, any other as a URI."""
    place = place_of(url)
    return url if place.is_local else f"{place.scheme}://{place.authority}{quote(place.path)}"


class _Handler(DeltaStorageHandler):
    """The table's own store; Arrow hands its files buffers, of which they take none."""

    def open_output_stream(self, path: str, metadata: dict[str, str] | None = None) -> pa.PythonFile:
        return pa.PythonFile(_Output(self._handler.open_output_stream(path, metadata)))


class _Output:
    def __init__(self, file: Any):
        self._file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> Any:
        return self._file.write(bytes(data))


class _Delta(OpenTable):
    def __init__(self, opened: DeltaTable, store: Store):
        self.opened, self.shown = opened, f"the Delta table {store.root}"
        self.place = TableLocation(str(opened.metadata().id), pa.schema(opened.schema().to_arrow()), store)

    def refusal(self) -> tuple[str, str] | None:
        protocol, metadata = self.opened.protocol(), self.opened.metadata()
        needed = {f for f in protocol.writer_features or () if f not in _FEATURES}
        needed |= {p for p in metadata.configuration if p.startswith(_PROPERTIES)}
        if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
            needed.add("delta.columnMapping.mode")
        fields = json.loads(self.opened.schema().to_json())["fields"]
        needed |= {key for field in fields for key in field["metadata"] if key.startswith(_COLUMNS)}
        if metadata.partition_columns:
            return f"has partitions ({', '.join(metadata.partition_columns)})", "Write to a table without partitions"
        if needed:
            return f"has {sorted(needed)[0]}, which this sink does not write", "Remove it, or write to another table"
        return None

    def files(self) -> Mapping[str, str]:
        return dict.fromkeys(pa.table(self.opened.get_add_actions()).column("path").to_pylist(), "")

    def rows(self) -> int | None:
        counts = pa.table(self.opened.get_add_actions()).column("num_records").to_pylist()
        return None if None in counts else sum(counts)

    def proof(self, key: str) -> int:
        version = self.opened.transaction_version(key)
        return -1 if version is None else version

    def append(self, sizes: Mapping[str, int], proofs: Mapping[str, int]) -> None:
        now = time.time_ns() // 1_000_000
        stats = each(self._stats, list(sizes))
        adds: list[AddAction | RemoveAction] = [
            AddAction(p, size, {}, now, True, s) for (p, size), s in zip(sizes.items(), stats, strict=True)
        ]
        once = CommitProperties(
            app_transactions=[Transaction(key, number) for key, number in proofs.items()],
            max_commit_retries=0,  # deltalake would go on above another commit, which may hold the proof
        )
        try:
            self.opened.create_write_transaction(adds, "append", self.opened.schema(), commit_properties=once)
        except CommitFailedError as e:
            raise Conflict(str(e)) from e

    def _stats(self, path: str) -> str:
        """Return the statistics by which readers skip files, from the file's footer."""
        footer = footer_of(self.place.store, path)
        check_columns(self.place.schema, footer.schema.to_arrow_schema(), None, self.shown)
        return json.dumps(statistics(footer))

    def written(self) -> list[str]:
        return [f"_delta_log/{self.opened.version():020}.json"]


def statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """Return Delta's statistics of a file: rows, nulls, and the bounds of integers, dates and times. A column whose
    chunks do not all have them is left out.
    """
    least, greatest, nulls = dict[str, Any](), dict[str, Any](), dict[str, int]()
    for i in range(footer.num_columns):
        chunks = [footer.row_group(g).column(i) for g in range(footer.num_row_groups)]
        name, stats = chunks[0].path_in_schema, [c.statistics for c in chunks]
        if "." in name or not all(s is not None and s.has_null_count for s in stats):
            continue
        nulls[name] = sum(s.null_count for s in stats)
        bounds = [s for s, c in zip(stats, chunks, strict=True) if s.null_count < c.num_values]
        if bounds and all(
            s.has_min_max and isinstance(s.min, int | date) and not isinstance(s.min, bool) for s in bounds
        ):
            least[name] = _bound(min(s.min for s in bounds))
            greatest[name] = _bound(max(s.max for s in bounds), timedelta(microseconds=999))
    return {"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _bound(value: int | date, up: timedelta = timedelta(0)) -> int | str:
    """Return the value as Delta writes it: times in UTC and whole milliseconds, the greatest rounded up."""
    if not isinstance(value, datetime):
        return value.isoformat() if isinstance(value, date) else value
    zone = "" if value.tzinfo is None else "Z"
    utc = value if value.tzinfo is None else value.astimezone(UTC)
    return (utc + up).replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
