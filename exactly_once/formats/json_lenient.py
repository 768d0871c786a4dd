"""JSON for rows that their schema refuses, on their way to the dead letter topic."""

from __future__ import annotations

from exactly_once.formats import spark_type as spark
from exactly_once.formats.json_schema import simple
from exactly_once.formats.spark_type import Node, SparkType


def lenient(type: SparkType, path: str) -> Node:
    """Return a plan that takes each row of this type.

    Nulls are allowed everywhere, a number that is none, such as NaN, is a text, bytes that are no UTF-8 are replaced,
    and keys of maps are texts.
    """
    kind = spark.kind(type, path)
    if isinstance(type, str) or kind == "decimal":
        return simple(type, kind) | {"lenient": True}
    if kind == "array":
        return {"write": "list", "items": lenient(type["elementType"], f"{path}.element"), "null": True}
    if kind == "map":
        key = spark.kind(type["keyType"], f"{path}.key")
        values = lenient(type["valueType"], f"{path}.value")
        return {"write": "entries", "key": key, "values": values, "null": True, "lenient": True}
    fields: list[Node] = [
        {"name": f.name, "at": f.at, "required": False, "node": lenient(f.type, f"{path}.{f.name}")}
        for f in spark.fields(type, path)
    ]
    return {"write": "object", "width": len(fields), "fields": fields}
