"""The columns that a Kafka record is made of: their types, by Spark's short names (``DataType.simpleString()``)."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from exactly_once.errors import InvalidOption, InvalidSchema

#: Name and type of a column.
Column = tuple[str, str]

HEADERS = "array<struct<key:string,value:binary>>"

#: The columns of bytes that go out as they are: where one is not null, it is sent in place of the other column.
READY = {"key": "encoded_key", "value": "encoded_value"}

#: The headers in which Confluent's readers look for the schema of key and value, before they look at the first bytes.
SCHEMA_IDS = {"key": "__key_schema_id", "value": "__value_schema_id"}

_NEEDS = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    **dict.fromkeys(READY.values(), ("binary",)),
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
        With the column, its type and the type that it needs; or with a name that two of these columns have, of which
        Spark's own sink takes the first one.
    """
    columns = list(columns)
    read = _NEEDS.keys() - ({"topic"} if topic is not None else set())
    check_once(name for name, _ in columns if name in read)
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
    for name in sorted(used & read, key=list(_NEEDS).index):
        # a collation says how strings compare, not what they are
        if name not in encoded and types[name].partition(" collate ")[0] not in _NEEDS[name]:
            wanted = " or ".join(_NEEDS[name])
            raise InvalidSchema(
                f"column '{name}' is of type {types[name]}, but a Kafka record needs {wanted}",
                f"Cast the column, or build it with to_json or to_avro: {wanted}"
                + (f". Or set {name}.format, and the sink encodes it" if name in ("key", "value") else ""),
            )
    return frozenset(used)


def check_once(names: Iterable[str], of: str = "", ignore_case: bool = False) -> None:
    """Raise InvalidSchema when two of ``names`` are equal: columns, or the fields of the struct ``of``."""
    seen: dict[str, str] = {}
    for name in names:
        same = name.lower() if ignore_case else name
        if first := seen.get(same):
            both = name if first == name else f"{first} and {name}, which this session does not tell apart"
            raise InvalidSchema(
                f"two {f'fields of {of}' if of else 'columns'} are named {both}",
                "Rename one of the two, or leave one out; after a join, for example, with .drop(other.value)",
            )
        seen[same] = name


def check_topic_option(topic: str | None, names: Collection[str]) -> None:
    """Refuse the option ``topic`` for the rows of :func:`exactly_once.split`, whose column of that name it would hide:
    rejected rows would go where the good ones go. Raises InvalidOption.
    """
    if topic is not None and "topic" in names and any(ready in names for ready in READY.values()):
        raise InvalidOption(
            f"the option topic={topic} hides the column 'topic', so that the rejected rows of exactly_once.split would "
            f"go to {topic}, too",
            "Remove the option topic: exactly_once.split(rows, topic, rejected=...) names the topic of the good rows, "
            "and schema.registry.topic the one in the names of subjects",
        )
