"""Encodings of a column of any Spark type: Avro, Protobuf or JSON.

The driver derives a schema, or takes one that exists; it checks the column's type against it before anything is
written, and makes a plan that the executor's Java follows for each row. Everything here is a pure function of the
type and the schema's text. ``tests/unit/formats/interpreter.py`` says what a plan means, byte for byte.
"""

from __future__ import annotations

from exactly_once.formats import avro, json_schema, protobuf
from exactly_once.formats.json_schema import lenient
from exactly_once.framing import Node, SparkType

__all__ = ["derive", "plan", "lenient", "full_name", "Node", "SparkType"]


def derive(format: str, type: SparkType, name: str, previous: str | None = None) -> str:
    """Return the text of a schema that fits a column of this type (Spark's ``DataType.jsonValue()``), which itself is
    taken as never null; what is inside it, as the type says. ``name`` is the full name of what it describes, such as
    ``shop.Order``. ``format`` is AVRO, PROTOBUF or JSON; fields of a Protobuf message keep the numbers that they have
    in ``previous``, the version before. Raise InvalidSchema, with its path, when the format has nothing for a type, or
    does not allow a name.
    """
    if format == "AVRO":
        return avro.derive(type, name)
    if format == "PROTOBUF":
        return protobuf.derive(type, name, previous)
    return json_schema.derive(type, name)


def plan(format: str, type: SparkType, text: str, column: str, indexes: tuple[int, ...] = (0,)) -> Node:
    """Return how to encode a column of this type by this schema: a tree that JSON can hold. That a null is not allowed
    somewhere, or a number too large, shows only in the row, so it is checked there.

    ``text`` is the schema as the user or the registry has it; ``column``, ``key`` or ``value``, is where the paths in
    the errors begin; ``indexes`` choose the message of a Protobuf file: its number, then those of messages inside it.

    Raise InvalidSchema when the text is no schema of this format or the type does not fit it, with the path of the
    field; InvalidOption when a package that the format needs is not installed.
    """
    if format == "AVRO":
        return avro.plan(type, text, column)
    if format == "PROTOBUF":
        return protobuf.plan(type, text, column, indexes)
    return json_schema.plan(type, text, column)


def full_name(format: str, text: str, indexes: tuple[int, ...] = (0,)) -> str:
    """Return the name of what a schema describes: Avro's full name, Protobuf's message, the title of a JSON Schema.
    Raise InvalidSchema when it has none, such as the Avro schema ``"string"``, or as :func:`plan` does.
    """
    if format == "AVRO":
        return avro.full_name(text)
    if format == "PROTOBUF":
        return protobuf.full_name(text, indexes)
    return json_schema.full_name(text)
