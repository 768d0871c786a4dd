"""A proto3 schema from a Spark type."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from exactly_once.errors import InvalidSchema
from exactly_once.formats import proto_text
from exactly_once.formats import spark_type as spark
from exactly_once.formats.spark_type import SparkType

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


@dataclass
class _Message:
    """A message while it is written: its lines, and the names that a message inside it may not have.

    These are its own, those of the messages that enclose it, which protoc's Java refuses, and those of its fields.
    """

    enclosing: frozenset[str]
    taken: set[str]
    previous: Any
    lines: list[str] = field(default_factory=list)


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
    lines = _message(type, last, frozenset((last,)), last, before)
    head = ['syntax = "proto3";', *([f"package {package};"] if package else []), ""]
    if any(_TIMESTAMP in line for line in lines):
        head += ['import "google/protobuf/timestamp.proto";', ""]
    return "\n".join([*head, *lines, ""])


def _message(type: SparkType, name: str, enclosing: frozenset[str], path: str, previous: Any) -> list[str]:
    """Return the lines of a message.

    Parameters
    ----------
    enclosing : set of str
        Its name, and those of the messages that it is in.
    previous : Descriptor or None
        The message of the latest version.
    """
    fields = spark.fields(type, path)
    made = _Message(enclosing, {*enclosing, *(n for f in fields for n in (f.name, f"{camel(f.name)}Entry"))}, previous)
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
        message.lines += [f"  {line}" for line in _message(type, own, message.enclosing | {own}, path, before)]
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
