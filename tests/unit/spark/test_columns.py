"""Columns: every rule of the table in spark/columns.py, and the same records on the fast path and the general one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
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
from exactly_once.errors import InvalidOption, InvalidRecord, InvalidSchema
from exactly_once.framing import Framing
from exactly_once.options import SinkOptions
from exactly_once.participants.kafka.rows import Columns
from exactly_once.schema_options import Registry, Side
from exactly_once.spark.columns import check_names, columns_of
from exactly_once.spark.start import check_participants

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Sent(NamedTuple):
    """A record as it reaches the producer."""

    topic: str
    key: bytes | None
    value: bytes | None
    partition: int = -1
    headers: Any = None
    timestamp_ms: int | None = None


class Producing:
    """A transaction that keeps what it is given, by the two ways in."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.bytes = 0
        self.ways: set[str] = set()

    def send(
        self,
        topic: str,
        key: Any,
        value: Any,
        partition: int = -1,
        headers: Any = None,
        timestamp_ms: int | None = None,
    ) -> None:
        self.ways.add("general")
        self.sent.append(Sent(topic, key, value, partition, headers, timestamp_ms))
        self.bytes += len(key or b"") + len(value or b"")

    def send_many(self, topic: str, keys: list[Any], values: list[Any], size: int) -> None:
        self.ways.add("fast")
        self.sent += [Sent(topic, k, v) for k, v in zip(keys, values, strict=True)]
        self.bytes += size


def schema(**types: DataType) -> StructType:
    return StructType([StructField(name, t) for name, t in types.items()])


def send(columns: Columns, **arrays: pa.Array) -> Producing:
    producing = Producing()
    columns.send(pa.record_batch(arrays), producing)  # type: ignore[arg-type]
    return producing


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
    assert columns_of(StructType(fields), "t").names == {"value", "topic"}


# -- the records ----------------------------------------------------------------------------------------------------

#: The same three rows in every Arrow type that Spark may hand over for a string or binary column.
BYTES = {
    "string": pa.array(["a", None, "ä€"]),
    "binary": pa.array([b"a", None, "ä€".encode()]),
    "large string": pa.array(["a", None, "ä€"], pa.large_string()),
    "large binary": pa.array([b"a", None, "ä€".encode()], pa.large_binary()),
}
AS_BYTES = [b"a", None, "ä€".encode()]


@pytest.mark.parametrize("values", BYTES.values(), ids=BYTES)
@pytest.mark.parametrize("keys", BYTES.values(), ids=BYTES)
def test_strings_and_bytes_are_written_as_the_same_bytes(keys: pa.Array, values: pa.Array) -> None:
    """UTF-8, as Spark's sink; a null value is a tombstone, a null key no key, and neither is an empty one."""
    producing = send(columns_of(schema(value=BinaryType(), key=BinaryType()), "t"), value=values, key=keys)
    assert producing.sent == [Sent("t", b, b) for b in AS_BYTES]
    assert producing.bytes == 2 * sum(len(b or b"") for b in AS_BYTES)


def test_empty_is_not_null() -> None:
    """A tombstone deletes a key from a compacted topic; an empty value does not."""
    producing = send(columns_of(schema(**VALUE), "t"), value=pa.array(["", None]))
    assert producing.sent == [Sent("t", None, b""), Sent("t", None, None)]


def test_a_batch_of_nulls_only_is_written() -> None:
    """Spark hands over such columns; their size is none."""
    producing = send(columns_of(schema(**VALUE), "t"), value=pa.array([None, None], pa.string()))
    assert (len(producing.sent), producing.bytes) == (2, 0)


def test_a_slice_of_a_batch_is_written_as_that_slice() -> None:
    """Arrow buffers are shared: reading one from its beginning would write rows of another batch."""
    values = pa.array(["x", "a", None, "b", "y"]).slice(1, 3)
    producing = send(columns_of(schema(**VALUE), "t"), value=values)
    assert [s.value for s in producing.sent] == [b"a", None, b"b"]
    assert producing.bytes == 2


def test_the_topic_option_goes_before_the_column() -> None:
    """As with Spark's sink."""
    columns = columns_of(schema(value=StringType(), topic=StringType()), "t")
    producing = send(columns, value=pa.array(["a"]), topic=pa.array(["other"]))
    assert [s.topic for s in producing.sent] == ["t"]


def test_the_topic_column_says_where_each_row_goes() -> None:
    """Guards against rows in a topic that they did not choose."""
    columns = columns_of(schema(value=StringType(), topic=StringType()), None)
    producing = send(columns, value=pa.array(["1", "2", "3"]), topic=pa.array(["a", "b", "a"]))
    assert [(s.topic, s.value) for s in producing.sent] == [("a", b"1"), ("b", b"2"), ("a", b"3")]


def test_a_row_without_topic_is_refused_and_nothing_of_its_batch_is_sent() -> None:
    """A row that went nowhere would be lost without a word."""
    columns = columns_of(schema(value=StringType(), topic=StringType()), None)
    producing = Producing()
    batch = pa.record_batch({"value": pa.array(["1", "2"]), "topic": pa.array(["a", None])})
    with pytest.raises(InvalidRecord, match=r"EO-RECORD: a row \(key None\) has no topic .*'topic' is null"):
        columns.send(batch, producing)  # type: ignore[arg-type]
    assert producing.sent == []


def test_a_partition_is_taken_and_null_leaves_the_choice_to_the_key() -> None:
    """The same key must go where Spark's sink puts it: order per key."""
    columns = columns_of(schema(value=StringType(), partition=IntegerType()), "t")
    producing = send(columns, value=pa.array(["a", "b", "c"]), partition=pa.array([3, None, 0], pa.int32()))
    assert [s.partition for s in producing.sent] == [3, -1, 0]


@pytest.mark.parametrize("partition", [-1, -7])
def test_a_negative_partition_is_refused_as_by_the_java_client(partition: int) -> None:
    """It is a bug in the job; -1 would be taken for "any", and the rows spread over partitions nobody expects."""
    columns = columns_of(schema(value=StringType(), partition=IntegerType()), "t")
    with pytest.raises(InvalidRecord, match="partition"):
        send(columns, value=pa.array(["a"]), partition=pa.array([partition], pa.int32()))


def headers(*rows: Any) -> list[Any]:
    columns = columns_of(schema(value=StringType(), headers=HEADERS), "t")
    producing = send(columns, value=pa.array(["v"] * len(rows)), headers=pa.array(rows, ARROW_HEADERS))
    return [s.headers for s in producing.sent]


def test_headers_keep_order_repetition_and_nulls() -> None:
    """Header keys may repeat, and a header's value may be null, which is not empty."""
    row = [{"key": "k", "value": b"1"}, {"key": "k", "value": None}, {"key": "", "value": b""}]
    assert headers(row, [], None) == [[("k", b"1"), ("k", None), ("", b"")], None, None]


@pytest.mark.parametrize("bad", [[{"key": None, "value": b"1"}], [None]], ids=["a null key", "a null header"])
def test_a_header_without_a_key_is_refused_with_a_sentence(bad: list[Any]) -> None:
    """Kafka has no such header. The client library writes a null key as the word "None" (tried), without a
    complaint."""
    with pytest.raises(InvalidRecord, match="header"):
        headers([{"key": "k", "value": b"1"}], bad)


UTC = dt.UTC
NEW_YORK = "America/New_York"


@pytest.mark.parametrize("unit", ["us", "ns", "ms"])
@pytest.mark.parametrize("zone", ["UTC", NEW_YORK, "+05:30"])
def test_a_timestamp_is_milliseconds_since_the_epoch_whatever_the_session_zone(zone: str, unit: str) -> None:
    """Spark hands over microseconds in the session's zone; an hour's error moves a record into another window
    downstream."""
    moment = dt.datetime(2013, 1, 1, 10, 0, 0, 123_000, tzinfo=UTC)
    columns = columns_of(schema(value=StringType(), timestamp=TimestampType()), "t")
    producing = send(columns, value=pa.array(["a", "b"]), timestamp=pa.array([moment, None], pa.timestamp(unit, zone)))
    assert [s.timestamp_ms for s in producing.sent] == [1_357_034_400_123, None]


def test_a_timestamp_between_two_milliseconds_is_cut_not_refused() -> None:
    """Spark's clock has microseconds, Kafka's has none: an ordinary current_timestamp() must not fail."""
    columns = columns_of(schema(value=StringType(), timestamp=TimestampType()), "t")
    stamps = pa.array([1_357_034_400_123_999], pa.timestamp("us", "UTC"))
    producing = send(columns, value=pa.array(["a"]), timestamp=stamps)
    assert producing.sent[0].timestamp_ms == 1_357_034_400_123


@pytest.mark.parametrize("us", [-1, -999, -1001, -86_400_000_000])
def test_a_time_before_1970_is_refused_as_by_the_java_client(us: int) -> None:
    """Brokers take it; Kafka's Java client, which Spark's sink has, does not. One microsecond before is not 1970."""
    columns = columns_of(schema(value=StringType(), timestamp=TimestampType()), "t")
    with pytest.raises(InvalidRecord) as refusal:
        send(columns, value=pa.array(["a", "b"]), timestamp=pa.array([5_000, us], pa.timestamp("us", "UTC")))
    assert refusal.value.what.startswith(f"a row (key None) has a timestamp before 1970 ({us // 1000} ms), ")
    assert "Kafka's Java client" in refusal.value.what


def test_the_time_that_sparks_source_gives_a_record_without_one_is_none() -> None:
    """Guards against a copied topic of which the first record without a time stops the stream."""
    columns = columns_of(schema(value=StringType(), timestamp=TimestampType()), "t")
    producing = send(columns, value=pa.array(["a", "b"]), timestamp=pa.array([-1000, 1000], pa.timestamp("us", "UTC")))
    assert [s.timestamp_ms for s in producing.sent] == [None, 1]


@pytest.mark.parametrize("us", [0, 999])
def test_the_time_0_which_librdkafka_takes_for_none_is_refused(us: int) -> None:
    """Guards against the time of writing in place of 1970-01-01, without a word."""
    columns = columns_of(schema(value=StringType(), timestamp=TimestampType()), "t")
    with pytest.raises(InvalidRecord, match=r"has the timestamp 0 .*librdkafka"):
        send(columns, value=pa.array(["a"]), timestamp=pa.array([us], pa.timestamp("us", "UTC")))


def test_columns_may_come_in_any_order_among_others() -> None:
    """They are taken by name."""
    types = {"x": LongType(), "value": StringType(), "partition": IntegerType(), "key": StringType()}
    producing = send(
        columns_of(schema(**types), "t"),
        x=pa.array([1]),
        value=pa.array(["v"]),
        partition=pa.array([2], pa.int32()),
        key=pa.array(["k"]),
    )
    assert producing.sent == [Sent("t", b"k", b"v", 2)]


# -- the two paths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_key", [True, False])
@pytest.mark.parametrize("values", BYTES.values(), ids=BYTES)
def test_the_fast_path_and_the_general_one_give_the_same_records(values: pa.Array, with_key: bool) -> None:
    """The fast path is what benchmarks and most users run, the general one what most tests look at."""
    types: dict[str, DataType] = {"value": BinaryType()}
    arrays = {"value": values}
    if with_key:
        types["key"], arrays["key"] = StringType(), pa.array(["k1", None, "k3"])
    fast = send(columns_of(schema(**types), "t"), **arrays)
    nothing = {"partition": pa.nulls(3, pa.int32()), "headers": pa.nulls(3, ARROW_HEADERS)}
    general_columns = columns_of(schema(**types, partition=IntegerType(), headers=HEADERS), "t")
    general = send(general_columns, **arrays, **nothing)
    by_topic = send(columns_of(schema(**types, topic=StringType()), None), **arrays, topic=pa.array(["t"] * 3))
    assert (fast.ways, general.ways, by_topic.ways) == ({"fast"}, {"general"}, {"general"})
    assert fast.sent == general.sent == by_topic.sent
    assert fast.bytes == general.bytes == by_topic.bytes


@pytest.mark.parametrize(
    ("more", "topic", "way"),
    [
        ({}, "t", "fast"),
        ({"key": (StringType(), pa.array(["k"]))}, "t", "fast"),
        ({"topic": (StringType(), pa.array(["u"]))}, "t", "fast"),
        ({"topic": (StringType(), pa.array(["u"]))}, None, "general"),
        ({"partition": (IntegerType(), pa.array([1], pa.int32()))}, "t", "general"),
        ({"headers": (HEADERS, pa.array([None], ARROW_HEADERS))}, "t", "general"),
        ({"timestamp": (TimestampType(), pa.array([5_000], pa.timestamp("us", "UTC")))}, "t", "general"),
    ],
)
def test_only_keys_and_values_to_one_topic_take_the_fast_path(
    more: dict[str, tuple[DataType, pa.Array]], topic: str | None, way: str
) -> None:
    """On it partition, headers and time would be dropped without a word."""
    columns = columns_of(schema(**VALUE, **{name: t for name, (t, _) in more.items()}), topic)
    producing = send(columns, value=pa.array(["v"]), **{name: array for name, (_, array) in more.items()})
    assert producing.ways == {way}


# -- framing --------------------------------------------------------------------------------------------------------

FRAMING = Framing(key=b"\0\0\0\0\7", value=b"\0\1\2\3\4\0")


@pytest.mark.parametrize("values", BYTES.values(), ids=BYTES)
@pytest.mark.parametrize("plain", [True, False], ids=["fast", "general"])
def test_the_schema_id_stands_before_every_key_and_value_and_null_stays_null(values: pa.Array, plain: bool) -> None:
    """Guards against a tombstone of a few bytes, which deletes nothing, and against a path without the id."""
    types: dict[str, DataType] = {"value": BinaryType(), "key": BinaryType()}
    arrays = {"value": values, "key": values.take(pa.array([2, 1, 0]))}
    if not plain:
        types["partition"], arrays["partition"] = IntegerType(), pa.nulls(3, pa.int32())
    producing = send(columns_of(schema(**types), "t").framed(FRAMING), **arrays)
    assert producing.ways == {"fast" if plain else "general"}
    umlaut = "ä€".encode()
    assert producing.sent == [
        Sent("t", FRAMING.key + umlaut, FRAMING.value + b"a"),
        Sent("t", None, None),
        Sent("t", FRAMING.key + b"a", FRAMING.value + umlaut),
    ]
    assert producing.bytes == sum(len(s.key or b"") + len(s.value or b"") for s in producing.sent)


def test_an_empty_value_is_framed_it_is_a_message() -> None:
    """A Protobuf message of defaults has no bytes; without its id it would be read as damaged."""
    columns = columns_of(schema(**VALUE), "t").framed(Framing(value=FRAMING.value))
    producing = send(columns, value=pa.array(["", None]))
    assert [s.value for s in producing.sent] == [FRAMING.value, None]


def test_a_slice_is_framed_as_that_slice_and_the_users_batch_is_left_alone() -> None:
    """Arrow buffers are shared, with the rows beside the slice and with whoever handed them over."""
    values = pa.array([b"x", b"a", None, b"y"]).slice(1, 2)
    producing = send(columns_of(schema(**VALUE), "t").framed(FRAMING), value=values)
    assert [s.value for s in producing.sent] == [FRAMING.value + b"a", None]
    assert values.to_pylist() == [b"a", None]


READY = pa.array([b"\0as it is", None, b""])


@pytest.mark.parametrize("values", BYTES.values(), ids=BYTES)
@pytest.mark.parametrize("plain", [True, False], ids=["fast", "general"])
def test_what_is_ready_goes_out_as_it_is_in_place_of_the_column_beside_it(values: pa.Array, plain: bool) -> None:
    """Guards against a rejected record behind the id of a schema that it does not have, and against its loss."""
    types: dict[str, DataType] = {"value": BinaryType(), "key": StringType()}
    types |= {"encoded_value": BinaryType(), "encoded_key": BinaryType()}
    arrays = {"value": values, "key": pa.array(["k", "k", None]), "encoded_value": READY, "encoded_key": READY[::-1]}
    if not plain:
        types["partition"], arrays["partition"] = IntegerType(), pa.nulls(3, pa.int32())
    producing = send(columns_of(schema(**types), "t").framed(FRAMING), **arrays)
    assert producing.ways == {"fast" if plain else "general"}
    assert producing.sent == [
        Sent("t", b"", b"\0as it is"),
        Sent("t", FRAMING.key + b"k", None),
        Sent("t", b"\0as it is", b""),
    ]
    assert producing.bytes == sum(len(s.key or b"") + len(s.value or b"") for s in producing.sent)


def test_a_key_that_is_ready_needs_no_column_of_other_keys() -> None:
    """Guards against rejected records without their keys, in a stream whose good ones have none."""
    columns = columns_of(schema(**VALUE, encoded_key=BinaryType()), "t")
    producing = send(columns, value=pa.array(["a", "b"]), encoded_key=pa.array([b"k", None]))
    assert producing.sent == [Sent("t", b"k", b"a"), Sent("t", None, b"b")]


def test_an_error_names_a_row_by_the_key_that_is_ready() -> None:
    """Guards against an error of which nobody can find the row."""
    types: dict[str, DataType] = {"key": StringType(), "encoded_key": BinaryType(), "partition": IntegerType()}
    arrays = {"value": pa.array(["v"]), "key": pa.nulls(1, pa.string()), "encoded_key": pa.array([b"k7"])}
    with pytest.raises(InvalidRecord, match=r"\(key .*k7"):
        send(columns_of(schema(**VALUE, **types), "t"), **arrays, partition=pa.array([-1], pa.int32()))


READY_TYPES: dict[str, DataType] = {"encoded_value": BinaryType(), "encoded_key": BinaryType()}
SPLIT: dict[str, DataType] = {**VALUE, "topic": StringType(), **READY_TYPES}


def test_the_option_topic_is_refused_where_it_would_send_rejected_rows_to_the_output() -> None:
    """Guards against rejected records among the good ones: the option goes before the column that keeps them apart."""
    given = {"sink.id": "s", "checkpointLocation": "/c", "kafka.bootstrap.servers": "h:1"}
    names = [(name, kind.simpleString()) for name, kind in SPLIT.items()]
    assert SinkOptions.parse(given).check_columns(names) == set(SPLIT)
    said = r"the option topic=out hides the column 'topic', .* rejected .* Remove the option topic"
    with pytest.raises(InvalidOption, match=said):
        SinkOptions.parse({**given, "topic": "out"}).check_columns(names)
    with pytest.raises(InvalidOption, match=said):
        columns_of(schema(**SPLIT), "out")
    columns_of(schema(**{name: kind for name, kind in SPLIT.items() if name != "topic"}), "out")


def test_keys_alone_are_framed_when_only_they_have_a_schema() -> None:
    """Each side has its own switch."""
    columns = columns_of(schema(value=StringType(), key=StringType()), "t").framed(Framing(key=FRAMING.key))
    producing = send(columns, value=pa.array(["v"]), key=pa.array(["k"]))
    assert producing.sent == [Sent("t", FRAMING.key + b"k", b"v")]


def test_nothing_is_sent_before_the_registry_was_asked() -> None:
    """Guards against an adapter that forgets to: its records would have no id, and no reader."""
    columns = columns_of(schema(**VALUE), "t", Registry("http://r", sides=(Side("value", "t-value"),)))
    with pytest.raises(AssertionError, match="registry was not asked"):
        send(columns, value=pa.array(["a"]))
    send(columns.framed(FRAMING), value=pa.array(["a"]))


def test_a_schema_for_keys_that_are_not_there_is_refused() -> None:
    """The user believes that his keys are written."""
    registry = Registry("http://r", sides=(Side("key", "t-key"), Side("value", "t-value")))
    columns_of(schema(value=StringType(), key=StringType()), "t", registry)
    with pytest.raises(InvalidSchema, match="no column 'key'"):
        columns_of(schema(**VALUE), "t", registry)


# -- the id of a schema ---------------------------------------------------------------------------------------------

FRAMED = Framing(key=b"\x00\x00\x00\x00\x07", value=b"\x00\x00\x00\x00\x08")


@pytest.mark.parametrize("name", ["key", "value"])
def test_a_header_with_another_schema_id_is_refused_where_the_sink_writes_its_own(name: str) -> None:
    """Guards against readers who decode by the input's schema: Confluent's look at the header first."""
    header = f"__{name}_schema_id"
    columns = columns_of(schema(value=BinaryType(), key=BinaryType(), headers=HEADERS), "t")
    rows = [
        [],
        [{"key": "traceparent", "value": b"1"}],
        None,
        [{"key": "a", "value": b""}, {"key": header, "value": b"x"}],
    ]
    arrays = {
        "value": pa.array([b"0", b"1", b"2", b"3"]),
        "key": pa.array([b"k0", b"k1", b"k2", b"k3"]),
        "headers": pa.array(rows, ARROW_HEADERS),
    }
    with pytest.raises(InvalidRecord) as refusal:
        send(columns.framed(FRAMED), **arrays)
    assert refusal.value.what.startswith(f"a row (key b'k3') has the header {header} in its column 'headers'")
    assert f"h.key != '{header}'" in refusal.value.way_out
    assert len(send(columns.framed(Framing()), **arrays).sent) == 4  # bytes that are passed on fit the header


def test_a_schema_id_of_the_input_stays_beside_bytes_that_are_ready_and_beside_a_tombstone() -> None:
    """Guards against rejected records that cannot be sent on: their header says how to read them."""
    columns = columns_of(schema(value=BinaryType(), encoded_value=BinaryType(), headers=HEADERS), "t")
    header = [{"key": "__value_schema_id", "value": b"x"}]
    sent = send(
        columns.framed(FRAMED),
        value=pa.array([b"a", None], pa.binary()),
        encoded_value=pa.array([b"b", None], pa.binary()),
        headers=pa.array([header, header], ARROW_HEADERS),
    ).sent
    assert [(s.value, s.headers) for s in sent] == [(v, [("__value_schema_id", b"x")]) for v in (b"b", None)]
