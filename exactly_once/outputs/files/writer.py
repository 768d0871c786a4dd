"""Writes the file of one part, in a task."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_64

from exactly_once.digest import RowDigest
from exactly_once.errors import InvalidRecord, PrepareFailed
from exactly_once.outputs.files.stores import Store
from exactly_once.participant import PartWriter
from exactly_once.protocol.records import PreparedPart

Format = Literal["jsonl", "parquet"]


class FileWriter(PartWriter[PreparedPart]):
    """One file: created with the first row, durable when its handle is made. ``begun`` is the handle as far as it is
    known before the first row; records, digest, size in bytes and the checksum of the bytes are added.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        format: Format,
        columns: Sequence[str] | None,
        begun: PreparedPart,
    ):
        self.store, self.path, self.format, self.columns, self.begun = store, path, format, columns, begun
        self.digest, self.records = RowDigest(), 0
        self.file: _Summed | None = None
        self.parquet: pq.ParquetWriter | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows == 0:
            return
        if self.columns is not None:
            rows = rows.select(self.columns)
        with self._preparing():
            self.file = self.file or _Summed(self.store.create(self.path))
            if self.format == "jsonl":
                self.file.write(b"".join(map(_line, rows.to_pylist())))
            else:
                self.parquet = self.parquet or pq.ParquetWriter(self.file, rows.schema)
                self.parquet.write_batch(rows)
        self.digest.add_batch(rows)
        self.records += rows.num_rows

    def pre_commit(self) -> PreparedPart | None:
        if self.file is None:
            return None
        with self._preparing():
            if self.parquet is not None:
                self.parquet.close()
            self.store.seal(self.file.file)
            self.store.sync(self.path.rpartition("/")[0])
            size = self.store.size(self.path)
            if size is None:
                raise FileNotFoundError(f"{self.path} was deleted")
        data = {**self.begun.data, "bytes": size, "checksum": self.file.checksum}
        self.file = None  # the file belongs to the driver now: a late abort finds nothing
        return replace(self.begun, records=self.records, digest=self.digest.text, data=data)

    def abort(self) -> None:
        if self.parquet is not None:
            with suppress(Exception):
                self.parquet.close()
        if self.file is not None:
            with suppress(Exception):
                self.file.file.close()
            with suppress(Exception):
                self.store.remove(self.path)

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as e:
            raise PrepareFailed(
                f"{self.path} could not be written below {self.store.root} ({e})",
                "Check the directory's free space and permissions, and that the executors see the same files as the "
                "driver",
            ) from e


class _Summed(io.RawIOBase):
    """A new file, with the checksum of what is written into it."""

    def __init__(self, file: IO[bytes]):
        self.file, self._sum = file, xxh3_64()

    @property
    def checksum(self) -> str:
        return self._sum.hexdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._sum.update(data)
        return self.file.write(data)

    def tell(self) -> int:
        return self.file.tell()


def _line(row: dict[str, Any]) -> bytes:
    try:
        return _JSON.encode(row).encode() + b"\n"
    except (TypeError, ValueError) as e:
        raise InvalidRecord(
            f"a row cannot be written as a JSON object ({e})",
            "Replace NaN and infinity in the query, or write Parquet",
        ) from e


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.date | dt.time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"JSON cannot represent a {type(value).__name__}")


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_text)
