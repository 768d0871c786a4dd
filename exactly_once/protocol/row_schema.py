"""The columns that a Kafka record is made of: their types, by Spark's short names (``DataType.simpleString()``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from exactly_once.errors import InvalidSchema

#: Name and type of a column.
Column = tuple[str, str]

HEADERS = "array<struct<key:string,value:binary>>"

_NEEDS = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (HEADERS,),
}


def check_columns(
    columns: Iterable[Column], topic: str | None, frames_key: bool = False, encoded: Collection[str] = ()
) -> frozenset[str]:
    """Return the names of the columns that a record is made of.

    Parameters
    ----------
    topic : str or None
        The topic of all rows; None: a column must name it.
    frames_key : bool
        Whether a schema registry describes the keys.
    encoded : collection of str
        Those of ``key`` and ``value`` that the sink encodes: they may have any type that fits their schema.

    Raises
    ------
    InvalidSchema
        With the column, its type and the type that it needs.
    """
    types = dict(columns)
    if "value" not in types:
        raise InvalidSchema(
            f"there is no column 'value' among {', '.join(types) or 'no columns'}",
            "Name the column that holds the record's value 'value' (string or binary)",
        )
    if frames_key and "key" not in types:
        raise InvalidSchema(
            "there is no column 'key', but the options key.schema* or key.format describe it",
            "Remove the options key.schema* and key.format, or add a column named key",
        )
    if topic is None and "topic" not in types:
        raise InvalidSchema(
            "neither the option 'topic' nor a column 'topic' names the output topic",
            "Set the option topic, or add a string column named topic",
        )
    used = types.keys() & _NEEDS.keys()
    for name in sorted(used - ({"topic"} if topic is not None else set()), key=list(_NEEDS).index):
        # a collation says how strings compare, not what they are
        if name not in encoded and types[name].partition(" collate ")[0] not in _NEEDS[name]:
            wanted = " or ".join(_NEEDS[name])
            raise InvalidSchema(
                f"column '{name}' is of type {types[name]}, but a Kafka record needs {wanted}",
                f"Cast the column, or build it with to_json or to_avro: {wanted}"
                + (f". Or set {name}.format, and the sink encodes it" if name in ("key", "value") else ""),
            )
    return frozenset(used)
