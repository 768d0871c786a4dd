"""The files of a part in a table: where they lie, what a task writes, and how another process finds them.

Below the table's location, on a file system or in an object store::

    _exactly_once/eo=<sink>=<incarnation>=<claim>=<batch>=<part>=<attempt>=<participant>.parquet    the mark: empty
    data/eo=<sink>=...                                                                 the rows, under the same name

The mark is made before the file of rows, and removed after that file is in the table or deleted. So a sweep lists the
few marks, and never the table's own files, of which there may be a million. Readers of Delta and Iceberg see only files
that the table names; its maintenance skips names that begin with ``_``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from exactly_once.errors import InvalidRecord, InvalidSchema, PrepareFailed
from exactly_once.outputs.files.stores import Store
from exactly_once.outputs.files.writer import FileWriter
from exactly_once.participant import PartName
from exactly_once.protocol.records import PreparedPart

MARKS, DATA = "_exactly_once", "data"

#: Requests at a time: an object store answers one after some 30 ms, and a batch has hundreds of parts.
_AT_ONCE = 16

_SUFFIX = ".parquet"

T = TypeVar("T")
R = TypeVar("R")


def file_of(name: str) -> str:
    """Return the name of a part's file and of its mark: no store, URL or engine writes ``=`` in another way, as it may
    a colon.
    """
    return name.replace(":", "=") + _SUFFIX


def part_of(file: str) -> PartName | None:
    """Return the part to which a file or a mark belongs; None for other files."""
    return PartName.parse(file.removesuffix(_SUFFIX).replace("=", ":")) if file.endswith(_SUFFIX) else None


def data_of(name: str) -> str:
    return f"{DATA}/{file_of(name)}"


def mark_of(name: str) -> str:
    return f"{MARKS}/{file_of(name)}"


def each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Do the work for every item, several at a time; return the results in the order of the items."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(work, items))


@dataclass(frozen=True)
class TableLocation:
    """All that a task needs to know of a table, without its catalogue. A table that was dropped and created again has
    another ``identity``.
    """

    identity: str
    schema: pa.Schema
    store: Store


class TableWriter(FileWriter):
    """Writes one part as Parquet, with the types of the table."""

    def __init__(self, place: TableLocation, columns: Sequence[str] | None, begun: PreparedPart):
        super().__init__(place.store, data_of(begun.name), "parquet", None, begun)
        self.table, self.chosen, self.mark = place.schema, columns, mark_of(begun.name)

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        rows = self._typed(rows if self.chosen is None else rows.select(self.chosen))
        if self.file is None:
            with self._preparing():
                for folder in (MARKS, DATA):
                    self.store.make(folder)
                self.store.seal(self.store.create(self.mark))
                self.store.sync(MARKS)
        super().write(rows)

    def abort(self) -> None:
        begun = self.file is not None
        super().abort()
        if begun:
            with suppress(Exception):
                if self.store.size(self.path) is None:
                    self.store.remove(self.mark)

    def _typed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        fields = [self.table.field(name) for name in rows.schema.names]
        check_nulls(fields, lambda name: bool(rows.column(name).null_count))
        with self._preparing():
            return rows.cast(pa.schema(fields))


def check_columns(table: pa.Schema, rows: pa.Schema, columns: Sequence[str] | None, shown: str) -> None:
    """Raise InvalidSchema for rows that the table cannot hold as they are. Columns that the rows lack are null in the
    table.
    """
    wanted = rows.names if columns is None else list(columns)
    kinds = {field.name: kind_of(field.type) for field in table}
    if missing := [c for c in wanted if c not in rows.names]:
        wrong = f"the rows have no column {missing[0]}"
    elif unknown := [c for c in wanted if c not in kinds]:
        wrong = f"the table has no column {unknown[0]}"
    elif needed := [field.name for field in table if not field.nullable and field.name not in wanted]:
        wrong = f"the table requires the column {needed[0]}, which the rows do not have"
    elif other := [c for c in wanted if kinds[c] != kind_of(rows.field(c).type)]:
        wrong = (
            f"the column {other[0]} is {kind_of(rows.field(other[0]).type)} in the rows, {kinds[other[0]]} in the table"
        )
    else:
        return
    raise InvalidSchema(
        f"{shown}: {wrong}",
        f"Name and cast the columns as the table does: {', '.join(f'{n} {k}' for n, k in kinds.items())}",
    )


def check_nulls(fields: Iterable[pa.Field], has_null: Callable[[str], bool]) -> None:
    """Raise InvalidRecord for rows of which one ``has_null`` in a column that the table requires."""
    for field in fields:
        if not field.nullable and has_null(field.name):
            raise InvalidRecord(
                f"a row has no {field.name}, which the table requires",
                "Filter such rows out in the query, or allow null in the table",
            )


def footer_of(store: Store, path: str) -> pq.FileMetaData:
    with closing(store.open(path)) as file:
        return pq.read_metadata(file)


def check_file(place: TableLocation, path: str, shown: str) -> None:
    """Raise InvalidSchema, InvalidRecord or PrepareFailed for a file that the table, whose columns have changed since
    the file was written, cannot hold.
    """
    footer = footer_of(place.store, path)
    written = footer.schema.to_arrow_schema()
    check_columns(place.schema, written, None, shown)
    required = [field for field in place.schema if not field.nullable and written.field(field.name).nullable]
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(footer.num_columns)]
    nulls = {c.path_in_schema for c in chunks if c.statistics is None or c.statistics.null_count}
    check_nulls(required, nulls.__contains__)
    if required:  # pyiceberg compares the types, whatever is in the file
        raise PrepareFailed(
            f"{shown} requires the column {required[0].name}, as it did not when a task began to write",
            "Start the stream again: its tasks then write what the table requires",
        )


def kind_of(type: pa.DataType) -> str:
    """Return the name of an Arrow type without what differs between libraries alone: sizes of offsets, names of lists'
    items, time zones.
    """
    if pa.types.is_large_string(type) or pa.types.is_large_binary(type):
        return str(type).removeprefix("large_")
    if pa.types.is_timestamp(type):
        return f"timestamp[{type.unit}]" if type.tz is None else f"timestamp[{type.unit}, UTC]"
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return f"list<{kind_of(type.value_type)}>"
    if pa.types.is_map(type):
        return f"map<{kind_of(type.key_type)}, {kind_of(type.item_type)}>"
    if pa.types.is_struct(type):
        return f"struct<{', '.join(f'{f.name}: {kind_of(f.type)}' for f in type)}>"
    return str(type)


def of_sink(files: Iterable[str], sink_id: str, participant: str) -> dict[str, PartName]:
    """Return the files, by name, that parts of this sink and participant have written."""
    parts = {file: part_of(file) for file in files}
    return {f: p for f, p in parts.items() if p and p.is_of(sink_id, participant)}
