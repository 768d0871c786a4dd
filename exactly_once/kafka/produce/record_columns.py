"""Records as columns of Arrow, and what their bytes in a batch are made of: a column or a piece for each field."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from exactly_once.kafka.produce.records import Records, header_counts
from exactly_once.kafka.produce.varints import (
    Column,
    Numbers,
    Piece,
    binary,
    interleaved,
    nulls_of,
    offsets_of,
    sums,
    varints,
)

_NO_HEADERS = binary(np.array([0, 1]), pa.py_buffer(b"\x00"))


@dataclass(frozen=True, slots=True)
class Fields:
    """Rows in the order in which they are sent: what stands in each record behind its offset.

    Attributes
    ----------
    parts : tuple of Piece and Column
        From the key's length to the last header.
    sizes : int64 array
        The bytes of all parts in each row.
    timestamps_ms : int64 array or None
    """

    parts: tuple[Piece | Column, ...]
    sizes: Numbers
    timestamps_ms: Numbers | None

    @classmethod
    def of(cls, records: Records, rows: Numbers | None = None) -> Fields:
        """Look at ``rows`` of the records, in this order. Default: all, as they are."""
        order = np.arange(len(records)) if rows is None else rows
        sizes = np.zeros(len(order), np.int64)
        parts = _cells(records.keys, order, sizes) + _cells(records.values, order, sizes)
        parts += _headers(records.headers, order, sizes)
        times = records.timestamps_ms
        return cls(tuple(parts), sizes, times[order].astype(np.int64, copy=False) if times is not None else None)


def _cells(column: pa.Array | None, order: Numbers, sizes: Numbers) -> list[Piece | Column]:
    """The length of each key or value, and its bytes; adds their sizes."""
    if column is None:
        return [*_counted(np.full(len(order), -1), sizes)]
    lengths = _lengths(column)[order]
    parts = _counted(lengths, sizes)
    sizes += np.maximum(lengths, 0) if column.null_count else lengths
    return [*parts, Column(column, order)]


def _headers(headers: pa.Array | None, order: Numbers, sizes: Numbers) -> list[Piece | Column]:
    """How many headers each row has, and all their bytes; adds their sizes."""
    if headers is None:
        sizes += 1
        return [Column(_NO_HEADERS, np.zeros(len(order), np.int64))]
    counts = header_counts(headers).astype(np.int64)
    of_rows = _joined(headers.flatten(), counts)
    parts = _counted(counts[order], sizes)
    sizes += _lengths(of_rows)[order]
    return [*parts, Column(of_rows, order)]


def _joined(elements: pa.StructArray, counts: Numbers) -> pa.Array:
    """The bytes of the headers of each row; each of ``counts`` elements belong to one row."""
    keys, values = (column.cast(kind) for column, kind in zip(elements.flatten(), _kinds(elements.type), strict=True))
    order, sizes = np.arange(len(elements)), np.zeros(len(elements), np.int64)
    parts = _cells(keys, order, sizes) + _cells(values, order, sizes)
    ends = sums(sizes)
    return binary(ends[sums(counts)], interleaved(parts, int(ends[-1])))


def _kinds(header: pa.StructType) -> list[pa.DataType]:
    """Key and value as bytes: with offsets of 64 bits, if theirs are."""
    large = [pa.types.is_large_string(f.type) or pa.types.is_large_binary(f.type) for f in header]
    return [pa.large_binary() if is_large else pa.binary() for is_large in large]


def _counted(numbers: Numbers, sizes: Numbers) -> list[Piece]:
    """The numbers as varints; adds their sizes."""
    pieces = varints(numbers)
    for piece in pieces:
        sizes += piece.sizes
    return pieces


def _lengths(column: pa.Array) -> Numbers:
    """The length of each, -1 for null."""
    lengths: Numbers = np.diff(offsets_of(column)).astype(np.int64)
    if column.null_count:
        lengths[nulls_of(column)] = -1
    return lengths
