"""What a plan means: the encoder that the executor's Java must agree with, byte for byte (save for the digits of a
float in JSON).

A row has Spark's internal values: a struct is a tuple by ordinal, an array a list, a map a dict, a date its days since
1970, a timestamp its microseconds since then (of either kind), a decimal a Decimal with Spark's scale, a string a str.
``Refused`` is a value that its schema cannot hold; the path leads to it.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

Node = dict[str, Any]


class Refused(Exception):
    """A row that must fail its task: there is nothing to write that a reader would read as this value."""


def encode(format: str, node: Node, value: Any, path: str = "value") -> bytes:
    """Encode one value that is not null."""
    if format == "AVRO":
        return avro(node, value, path)
    if format == "PROTOBUF":
        return message(node, value, path)
    return json_text(node, value, path).encode()


def present(value: Any, path: str) -> Any:
    if value is None:
        raise Refused(f"{path} is null")
    return value


def at(row: Any, node: Node, field: Node) -> Any:
    assert len(row) == node["width"]  # Java asks InternalRow for a struct of this width
    return row[field["at"]]


def varint(number: int) -> bytes:
    """Seven bits to a byte, the low ones first; a negative number as its 64 bits."""
    left, out = number & 0xFFFF_FFFF_FFFF_FFFF, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def zigzag(number: int) -> bytes:
    return varint((number << 1) ^ (number >> 63))


def raw(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def counted(value: str | bytes) -> bytes:
    return zigzag(len(raw(value))) + raw(value)


# -- Avro -------------------------------------------------------------------------------------------------------------


def avro(node: Node, value: Any, path: str) -> bytes:
    write = node["write"]
    if write == "union":
        if value is None and node["null"] is not None:
            return zigzag(node["null"])
        return zigzag(node["branch"]) + avro(node["node"], present(value, path), path)
    present(value, path)
    if write == "record":
        return b"".join(
            bytes.fromhex(f["default"])
            if "default" in f
            else avro(f["node"], at(value, node, f), f"{path}.{f['name']}")
            for f in node["fields"]
        )
    if write == "array":
        return block([avro(node["items"], v, f"{path}.element") for v in value])
    if write == "map":
        return block([counted(k) + avro(node["values"], v, f"{path}.value") for k, v in value.items()])
    if write == "boolean":
        return b"\1" if value else b"\0"
    if write == "int":
        return zigzag(value)
    if write == "long":
        return zigzag(value // node["per"])  # rounds down, also before 1970
    if write == "float":
        return struct.pack("<f", value)
    if write == "double":
        return struct.pack("<d", value)
    if write == "bytes":
        return counted(value)
    if write == "enum":
        if value not in node["symbols"]:
            raise Refused(f"{path} is {value!r}, which is no symbol")
        return zigzag(node["symbols"].index(value))
    if write == "fixed":
        if len(value) != node["size"]:
            raise Refused(f"{path} has {len(value)} bytes instead of {node['size']}")
        return bytes(value)
    assert write == "decimal"
    unscaled = int(Fraction(value) * 10 ** node["scale"])
    size = node["size"] or (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    number = unscaled.to_bytes(size, "big", signed=True)
    return number if node["size"] else counted(number)


def block(items: list[bytes]) -> bytes:
    return (zigzag(len(items)) + b"".join(items) if items else b"") + b"\0"


# -- Protobuf ---------------------------------------------------------------------------------------------------------

#: The low bits of a tag. A scalar that is not here has a length before it.
WIRE = {"varint": 0, "zigzag": 0, "enum": 0, "fixed64": 1, "double": 1, "fixed32": 5, "float": 5}


def message(node: Node, row: Any, path: str) -> bytes:
    out = b""
    for f in node["fields"]:
        value, inner, number = at(row, node, f), f"{path}.{f['name']}", f["number"]
        if value is None:
            if f["required"]:
                raise Refused(f"{inner} is null")
        elif "key" in f:
            for k, v in value.items():
                entry = tagged(1, f["key"], k, f"{inner}.key") + tagged(2, f["value"], v, f"{inner}.value")
                out += varint(number << 3 | 2) + varint(len(entry)) + entry
        elif "items" not in f:
            out += tagged(number, f["node"], value, inner)
        elif f["packed"] and value:
            items = b"".join(scalar(f["items"], v, f"{inner}.element") for v in value)
            out += varint(number << 3 | 2) + varint(len(items)) + items
        else:
            out += b"".join(tagged(number, f["items"], v, f"{inner}.element") for v in value)
    return out


def tagged(number: int, node: Node, value: Any, path: str) -> bytes:
    wire, content = WIRE.get(node["write"], 2), scalar(node, value, path)
    return varint(number << 3 | wire) + (varint(len(content)) if wire == 2 else b"") + content


def scalar(node: Node, value: Any, path: str) -> bytes:
    write, value = node["write"], present(value, path)
    if "min" in node and not node["min"] <= value <= node.get("max", value):
        raise Refused(f"{path} is {value}, which is out of range")
    if write == "message":
        return message(node, value, path)
    if write == "varint":
        return varint(int(value))
    if write == "zigzag":
        return zigzag(value)
    if write in ("fixed32", "fixed64"):
        size = 4 if write == "fixed32" else 8
        return int(value & (1 << 8 * size) - 1).to_bytes(size, "little")
    if write in ("float", "double"):
        return struct.pack("<f" if write == "float" else "<d", value)
    if write == "bytes":
        return raw(value)
    if write == "enum":
        if value not in node["symbols"]:
            raise Refused(f"{path} is {value!r}, which is no symbol")
        return varint(node["symbols"][value])
    assert write == "timestamp"  # nanoseconds count forward, also before 1970
    seconds, micros = divmod(value, 1_000_000)
    return b"\x08" + varint(seconds) + b"\x10" + varint(micros * 1000)


# -- JSON -------------------------------------------------------------------------------------------------------------


def json_text(node: Node, value: Any, path: str) -> str:
    """JSON without blanks, of which only strings are escaped."""
    write = node["write"]
    present(value, path)
    if write == "object":
        members = []
        for f in node["fields"]:
            inner = at(value, node, f)
            if inner is not None or f["required"]:
                text = or_null(f["null"], f["node"], inner, f"{path}.{f['name']}")
                members.append(f"{json.dumps(f['name'], ensure_ascii=False)}:{text}")
        return "{" + ",".join(members) + "}"
    if write == "list":
        return "[" + ",".join(or_null(node["null"], node["items"], v, f"{path}.element") for v in value) + "]"
    if write == "entries":
        texts = {k: or_null(node["null"], node["values"], v, f"{path}.value") for k, v in value.items()}
        return "{" + ",".join(f"{json.dumps(k, ensure_ascii=False)}:{text}" for k, text in texts.items()) + "}"
    if write == "boolean":
        return "true" if value else "false"
    if write == "text":
        return json.dumps(text_of(node["read"], value), ensure_ascii=False)
    assert write == "number"
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused(f"{path} is {value}, which JSON has no number for")
    return format(value, "f") if isinstance(value, Decimal) else repr(value)  # a decimal never with an exponent


def or_null(allowed: bool, node: Node, value: Any, path: str) -> str:
    return "null" if value is None and allowed else json_text(node, value, path)


def text_of(read: str, value: Any) -> str:
    if read == "binary":
        return base64.b64encode(value).decode()
    if read == "date":
        return (dt.date(1970, 1, 1) + dt.timedelta(days=value)).isoformat()
    if read.startswith("timestamp"):  # seconds always, and as many digits behind them as it has: none, 3 or 6
        digits = "microseconds" if value % 1000 else "milliseconds" if value % 1_000_000 else "seconds"
        found = (dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value)).isoformat(timespec=digits)
        return f"{found}Z" if read == "timestamp" else found
    return str(value)
