"""The columns of a Kafka record in a schema, by the rules of Spark's own Kafka sink.

=============  ==========================================  ==========================================
column         type                                        when absent or null
=============  ==========================================  ==========================================
value          string or binary, required                  null: a tombstone
key            string or binary                            no key
topic          string; the option ``topic`` goes first     refused
partition      int                                         chosen from the key, as the Java client does
headers        array<struct<key: string, value: binary>>   none
timestamp      timestamp (an addition: Spark's sink        the time of sending
               ignores it)
encoded_key    binary (an addition): goes out as it is,    ``key``, encoded and with its id where the
               in place of ``key``                         options say so
encoded_value  the same, in place of ``value``             ``value``, the same
=============  ==========================================  ==========================================

The sink ignores other columns, as Spark's sink does. With a schema registry, it puts the id of the schema before each
value (and key); a null stays null. With ``value.format`` and ``key.format``, value and key may have any type that fits
their schema.
"""

from __future__ import annotations

from pyspark.sql.types import StructType

from exactly_once.formats import SparkType
from exactly_once.participants.kafka.rows import UNFRAMED, Columns
from exactly_once.protocol.row_schema import check_columns, check_topic_option
from exactly_once.protocol.topics import ANY_TOPIC, TopicRule
from exactly_once.registry.schema_options import Registry


def types_of(schema: StructType) -> dict[str, SparkType]:
    """Return the type of each column in Spark's JSON."""
    return {f.name: f.dataType.jsonValue() for f in schema.fields}


def columns_of(
    schema: StructType, topic: str | None, registry: Registry | None = None, rule: TopicRule = ANY_TOPIC
) -> Columns:
    """Check ``schema``; with ``registry``, also that it has the framed columns: then call :meth:`Columns.framed`. Raise
    InvalidSchema with the column, its type and the type that it needs; or InvalidOption where ``topic`` hides a column.
    """
    columns = ((f.name, f.dataType.simpleString()) for f in schema.fields)
    names = check_columns(columns, topic, registry is not None and registry.frames("key"))
    check_topic_option(topic, names)
    return Columns(topic, names, None if registry is not None else UNFRAMED, rule)
