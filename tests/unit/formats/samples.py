"""Spark types as JSON, and a row with each of them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

Type = Any


def struct(**fields: Type) -> dict[str, Any]:
    """A struct whose fields are never null."""
    made = [{"name": n, "type": t, "nullable": False, "metadata": {}} for n, t in fields.items()]
    return {"type": "struct", "fields": made}


def array(element: Type, nullable: bool = False) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": nullable}


def map_of(key: Type, value: Type, nullable: bool = False) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nullable}


def optional(type: Type, *names: str) -> Type:
    """The struct, with these fields nullable."""
    for field in type["fields"]:
        field["nullable"] = field["nullable"] or field["name"] in names
    return type


#: What all three formats can derive.
COMMON = optional(
    struct(
        **{t: t for t in ("boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary")},
        timestamp="timestamp",
        text="char(3)",
        none="long",
        inner=struct(x="long", deep=struct(y="string")),
        list=array(optional(struct(x="long"), "x")),
        map=map_of("string", "long"),
    ),
    "none",
    "inner",
)

COMMON_ROW = (
    *(True, -128, 300, -(2**31), -(2**63), 1.5, -0.1, "zwölf", b"\0\xff"),
    *(-1, "abc", None, (7, ("a",)), [(1,), (None,)], {"a": 1, "b": -1}),
)

#: What Avro and JSON have besides.
EVERY = struct(date="date", timestamp_ntz="timestamp_ntz", decimal="decimal(38,8)", lists=array(array("integer")))
EVERY["fields"] = [*COMMON["fields"], *EVERY["fields"]]

EVERY_ROW = (
    *COMMON_ROW,
    *(-1, 1769860800000001, Decimal("-123456789012345678901234567890.12345678"), [[1], []]),
)
