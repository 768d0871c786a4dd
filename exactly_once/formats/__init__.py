"""Encodings of a column of any Spark type: Avro, Protobuf or JSON.

The driver derives a schema, or takes one that exists; it checks the column's type against it before anything is
written, and makes a plan that the executor's Java follows for each row. Everything here is a pure function of the
type and the schema's text. ``tests/unit/formats/interpreter.py`` says what a plan means, byte for byte.
"""

from __future__ import annotations

from exactly_once.formats import avro, json_schema, protobuf
from exactly_once.formats.json_schema import lenient
from exactly_once.formats.spark_type import Node, SparkType

__all__ = ["derive", "plan", "lenient", "full_name", "Node", "SparkType"]


def derive(format: str, type: SparkType, name: str, previous: str | None = None) -> str:
    """Return the text of a schema that fits a column of this type.

    Parameters
    ----------
    format : str
        AVRO, PROTOBUF or JSON.
    type : SparkType
        Spark's ``DataType.jsonValue()``. The column itself is taken as never null; what is inside it, as the type says.
    name : str
        The full name of what the schema describes, such as ``shop.Order``.
    previous : str, optional
        The version before, of the same format: fields of a Protobuf message keep its numbers. Avro and JSON have names.

    Raises
    ------
    InvalidSchema
        The format has nothing for a type, or does not allow a name, with its path.
    """
    if format == "AVRO":
        return avro.derive(type, name)
    if format == "PROTOBUF":
        return protobuf.derive(type, name, previous)
    return json_schema.derive(type, name)


def plan(format: str, type: SparkType, text: str, column: str, indexes: tuple[int, ...] = (0,)) -> Node:
    """Return how to encode a column of this type by this schema: a tree that JSON can hold.

    That a null is not allowed somewhere, or a number too large, shows only in the row, so it is checked there.

    Parameters
    ----------
    format : str
        AVRO, PROTOBUF or JSON.
    text : str
        The schema, as the user or the registry has it.
    column : str
        ``key`` or ``value``: where the paths in the errors begin.
    indexes : tuple of int
        Which message of a Protobuf file: its number, then those of messages inside it.

    Raises
    ------
    InvalidSchema
        The text is no schema of this format, or the type does not fit it, with the path of the field.
    InvalidOption
        A package that the format needs is not installed.
    """
    if format == "AVRO":
        return avro.plan(type, text, column)
    if format == "PROTOBUF":
        return protobuf.plan(type, text, column, indexes)
    return json_schema.plan(type, text, column)


def full_name(format: str, text: str, indexes: tuple[int, ...] = (0,)) -> str:
    """Return the name of what a schema describes: Avro's full name, Protobuf's message, the title of a JSON Schema.

    Raises
    ------
    InvalidSchema
        It has none, such as the Avro schema ``"string"``, or the text is no schema of this format.
    InvalidOption
        A package that the format needs is not installed.
    """
    if format == "AVRO":
        return avro.full_name(text)
    if format == "PROTOBUF":
        return protobuf.full_name(text, indexes)
    return json_schema.full_name(text)
