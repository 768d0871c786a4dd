"""Spark's types as JSON, ``DataType.jsonValue()``, and the refusals that all three formats share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exactly_once.errors import InvalidSchema
from exactly_once.framing import SparkType
from exactly_once.protocol.spelling import meant

WHOLE = ("byte", "short", "integer", "long")

_SIMPLE = {*WHOLE, "boolean", "float", "double", "string", "binary", "date", "timestamp", "timestamp_ntz"}
_NESTED = ("struct", "array", "map")
_STRING = re.compile(r"string collate \S+|(varchar|char)\(\d+\)")
_DECIMAL = re.compile(r"decimal\((\d+), ?(-?\d+)\)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a Spark struct; ``at`` counts from 0."""

    name: str
    at: int
    type: SparkType
    nullable: bool


def kind(type: SparkType, path: str) -> str:
    """Return what a type is: struct, array, map, decimal, or the name of a simple one (every string is "string"). Raise
    InvalidSchema for one that no format has: an interval, a variant, a user-defined type.
    """
    name = named(type)
    if isinstance(type, dict) and name in _NESTED:
        return name
    if name in _SIMPLE and isinstance(type, str):
        return name
    if _STRING.fullmatch(name):
        return "string"
    if name == "decimal" or _DECIMAL.fullmatch(name):
        return "decimal"
    raise InvalidSchema(
        f"{path} is of type {name}, which this sink does not encode",
        f"Cast {path} to string, or drop it from the column",
    )


def decimal(type: SparkType) -> tuple[int, int]:
    """Return the precision and scale of a Spark decimal."""
    found = _DECIMAL.fullmatch(str(type))
    return (int(found[1]), int(found[2])) if found else (10, 0)


def fields(type: SparkType, path: str) -> list[Field]:
    """Return the fields of a struct. Raise InvalidSchema when two have the same name: only one of them would be
    written.
    """
    assert isinstance(type, dict)
    found = [Field(f["name"], at, f["type"], bool(f["nullable"])) for at, f in enumerate(type["fields"])]
    names = [f.name for f in found]
    if twice := [n for n in names if names.count(n) > 1]:
        raise InvalidSchema(
            f"{path} has two fields named {twice[0]!r}", f"Rename one of the two fields {twice[0]!r} of {path}"
        )
    return found


def string_keys(type: SparkType, path: str) -> None:
    """Raise InvalidSchema for a map whose keys are not strings."""
    assert isinstance(type, dict)
    if kind(type["keyType"], f"{path}.key") != "string":
        raise InvalidSchema(
            f"the keys of {path} are of type {named(type['keyType'])}, but a map in this format has string keys",
            f"Cast the keys of {path} to string, or make it an array of structs",
        )


def named(type: SparkType) -> str:
    """Return a type as ``printSchema`` names it: without what is inside it."""
    return type if isinstance(type, str) else str(type.get("type"))


def check_name(name: str, path: str, format: str) -> None:
    """Raise InvalidSchema for a name that Avro and Protobuf do not allow."""
    if not _NAME.fullmatch(name):
        raise InvalidSchema(
            f"{path} has a name that {format} does not allow: {name!r}",
            f"Rename {name!r}: letters without accents, digits and underscores, and no digit at the start",
        )


def misfit(path: str, type: SparkType, has: str, takes: Sequence[str] = ()) -> InvalidSchema:
    """Return the refusal of a type; ``has`` is what the schema has there, ``takes`` the types that fit that."""
    names = [f"{'an' if t == 'array' else 'a'} {t}" if t in _NESTED else t for t in takes]
    way = f"Make {path} {' or '.join(names)}, or change its type in the schema"
    if not takes:
        way = f"Change the type of {path} in the schema, or drop it from the column"
    return InvalidSchema(f"{path} is of type {named(type)}, but the schema has {has} there", way)


def unknown(path: str, name: str, known: Iterable[str], of: str) -> InvalidSchema:
    """Return the refusal of a column that the schema does not have: its values would be lost."""
    guess = meant(name, known) or next((k for k in known if k.lower() == name.lower()), None)
    return InvalidSchema(
        f"{of} has no field for {path}.{name}",
        f"Rename {path}.{name} to {guess}"
        if guess
        else f"Drop {path}.{name} from the struct, or add a field of that name to the schema",
    )


def missing(path: str, name: str, of: str) -> InvalidSchema:
    """Return the refusal of a struct without a field that the schema demands."""
    return InvalidSchema(
        f"{path} has no field {name!r}, which {of} demands",
        f"Add a field {name!r} to the struct {path}, or give it a default or make it optional in the schema",
    )


def unique(name: str, taken: set[str]) -> str:
    """Return ``name``, or with a number behind it if it is taken; from now on the result is taken."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found
