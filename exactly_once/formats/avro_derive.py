"""An Avro schema from a Spark type."""

from __future__ import annotations

import json
from typing import Any

from exactly_once.errors import InvalidSchema
from exactly_once.formats import spark_type as spark
from exactly_once.formats.spark_type import SparkType

_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")

_DERIVED: dict[str, Any] = {
    "byte": "int",
    "short": "int",
    "integer": "int",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}


def derive(type: SparkType, name: str) -> str:
    """Return a schema for a type; ``name`` is that of the record. What is nullable becomes a union with null.

    Raises
    ------
    InvalidSchema
        Avro has nothing for a type, or does not allow a name.
    """
    for part in name.split("."):
        spark.check_name(part, f"the schema {name}", "Avro")
    if name in _PRIMITIVE:
        raise InvalidSchema(
            f"the schema {name} has the name of a type of Avro", "Choose another name in the option *.schema.name"
        )
    return json.dumps(_derived(type, name, set(), name.rpartition(".")[2]))


def _derived(type: SparkType, name: str, taken: set[str], path: str) -> Any:
    """Return the schema of a type.

    Parameters
    ----------
    name : str
        The full name of a record in it, unless it is ``taken``.
    """
    kind = spark.kind(type, path)
    if kind == "decimal":
        precision, scale = spark.decimal(type)
        if scale < 0:
            raise InvalidSchema(
                f"{path} is of type {type}, and Avro has no negative scale",
                f"Cast {path} to decimal({precision - scale},0)",
            )
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if isinstance(type, str):
        return _DERIVED.get(kind, kind)
    if kind == "array":
        items = _derived(type["elementType"], name, taken, f"{path}.element")
        return {"type": "array", "items": _nullable(items, type["containsNull"])}
    if kind == "map":
        spark.string_keys(type, path)
        values = _derived(type["valueType"], name, taken, f"{path}.value")
        return {"type": "map", "values": _nullable(values, type["valueContainsNull"])}
    own = spark.unique(name, taken)
    made = []
    for field in spark.fields(type, path):
        inner = f"{path}.{field.name}"
        spark.check_name(field.name, inner, "Avro")
        schema = _nullable(_derived(field.type, f"{own}_{field.name}", taken, inner), field.nullable)
        made.append({"name": field.name, "type": schema} | ({"default": None} if field.nullable else {}))
    return {"type": "record", "name": own, "fields": made}


def _nullable(schema: Any, nullable: bool) -> Any:
    return ["null", schema] if nullable else schema
