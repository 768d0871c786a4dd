"""Rows for any schema, with values that outputs get wrong, and rows as text for comparison."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

#: Values that outputs get wrong: signs, extremes, quotes, line ends, empty values and null.
_TEXTS = ("plain", "", "ü→😀 ", 'it\'s "quoted", \\N', "line\nfeed\ttab\r\n", None, "NULL", " ")
_RATIOS = (0.1, -1.5e300, 5e-324, None, 2.0, -0.0)
_FLAGS = (True, False, None)
_RAWS = (b"plain", b"", b"\x00\xff\\x\n", None)
_INSTANTS = (
    dt.datetime(2026, 7, 8, 9, 10, 11, 123456, dt.UTC),
    dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC),
    None,
    dt.datetime(2000, 2, 29, tzinfo=dt.UTC),
)


def value(kind: pa.DataType, n: int, unique: bool) -> Any:
    """Return a value of the type that depends on ``n`` alone."""
    if pa.types.is_integer(kind):
        edge = 2 ** (kind.bit_width - 1)
        return n if unique else (0, -1, None, edge - 1, -edge)[n % 5]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return f"row {n}" if unique else _TEXTS[n % len(_TEXTS)]
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return f"row {n}".encode() if unique else _RAWS[n % len(_RAWS)]
    if pa.types.is_timestamp(kind):
        at = _INSTANTS[n % len(_INSTANTS)]
        return at if at is None or kind.tz else at.replace(tzinfo=None)
    if pa.types.is_date(kind):
        return (dt.date(2026, 7, 8), dt.date(1969, 12, 31), None)[n % 3]
    if pa.types.is_floating(kind):
        return _RATIOS[n % len(_RATIOS)]
    assert pa.types.is_boolean(kind), f"override rows(): the suite has no values of type {kind}"
    return _FLAGS[n % len(_FLAGS)]


def key(row: dict[str, Any]) -> str:
    """Return a row as text; equal values give equal text."""
    return repr(sorted((column, repr(_plain(value))) for column, value in row.items()))


def _plain(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).isoformat()
    return bytes(value) if isinstance(value, bytearray | memoryview) else value
