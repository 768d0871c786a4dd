"""The encoding of keys and values: the schema of each, and the plan by which Java's tasks write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exactly_once import formats
from exactly_once.errors import InvalidSchema
from exactly_once.framing import Encoding, SparkType
from exactly_once.schema_options import Registry, Side


def with_schema(side: Side, types: Mapping[str, SparkType], previous: str | None = None) -> Side:
    """Return ``side`` with the text of its schema and with its subject, as far as no registry is needed for them.
    ``previous`` is the latest version of the subject, whose numbers the fields of a Protobuf message keep. Raise
    InvalidSchema when the column's type has no schema of this format, or the schema has no name for its subject.
    """
    if side.name:
        side = replace(side, schema=formats.derive(str(side.type), types[side.column], side.name, previous))
    if not side.by_record:
        return side
    full_name = formats.full_name(side.type or "AVRO", str(side.schema), side.indexes)
    return replace(side, subject=side.subject + full_name, by_record=False)


def encoding(side: Side, types: Mapping[str, SparkType], text: str) -> Encoding:
    """Return how to encode the column of ``side`` by the schema ``text``; raise InvalidSchema where it does not fit."""
    column, found = side.column, types[side.column]
    plan = formats.plan(str(side.type), found, text, column, side.indexes)
    return Encoding(str(side.type), plan, formats.lenient(found, column))


def check(registry: Registry | None, types: Mapping[str, SparkType]) -> None:
    """Refuse columns that do not fit a schema which is known without the registry. Raise InvalidSchema."""
    for side in registry.sides if registry is not None else ():
        if side.encodes and side.column in types and (known := with_schema(side, types)).schema is not None:
            encoding(known, types, known.schema)


def check_alone(side: Side, references: object) -> None:
    """Refuse a latest version that refers to other subjects: the sink encodes by one text."""
    if references:
        raise InvalidSchema(
            f"the latest version of subject {side.subject!r} refers to schemas of other subjects",
            f"Set {side.column}.schema to the text with all types in it, or remove {side.column}.format and encode the "
            "column yourself",
        )
