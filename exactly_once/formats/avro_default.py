"""The default of an Avro field, as the bytes that stand in a row for a column that is not there."""

from __future__ import annotations

import io
import math
from typing import Any

from exactly_once.errors import InvalidSchema


def encoded(default: Any, schema: Any, named: dict[str, Any], path: str) -> bytes:
    """Return the Avro encoding of a default, which is written in JSON: bytes as a string, a union as its first match.

    Parameters
    ----------
    schema, named : object, dict
        As fastavro parsed them.

    Raises
    ------
    InvalidSchema
        The default is none of that schema.
    """
    try:
        return _bytes(default, schema, named)
    except (TypeError, ValueError, LookupError, OverflowError, ArithmeticError):
        raise InvalidSchema(
            f"the default of {path} in the Avro schema does not fit its type: {default!r}"[:400],
            f"Correct the default in the schema, or add {path} to the struct",
        ) from None


def _bytes(default: Any, schema: Any, named: dict[str, Any]) -> bytes:
    if isinstance(schema, list):
        branch = [_matches(default, _full(b, named)) for b in schema].index(True)
        return _leaf("long", branch) + _bytes(default, schema[branch], named)
    schema = _full(schema, named)
    if not _matches(default, schema):
        raise ValueError(default)
    write = schema["type"]
    if write in ("record", "error"):
        values = [default[f["name"]] if f["name"] in default else f["default"] for f in schema["fields"]]
        return b"".join(_bytes(v, f["type"], named) for v, f in zip(values, schema["fields"], strict=True))
    if write == "array":
        return _block([_bytes(v, schema["items"], named) for v in default])
    if write == "map":
        return _block([_leaf("string", k) + _bytes(v, schema["values"], named) for k, v in default.items()])
    if write == "enum":
        return _leaf("int", schema["symbols"].index(default))
    if write == "fixed":
        raw = default.encode("latin-1")
        if len(raw) != schema["size"]:
            raise ValueError(default)
        return bytes(raw)
    return _leaf(write, default.encode("latin-1") if write == "bytes" else default)


def _full(schema: Any, named: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = named.get(schema, {"type": schema}) if isinstance(schema, str) else schema
    return found


def _block(items: list[bytes]) -> bytes:
    return (_leaf("long", len(items)) + b"".join(items) if items else b"") + b"\0"


def _leaf(write: str, value: Any) -> bytes:
    from fastavro import schemaless_writer

    out = io.BytesIO()
    schemaless_writer(out, write, value)
    return out.getvalue()


def _matches(default: Any, schema: dict[str, Any]) -> bool:
    """Return whether a JSON value can be a default of this schema, which is no union."""
    write = schema["type"]
    if write == "null":
        return default is None
    if write == "boolean":
        return isinstance(default, bool)
    if write in ("int", "long"):
        bits = 31 if write == "int" else 63
        return type(default) is int and -(2**bits) <= default < 2**bits
    if write in ("float", "double"):
        return type(default) is int or (type(default) is float and math.isfinite(default))
    if write == "enum":
        return default in schema["symbols"]
    if write == "array":
        return isinstance(default, list)
    if write in ("map", "record", "error"):
        return isinstance(default, dict)
    return isinstance(default, str)
