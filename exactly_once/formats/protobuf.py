"""Protobuf: a proto3 schema from a Spark type, and the plan to write a column by a message."""

from __future__ import annotations

from typing import Any

from exactly_once.errors import InvalidSchema
from exactly_once.formats import proto_text
from exactly_once.formats import spark_type as spark
from exactly_once.formats.proto_derive import derive
from exactly_once.formats.spark_type import Node, SparkType

__all__ = ["derive", "plan", "full_name"]

_UNSIGNED = {"min": 0, "max": 2**32 - 1}
_INT32 = ("byte", "short", "integer")

#: Of each scalar type, by the name of its constant in FieldDescriptor: how it is written, from what, and the bounds.
_SCALARS: dict[str, tuple[str, tuple[str, ...], dict[str, int]]] = {
    "BOOL": ("varint", ("boolean",), {}),
    "INT32": ("varint", _INT32, {}),
    "INT64": ("varint", spark.WHOLE, {}),
    "UINT32": ("varint", spark.WHOLE, _UNSIGNED),
    "UINT64": ("varint", spark.WHOLE, {"min": 0}),
    "SINT32": ("zigzag", _INT32, {}),
    "SINT64": ("zigzag", spark.WHOLE, {}),
    "FIXED32": ("fixed32", spark.WHOLE, _UNSIGNED),
    "FIXED64": ("fixed64", spark.WHOLE, {"min": 0}),
    "SFIXED32": ("fixed32", _INT32, {}),
    "SFIXED64": ("fixed64", spark.WHOLE, {}),
    "FLOAT": ("float", ("float",), {}),
    "DOUBLE": ("double", ("float", "double"), {}),
    "STRING": ("bytes", ("string",), {}),
    "BYTES": ("bytes", ("binary",), {}),
}


def full_name(text: str, indexes: tuple[int, ...] = (0,)) -> str:
    """Return ``package.Message``, or ``package.Outer.Inner``.

    Raises
    ------
    InvalidSchema
        The text is not a valid Protobuf schema, or has no such message.
    """
    return str(proto_text.message(text, indexes).full_name)


def plan(type: SparkType, text: str, column: str, indexes: tuple[int, ...] = (0,)) -> Node:
    """Return how to write a column of this type as a message of the schema in ``text``.

    Raises
    ------
    InvalidSchema
        The text is not a valid Protobuf schema, or the type does not fit the message.
    """
    message = proto_text.message(text, indexes)
    if spark.kind(type, column) != "struct":
        raise spark.misfit(column, type, f"the message {message.full_name}", ["a struct"])
    return _message(type, message, column)


def _message(type: SparkType, message: Any, path: str) -> Node:
    columns = {f.name: f for f in spark.fields(type, path)}
    names, of = [f.name for f in message.fields], f"the Protobuf message {message.full_name}"
    if more := [n for n in columns if n not in names]:
        raise spark.unknown(path, more[0], names, of)
    made: list[Node] = []
    for field in sorted(message.fields, key=lambda f: f.number):
        if field.name in columns:
            column = columns[field.name]
            made.append(
                {"name": field.name, "at": column.at, "number": field.number, "required": field.is_required}
                | ({"oneof": oneof.name} if (oneof := field.containing_oneof) and len(oneof.fields) > 1 else {})
                | _field(column.type, field, f"{path}.{field.name}")
            )
        elif field.is_required:
            raise spark.missing(path, field.name, of)
    return {"write": "message", "width": len(columns), "fields": made}


def _field(type: SparkType, field: Any, path: str) -> Node:
    """Return the part of a field that says what is in it."""
    kind = spark.kind(type, path)
    if _is_map(field):
        if kind != "map":
            raise spark.misfit(path, type, "a map", ["a map"])
        assert isinstance(type, dict)
        key, value = (field.message_type.fields_by_name[n] for n in ("key", "value"))
        return {
            "key": _node(type["keyType"], key, f"{path}.key"),
            "value": _node(type["valueType"], value, f"{path}.value"),
        }
    if field.is_repeated:
        if kind != "array":
            raise spark.misfit(path, type, f"a repeated {_said(field)}", ["an array"])
        assert isinstance(type, dict)
        items = _node(type["elementType"], field, f"{path}.element")
        return {"items": items, "packed": bool(field.is_packed)}
    return {"node": _node(type, field, path)}


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _node(type: SparkType, field: Any, path: str) -> Node:
    """Return the node of a single value."""
    kind = spark.kind(type, path)
    if field.type == field.TYPE_GROUP:
        raise InvalidSchema(
            f"{path} is a group in the Protobuf schema, which this sink does not write",
            f"Make {path} a message in the Protobuf schema, without delimited encoding, or drop it from the struct",
        )
    if field.type == field.TYPE_MESSAGE:
        if kind == "timestamp" and field.message_type.full_name == "google.protobuf.Timestamp":
            return {"write": "timestamp", "read": "timestamp"}
        if kind == "struct":
            return _message(type, field.message_type, path)
        raise spark.misfit(path, type, _said(field), _takes(field))
    if field.type == field.TYPE_ENUM:
        if kind != "string":
            raise spark.misfit(path, type, _said(field), ["string"])
        return {"write": "enum", "symbols": {v.name: v.number for v in field.enum_type.values}}
    write, takes, bounds = _scalar(field)
    if kind not in takes:
        raise spark.misfit(path, type, _said(field), takes)
    return {"write": write, "read": kind, **bounds}


def _scalar(field: Any) -> tuple[str, tuple[str, ...], dict[str, int]]:
    return next(found for name, found in _SCALARS.items() if getattr(field, f"TYPE_{name}") == field.type)


def _takes(field: Any) -> list[str]:
    return ["timestamp"] if field.message_type.full_name == "google.protobuf.Timestamp" else ["a struct"]


def _said(field: Any) -> str:
    """Return what a field holds, as its declaration names it."""
    if field.message_type is not None:
        return f"message {field.message_type.full_name}"
    if field.enum_type is not None:
        return f"enum {field.enum_type.full_name}"
    return next(name.lower() for name in _SCALARS if getattr(field, f"TYPE_{name}") == field.type)
