"""Rows on their way to one topic, column by column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from exactly_once.digest import RowDigest
from exactly_once.kafka.produce.varints import nulls_of, offsets_of

Ints = npt.NDArray[Any]
Headers = Sequence[tuple[str, bytes | None]] | None

#: In a column of partitions: the partitioner chooses.
CHOOSE = -1

#: In a column of timestamps: the time of sending.
NOW = 0


@dataclass(frozen=True, slots=True)
class Records:
    """The records of rows, all columns of the same length; a column that is None holds nothing for any row.

    Attributes
    ----------
    keys, values : pa.Array
        Of (large) binary. A null is a record without key, or a tombstone.
    headers : pa.Array or None
        Of list<struct<key: string, value: binary>>. Neither a header nor its key is null; a list or a value may be.
    timestamps_ms, partitions : np.ndarray or None
        Integers, without nulls: see :data:`NOW`, :data:`CHOOSE`.
    """

    keys: pa.Array | None
    values: pa.Array
    headers: pa.Array | None = None
    timestamps_ms: Ints | None = None
    partitions: Ints | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def plain(self) -> bool:
        """Whether there are only keys and values."""
        return self.headers is None and self.timestamps_ms is None and self.partitions is None

    @property
    def bytes(self) -> int:
        """The size of all keys and values."""
        return size_of(self.values) + (size_of(self.keys) if self.keys is not None else 0)

    def take(self, rows: Any) -> Records:
        """The records at the indices ``rows``."""
        return Records(
            self.keys.take(rows) if self.keys is not None else None,
            self.values.take(rows),
            self.headers.take(rows) if self.headers is not None else None,
            self.timestamps_ms[rows] if self.timestamps_ms is not None else None,
            self.partitions[rows] if self.partitions is not None else None,
        )

    def slice(self, start: int, count: int) -> Records:
        """The ``count`` records from ``start`` on; copies nothing."""
        return Records(
            self.keys.slice(start, count) if self.keys is not None else None,
            self.values.slice(start, count),
            self.headers.slice(start, count) if self.headers is not None else None,
            self.timestamps_ms[start : start + count] if self.timestamps_ms is not None else None,
            self.partitions[start : start + count] if self.partitions is not None else None,
        )


class ColumnSender(Protocol):
    """Who sends them."""

    def send_columns(self, topic: str, rows: Records) -> None:
        """Send all of ``rows`` to ``topic``, in their order within each partition.

        All rows of a part have the same columns.

        Raises
        ------
        InvalidRecord
            When a record is too large, or its topic or partition does not exist.
        PrepareFailed
            When the brokers take nothing any more.
        """


def size_of(column: pa.Array) -> int:
    """The bytes of all values of a binary column."""
    offsets = offsets_of(column)
    if not column.null_count:
        return int(offsets[-1]) - int(offsets[0])
    return int(np.diff(offsets)[~nulls_of(column)].sum(dtype=np.int64))


def join(parts: list[Records]) -> Records:
    """One after the other; all have the same columns."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return Records(
        pa.concat_arrays([p.keys for p in parts]) if first.keys is not None else None,
        pa.concat_arrays([p.values for p in parts]),
        pa.concat_arrays([p.headers for p in parts]) if first.headers is not None else None,
        np.concatenate([p.timestamps_ms for p in parts]) if first.timestamps_ms is not None else None,
        np.concatenate([p.partitions for p in parts]) if first.partitions is not None else None,
    )


def header_counts(headers: pa.Array) -> Ints:
    """How many headers each row has."""
    counts: Ints = headers.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return counts


def choices_of(rows: Records) -> Iterator[tuple[int, Headers, int]]:
    """Partition, headers and timestamp of each row, as librdkafka takes them."""
    count = len(rows)
    partitions = rows.partitions.tolist() if rows.partitions is not None else [CHOOSE] * count
    timestamps_ms = rows.timestamps_ms.tolist() if rows.timestamps_ms is not None else [NOW] * count
    headers = _header_lists(rows.headers) if rows.headers is not None else repeat(None, count)
    yield from zip(partitions, headers, timestamps_ms, strict=True)


def _header_lists(headers: pa.Array) -> Iterator[Headers]:
    """The headers of each row, None instead of no header; whole columns become Python objects, not struct by struct."""
    names, contents = (column.to_pylist() for column in headers.flatten().flatten())
    elements, start = list(zip(names, contents, strict=True)), 0
    for size in header_counts(headers).tolist():
        yield elements[start : start + size] or None
        start += size


def digest_columns(digest: RowDigest, topic: str, rows: Records) -> None:
    """Add ``rows`` to ``digest``, as :meth:`RowDigest.add` does row by row, with :func:`place_of`."""
    if rows.plain:
        digest.add_columns(rows.keys, rows.values)
        return
    digest.add_rows(topic.encode(), rows.keys, rows.values, _places_of(rows))


def _places_of(rows: Records) -> list[bytes]:
    """:func:`place_of` each row. Rows that chose nothing, most rows in most streams, cost little."""
    chose = np.zeros(len(rows), bool)
    if rows.partitions is not None:
        chose |= rows.partitions != CHOOSE
    if rows.timestamps_ms is not None:
        chose |= rows.timestamps_ms != NOW
    if rows.headers is not None:
        chose |= header_counts(rows.headers) > 0
    places = [place_of(CHOOSE, None, NOW)] * len(rows)
    if not len(indices := np.flatnonzero(chose)):
        return places
    for index, choice in zip(indices.tolist(), choices_of(rows.take(indices)), strict=True):
        places[index] = place_of(*choice)
    return places


def place_of(partition: int, headers: Headers, timestamp_ms: int) -> bytes:
    """What a row chose beside its topic, key and value."""
    return repr((partition, headers or None, timestamp_ms)).encode()
