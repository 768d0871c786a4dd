"""The columns of a Kafka record in a schema, by the rules of Spark's own Kafka sink.

============  ==========================================  ==========================================
column        type                                        when absent or null
============  ==========================================  ==========================================
value         string or binary, required                  null: a tombstone
key           string or binary                            no key
topic         string; the option ``topic`` goes first     refused
partition     int                                         chosen from the key, as the Java client does
headers       array<struct<key: string, value: binary>>   none
timestamp     timestamp (an addition: Spark's sink        the time of sending
              ignores it)
============  ==========================================  ==========================================

The sink ignores other columns, as Spark's sink does. With a schema registry, it puts the id of the schema before each
value (and key); a null stays null.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from exactly_once.errors import InvalidSchema
from exactly_once.kafka.rows import UNFRAMED, Columns
from exactly_once.kafka.schema_options import Registry
from exactly_once.protocol.topics import ANY_TOPIC, TopicRule

_BYTES = "string or binary"


def columns_of(
    schema: StructType, topic: str | None, registry: Registry | None = None, rule: TopicRule = ANY_TOPIC
) -> Columns:
    """Check ``schema``; with ``registry``, also that it has the framed columns: then call :meth:`Columns.framed`.

    Raises
    ------
    InvalidSchema
        With the column, its type and the type that it needs.
    """
    types = {f.name: f.dataType for f in schema.fields}
    if "value" not in types:
        raise InvalidSchema(
            f"there is no column 'value' among {', '.join(types) or 'no columns'}",
            "Name the column that holds the record's value 'value' (string or binary)",
        )
    if registry is not None and registry.frames("key") and "key" not in types:
        raise InvalidSchema(
            "there is no column 'key', but the options key.schema* describe its schema",
            "Remove the options key.schema*, or add a column named key",
        )
    if topic is None and "topic" not in types:
        raise InvalidSchema(
            "neither the option 'topic' nor a column 'topic' names the output topic",
            "Set the option topic, or add a string column named topic",
        )
    _check(types, "value", (StringType, BinaryType), _BYTES)
    _check(types, "key", (StringType, BinaryType), _BYTES)
    if topic is None:
        _check(types, "topic", (StringType,), "string")
    _check(types, "partition", (IntegerType,), "int")
    _check(types, "timestamp", (TimestampType,), "timestamp")
    if "headers" in types and not _is_headers(types["headers"]):
        _refuse("headers", types["headers"], "array<struct<key:string,value:binary>>")
    names = frozenset(types) & {"value", "key", "topic", "partition", "headers", "timestamp"}
    return Columns(topic, names, None if registry is not None else UNFRAMED, rule)


def _check(types: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], wanted: str) -> None:
    if name in types and not isinstance(types[name], allowed):
        _refuse(name, types[name], wanted)


def _refuse(name: str, found: DataType, wanted: str) -> None:
    raise InvalidSchema(
        f"column '{name}' is of type {found.simpleString()}, but a Kafka record needs {wanted}",
        f"Cast the column, or build it with to_json or to_avro: {wanted}",
    )


def _is_headers(t: DataType) -> bool:
    return (
        isinstance(t, ArrayType)
        and isinstance(t.elementType, StructType)
        and [(f.name, type(f.dataType)) for f in t.elementType.fields] == [("key", StringType), ("value", BinaryType)]
    )
