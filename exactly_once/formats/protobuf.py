"""Protobuf: a proto3 schema from a Spark type, and the plan to write a column by a message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from exactly_once.errors import InvalidSchema
from exactly_once.formats import proto_text
from exactly_once.formats import spark_type as spark
from exactly_once.formats.spark_type import Node, SparkType

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

_TIMESTAMP = ".google.protobuf.Timestamp"

_TYPES = {
    "boolean": "bool",
    "byte": "int32",
    "short": "int32",
    "integer": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "timestamp": _TIMESTAMP,
}
_KEYS = ("boolean", *spark.WHOLE, "string")
_INSTEAD = {"decimal": "string or double", "date": "string or timestamp", "timestamp_ntz": "string or timestamp"}


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


# -- derive ------------------------------------------------------------------------------------------------------------


@dataclass
class _Message:
    """A message while it is written: its lines, and the names that a message inside it may not have.

    These are its own, those of the messages that enclose it, which protoc's Java refuses, and those of its fields.
    """

    enclosing: frozenset[str]
    taken: set[str]
    previous: Any
    lines: list[str]


def derive(type: SparkType, name: str, previous: str | None = None) -> str:
    """Return the text of a file with one message; ``name`` is that of its package and the message.

    A field keeps the number that it has in ``previous``, by its name, and numbers of fields that are gone are reserved:
    a reader finds a field by its number alone. Without it, numbers follow the positions of the fields, from 1. A null
    in an array or a map has no place in Protobuf: it is refused when the row comes.

    Raises
    ------
    InvalidSchema
        Protobuf has nothing for a type, or does not allow a name.
    """
    for part in name.split("."):
        spark.check_name(part, f"the schema {name}", "Protobuf")
    package, _, last = name.rpartition(".")
    if spark.kind(type, last) != "struct":
        raise InvalidSchema(
            f"{last} is of type {spark.named(type)}, but a Protobuf message is made from a struct",
            "Wrap the column in a struct: struct(value AS value)",
        )
    before = proto_text.message(previous, (0,)) if previous is not None else None
    lines = _derived(type, last, frozenset((last,)), last, before)
    head = ['syntax = "proto3";', *([f"package {package};"] if package else []), ""]
    if any(_TIMESTAMP in line for line in lines):
        head += ['import "google/protobuf/timestamp.proto";', ""]
    return "\n".join([*head, *lines, ""])


def _derived(type: SparkType, name: str, enclosing: frozenset[str], path: str, previous: Any) -> list[str]:
    """Return the lines of a message.

    Parameters
    ----------
    enclosing : set of str
        Its name, and those of the messages that it is in.
    previous : Descriptor or None
        The message of the latest version.
    """
    fields = spark.fields(type, path)
    taken = {*enclosing, *(n for f in fields for n in (f.name, f"{camel(f.name)}Entry"))}
    made = _Message(enclosing, taken, previous, [])
    numbers, reserved = _numbers([f.name for f in fields], previous)
    lines: dict[int, list[str]] = {}
    written: dict[str, str] = {}
    for f in fields:
        inner = f"{path}.{f.name}"
        spark.check_name(f.name, inner, "Protobuf")
        if (other := written.setdefault(_json_name(f.name), f.name)) != f.name:
            raise InvalidSchema(
                f"{path} has the fields {other} and {f.name}, whose names collide in Protobuf",
                f"Rename {inner}: its name must differ from {other} in more than underscores",
            )
        begin = len(made.lines)
        declared = _declared(f.type, f.name, made, inner)
        optional = "optional " if f.nullable and spark.kind(f.type, inner) not in ("struct", "array", "map") else ""
        lines[numbers[f.name]] = [*made.lines[begin:], f"  {optional}{declared} {f.name} = {numbers[f.name]};"]
    return [f"message {name} {{", *reserved, *(line for n in sorted(lines) for line in lines[n]), "}"]


def _numbers(names: list[str], previous: Any) -> tuple[dict[str, int], list[str]]:
    """Return the number of each field, and the lines that reserve those of fields that are gone."""
    if previous is None:
        return {name: at for at, name in enumerate(names, start=1)}, []
    kept = {f.name: f.number for f in previous.fields}
    proto = proto_text.proto_of(previous)
    ranges = [(r.start, r.end) for r in proto.reserved_range]  # the end is not one of them
    ranges += [(number, number + 1) for name, number in kept.items() if name not in names]
    gone = {*proto.reserved_name, *(name for name in kept if name not in names)}
    number = max([0, *kept.values(), *(end - 1 for _, end in ranges)])
    found: dict[str, int] = {}
    for name in names:
        if name not in kept:
            number += 1
        found[name] = kept.get(name, number)
    spans = ", ".join(str(a) if b == a + 1 else f"{a} to {b - 1}" for a, b in sorted(ranges))
    quoted = ", ".join(f'"{name}"' for name in sorted(gone - set(names)))
    lines = [f"  reserved {spans};"] if spans else []
    return found, [*lines, f"  reserved {quoted};"] if quoted else lines


def _declared(type: SparkType, name: str, message: _Message, path: str) -> str:
    """Return the type of a field as it stands before its name."""
    kind = spark.kind(type, path)
    if kind not in ("array", "map") or isinstance(type, str):
        return _single(type, name, message, path)
    if kind == "array":
        return f"repeated {_single(type['elementType'], name, message, f'{path}.element')}"
    if spark.kind(type["keyType"], f"{path}.key") not in _KEYS:
        raise InvalidSchema(
            f"the keys of {path} are of type {spark.named(type['keyType'])}, but a Protobuf map has strings, whole "
            "numbers or booleans there",
            f"Cast the keys of {path} to string, or make it an array of structs",
        )
    key = _single(type["keyType"], name, message, f"{path}.key")
    return f"map<{key}, {_single(type['valueType'], name, message, f'{path}.value')}>"


def _single(type: SparkType, name: str, message: _Message, path: str) -> str:
    """Return the name of a single value's type; that of a struct is a new message inside ``message``."""
    kind = spark.kind(type, path)
    if kind == "struct":
        own = camel(name)
        own = spark.unique(f"{own}Value" if own in message.taken else own, message.taken)
        before = message.previous.nested_types_by_name.get(own) if message.previous is not None else None
        message.lines += [f"  {line}" for line in _derived(type, own, message.enclosing | {own}, path, before)]
        return own
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in _INSTEAD:
        raise InvalidSchema(
            f"{path} is of type {spark.named(type)}, for which Protobuf has no type", f"Cast {path} to {_INSTEAD[kind]}"
        )
    raise InvalidSchema(
        f"{path} is of type {kind}, but Protobuf has no arrays or maps directly inside others",
        f"Put {path} into a struct with one field",
    )


def camel(name: str) -> str:
    """Return the name of a message for a field: ``ship_to`` gives ``ShipTo``."""
    found = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    return found if found[:1].isalpha() else f"Value{found}"


def _json_name(name: str) -> str:
    """Return the name that protoc gives a field in JSON, which must be unique: ``ship_to`` and ``shipTo`` are one."""
    first, *rest = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in rest)
