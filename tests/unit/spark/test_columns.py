"""Columns: every rule of the table in spark/columns.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import exactly_once
from exactly_once.errors import InvalidOption, InvalidSchema
from exactly_once.options import SinkOptions
from exactly_once.schema_options import Registry, Side
from exactly_once.spark.columns import check_names
from exactly_once.spark.start import check_participants

OPTIONS = {"sink.id": "s", "checkpointLocation": "/c", "kafka.bootstrap.servers": "h:1"}


def columns_of(schema: StructType, topic: str | None, registry: Registry | None = None) -> frozenset[str]:
    """The columns of a record, as a start checks them."""
    options = SinkOptions.parse(OPTIONS | ({"topic": topic} if topic else {}))
    columns = [(f.name, f.dataType.simpleString()) for f in schema.fields]
    return replace(options, registry=registry).check_columns(columns)


HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def schema(**types: DataType) -> StructType:
    return StructType([StructField(name, t) for name, t in types.items()])


# -- the schema -----------------------------------------------------------------------------------------------------

VALUE = {"value": StringType()}


@pytest.mark.parametrize(
    ("types", "topic"),
    [
        (VALUE, "t"),
        ({"value": BinaryType(), "key": BinaryType()}, "t"),
        ({"value": StringType(), "key": StringType(), "topic": StringType()}, None),
        ({**VALUE, "partition": IntegerType(), "headers": HEADERS, "timestamp": TimestampType()}, "t"),
        ({**VALUE, "topic": IntegerType()}, "t"),  # the option goes first; the column is then just another one
        (
            {
                **VALUE,
                "offset": LongType(),
                "timestampType": IntegerType(),
                "anything": MapType(StringType(), LongType()),
            },
            "t",
        ),
    ],
)
def test_a_dataframe_that_sparks_sink_takes_is_taken(types: dict[str, DataType], topic: str | None) -> None:
    """A drop-in: other columns, such as those of Spark's Kafka source, are ignored."""
    columns_of(schema(**types), topic)


@pytest.mark.parametrize(
    ("types", "topic", "what"),
    [
        ({"key": StringType(), "Value": StringType()}, "t", "no column 'value' among key, Value"),
        ({}, "t", "no column 'value' among no columns"),
        (VALUE, None, "neither the option 'topic' nor a column 'topic'"),
        ({"value": IntegerType()}, "t", "column 'value' is of type int, but a Kafka record needs string or binary"),
        ({"value": schema(a=LongType())}, "t", "column 'value' is of type struct<a:bigint>"),
        (
            {**VALUE, "key": LongType()},
            "t",
            "column 'key' is of type bigint, but a Kafka record needs string or binary",
        ),
        ({**VALUE, "topic": BinaryType()}, None, "column 'topic' is of type binary, but a Kafka record needs string"),
        ({**VALUE, "partition": LongType()}, "t", "column 'partition' is of type bigint, but a Kafka record needs int"),
        ({**VALUE, "timestamp": LongType()}, "t", "column 'timestamp' is of type bigint"),
        ({**VALUE, "timestamp": TimestampNTZType()}, "t", "column 'timestamp' is of type timestamp_ntz"),
        ({**VALUE, "timestamp": DoubleType()}, "t", "column 'timestamp' is of type double"),
        ({**VALUE, "headers": StringType()}, "t", "column 'headers' is of type string"),
        ({**VALUE, "encoded_key": StringType()}, "t", "'encoded_key' is of type string, but a Kafka record needs bin"),
        ({**VALUE, "headers": MapType(StringType(), BinaryType())}, "t", "column 'headers' is of type map"),
        (
            {**VALUE, "headers": ArrayType(schema(key=StringType(), value=StringType()))},
            "t",
            "column 'headers' is of type array<struct<key:string,value:string>>, but a Kafka record needs "
            "array<struct<key:string,value:binary>>",
        ),
        ({**VALUE, "headers": ArrayType(schema(value=BinaryType(), key=StringType()))}, "t", "column 'headers'"),
    ],
)
def test_a_wrong_schema_is_refused_naming_column_type_and_need(
    types: dict[str, DataType], topic: str | None, what: str
) -> None:
    """Before anything is written, and not by a task on some executor."""
    with pytest.raises(InvalidSchema) as refusal:
        columns_of(schema(**types), topic)
    assert str(refusal.value).startswith("EO-SCHEMA: ")
    assert what in refusal.value.what


@pytest.mark.parametrize("name", ["value", "key", "topic", "partition", "headers", "timestamp", "encoded_value"])
def test_two_columns_of_one_name_are_refused(name: str) -> None:
    """Guards against the other one's value: after a join, Spark's sink takes the first column of a name, unasked."""
    types = {"value": StringType(), "topic": StringType()}
    of = {"partition": IntegerType(), "headers": HEADERS, "timestamp": TimestampType(), "encoded_value": BinaryType()}
    twice = [StructField(name, of.get(name, StringType()))] * 2
    others = [StructField(other, type) for other, type in types.items() if other != name]
    with pytest.raises(InvalidSchema) as refusal:
        columns_of(StructType([*others, *twice]), None)
    assert refusal.value.what == f"two columns are named {name}"


class Named:
    """A DataFrame, as far as names go."""

    def __init__(self, schema: StructType, case_sensitive: str = "false"):
        self.schema, self.columns = schema, schema.names
        self.sparkSession = SimpleNamespace(conf={"spark.sql.caseSensitive": case_sensitive})


#: What everything that asks for all columns by their names does with them.
BY_NAME: dict[str, Callable[[Any], Any]] = {
    "attempt": lambda df: exactly_once.attempt(df, lambda value: value),
    "split": lambda df: exactly_once.split(df, "t", rejected="r"),
    "participants": lambda df: check_participants(df, SimpleNamespace(sink_id="s"), (SimpleNamespace(check=None),)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("asks", BY_NAME.values(), ids=BY_NAME)
def test_who_gets_all_columns_refuses_two_of_one_name_as_the_session_tells_names_apart(
    asks: Callable[[Any], Any],
) -> None:
    """Guards against Spark's AMBIGUOUS_REFERENCE, which has no code and no way out."""
    fields = [StructField(name, StringType()) for name in ("value", "id", "id")]
    with pytest.raises(InvalidSchema) as refusal:
        asks(Named(StructType(fields)))
    assert refusal.value.what.startswith("two columns") and refusal.value.what.endswith(" named id")
    with pytest.raises(InvalidSchema, match=r"two columns .*named value and VALUE, .*this session"):
        asks(Named(schema(value=StringType(), VALUE=StringType())))


def test_a_session_that_tells_case_apart_has_two_columns_and_a_struct_never_has_two_fields_of_one_name() -> None:
    """Guards against a table whose field is the other one; Arrow cannot hold both."""
    check_names(Named(schema(value=StringType(), VALUE=StringType()), "true"))  # type: ignore[arg-type]
    twice = StructType([StructField("a", StringType()), StructField("a", LongType())])
    with pytest.raises(InvalidSchema, match=r"two fields of lines\.element are named a"):
        check_names(Named(schema(value=StringType(), lines=ArrayType(twice))))  # type: ignore[arg-type]


def test_columns_whose_names_differ_in_case_or_that_no_record_has_may_be_there_twice() -> None:
    """A drop-in: Spark's sink tells value from VALUE, ignores other columns, and a column that an option hides."""
    fields = [StructField(name, StringType()) for name in ("value", "VALUE", "id", "id", "topic", "topic")]
    assert columns_of(StructType(fields), "t") == {"value", "topic"}


READY_TYPES: dict[str, DataType] = {"encoded_value": BinaryType(), "encoded_key": BinaryType()}
SPLIT: dict[str, DataType] = {**VALUE, "topic": StringType(), **READY_TYPES}


def test_the_option_topic_is_refused_where_it_would_send_rejected_rows_to_the_output() -> None:
    """Guards against rejected records among the good ones: the option goes before the column that keeps them apart."""
    assert columns_of(schema(**SPLIT), None) == set(SPLIT)
    said = r"the option topic=out hides the column 'topic', .* rejected .* Remove the option topic"
    with pytest.raises(InvalidOption, match=said):
        columns_of(schema(**SPLIT), "out")
    columns_of(schema(**{name: kind for name, kind in SPLIT.items() if name != "topic"}), "out")


def test_a_schema_for_keys_that_are_not_there_is_refused() -> None:
    """The user believes that his keys are written."""
    registry = Registry("http://r", sides=(Side("key", "t-key"), Side("value", "t-value")))
    columns_of(schema(value=StringType(), key=StringType()), "t", registry)
    with pytest.raises(InvalidSchema, match="no column 'key'"):
        columns_of(schema(**VALUE), "t", registry)
