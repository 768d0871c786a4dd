"""Protobuf: a proto3 schema from a Spark type, and the plan to write a column by a message."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from exactly_once.errors import ExactlyOnceError, ExtraMissing, InvalidOption, InvalidSchema
from exactly_once.formats import spark_type as spark
from exactly_once.framing import Node, SparkType

#: Time for protoc; a file of some hundred messages takes well below a second.
TIMEOUT_S = 60.0

_FILE = "schema.proto"

#: The pattern of protoc's errors about a file; warnings come on stderr too.
_ERROR = re.compile(r"^\S+\.proto:(?!.*: warning: ).*$", re.MULTILINE)

_UNSIGNED = {"min": 0, "max": 2**32 - 1}
_INT32 = ("byte", "short", "integer")

#: The scalar types, by the name of the constant in FieldDescriptor: how each is written, from what, and its bounds.
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
    """Return ``package.Message``, or ``package.Outer.Inner``."""
    return str(message_of(text, indexes).full_name)


def plan(type: SparkType, text: str, column: str, indexes: tuple[int, ...] = (0,)) -> Node:
    """See :func:`exactly_once.formats.plan`."""
    message = message_of(text, indexes)
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
    kind = spark.kind(type, path)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
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


def _node(type: SparkType, field: Any, path: str) -> Node:
    kind = spark.kind(type, path)
    if field.type == field.TYPE_GROUP:
        raise InvalidSchema(
            f"{path} is a group in the Protobuf schema, which this sink does not write",
            f"Make {path} a message in the Protobuf schema, without delimited encoding, or drop it from the struct",
        )
    if field.type == field.TYPE_MESSAGE:
        moment = field.message_type.full_name == "google.protobuf.Timestamp"
        if kind == "timestamp" and moment:
            return {"write": "timestamp", "read": "timestamp"}
        if kind == "struct":
            return _message(type, field.message_type, path)
        raise spark.misfit(path, type, _said(field), ["timestamp"] if moment else ["a struct"])
    if field.type == field.TYPE_ENUM:
        if kind != "string":
            raise spark.misfit(path, type, _said(field), ["string"])
        return {"write": "enum", "symbols": {v.name: v.number for v in field.enum_type.values}}
    write, takes, bounds = _SCALARS[_said(field).upper()]
    if kind not in takes:
        raise spark.misfit(path, type, _said(field), takes)
    return {"write": write, "read": kind, **bounds}


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
    """A message while it is written: its lines, and the names that a message inside it may not have: its own, those of
    the messages that enclose it, which protoc's Java refuses, and those of its fields.
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
    """
    for part in name.split("."):
        spark.check_name(part, f"the schema {name}", "Protobuf")
    package, _, last = name.rpartition(".")
    if spark.kind(type, last) != "struct":
        raise InvalidSchema(
            f"{last} is of type {spark.named(type)}, but a Protobuf message is made from a struct",
            "Wrap the column in a struct: struct(value AS value)",
        )
    before = message_of(previous, (0,)) if previous is not None else None
    lines = _derived(type, last, frozenset((last,)), last, before)
    head = ['syntax = "proto3";', *([f"package {package};"] if package else []), ""]
    if any(_TIMESTAMP in line for line in lines):
        head += ['import "google/protobuf/timestamp.proto";', ""]
    return "\n".join([*head, *lines, ""])


def _derived(type: SparkType, name: str, enclosing: frozenset[str], path: str, previous: Any) -> list[str]:
    """Return the lines of a message; ``enclosing`` has its name and those of the messages that it is in, ``previous``
    is its latest version.
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
    from google.protobuf.descriptor_pb2 import DescriptorProto

    kept = {f.name: f.number for f in previous.fields}
    proto = DescriptorProto()  # which also has what is reserved
    previous.CopyToProto(proto)
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


# -- the text of a file, as Google's own compiler reads it -------------------------------------------------------------


def message_of(text: str, indexes: tuple[int, ...]) -> Any:
    """Return the descriptor of a message; raise InvalidSchema when protoc refuses the text or there is no such message,
    InvalidOption when protoc is not installed.

    The text may import what comes with protoc, such as google/protobuf/timestamp.proto. ``indexes`` are those of
    Confluent's wire format: the number of the message in the file, then of those inside it. The entries of maps, which
    protoc makes messages of, are not counted, for they are not in the text.
    """
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from google.protobuf.descriptor_pool import DescriptorPool

        importlib.import_module("grpc_tools")
    except ImportError as e:
        raise ExtraMissing.of("the format PROTOBUF", "grpcio-tools", "formats", e, "on the driver") from e
    files = FileDescriptorSet.FromString(compiled(text)).file
    pool = DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return pool.FindMessageTypeByName(_message_name(files[-1], indexes))


def _message_name(file: Any, indexes: tuple[int, ...]) -> str:
    inside, parts = file.message_type, [file.package] if file.package else []
    for index in indexes:
        written = [m for m in inside if not m.options.map_entry]
        if not written and indexes == (0,):
            raise InvalidSchema("the Protobuf schema has no message", "Add the message to the Protobuf schema")
        if index >= len(written):
            raise InvalidSchema(
                f"the Protobuf schema has no message {','.join(map(str, indexes))}: there are {len(written)} in "
                f"{'.'.join(parts) or 'the file'}, counted from 0",
                "Correct the option *.schema.message.indexes",
            )
        parts.append(written[index].name)
        inside = written[index].nested_type
    return ".".join(parts)


@lru_cache(maxsize=8)
def compiled(text: str) -> bytes:
    """Return a FileDescriptorSet with the file last, behind what it imports; raise InvalidSchema with the first error
    of protoc, or InvalidOption when it does not run.
    """
    with tempfile.TemporaryDirectory(prefix="exactly-once-") as folder:
        (Path(folder) / _FILE).write_text(text, encoding="utf-8")
        # a process of its own: protoc writes its errors past Python, to the file descriptor of stderr
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--include_imports"]
        command += ["--descriptor_set_out=set", _FILE]
        path = os.pathsep.join(p for p in sys.path if p)  # what this process can import, it can
        try:
            ended = subprocess.run(
                command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise InvalidSchema(
                f"protoc did not compile the Protobuf schema within {TIMEOUT_S:g} s",
                "Make the Protobuf schema smaller, or start the query when the driver is less busy",
            ) from None
        if ended.returncode:
            raise _refusal(ended.stderr.decode(errors="replace"))
        return (Path(folder) / "set").read_bytes()


def _refusal(stderr: str) -> ExactlyOnceError:
    """Return the error with what protoc says first about the file; without such, it is not the file's fault."""
    if found := _ERROR.search(stderr):
        return InvalidSchema(
            f"the text is not a valid Protobuf schema ({found[0][:400]})",
            "Correct the Protobuf schema; what it imports must be in its own text, except google/protobuf/*.proto",
        )
    last = (stderr.strip().splitlines() or ["it says nothing"])[-1][:400]
    return InvalidOption(
        f"protoc does not run on the driver ({last})",
        f"Install pyspark-kafka-exactly-once[formats] for the Python {sys.executable}",
    )
