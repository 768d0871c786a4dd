"""From rows to Kafka records: the columns and rules of Spark's own Kafka sink, read from Arrow batches.

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

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from exactly_once.errors import InvalidRecord, InvalidSchema
from exactly_once.kafka.schema_options import Registry
from exactly_once.kafka.schema_registry import Framing
from exactly_once.kafka.sender import Sender

_BYTES = "string or binary"
_UNFRAMED = Framing()


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a schema, the topic from the options, and the framing: the bytes before keys and values. The
    framing is None until the schema registry has answered, so nothing is ever sent without its id.
    """

    topic: str | None
    names: frozenset[str]
    framing: Framing | None = _UNFRAMED

    @classmethod
    def of(cls, schema: StructType, topic: str | None, registry: Registry | None = None) -> Columns:
        """Check ``schema``; with ``registry``, also that it has the framed columns: then call :meth:`framed`.

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
        return cls(topic, names, None if registry is not None else _UNFRAMED)

    def framed(self, framing: Framing) -> Columns:
        """Return the same columns, with ``framing`` before keys and values."""
        return replace(self, framing=framing)

    @property
    def plain(self) -> bool:
        """True when there are only keys and values, all for one topic."""
        return self.topic is not None and not self.names & {"partition", "headers", "timestamp"}

    def send(self, batch: pa.RecordBatch, sender: Sender, topics: set[str]) -> None:
        """Send every row of ``batch``, and add the topics that it writes to ``topics``.

        Raises
        ------
        InvalidRecord, PrepareFailed
        """
        assert self.framing is not None, "the schema registry was not asked"
        values = _prefixed(_binary(batch, "value"), self.framing.value)
        keys = _prefixed(_binary(batch, "key"), self.framing.key) if "key" in self.names else None
        value_list = values.to_pylist()
        key_list = keys.to_pylist() if keys is not None else [None] * batch.num_rows
        if self.plain:
            assert self.topic is not None
            topics.add(self.topic)
            sender.send_many(self.topic, key_list, value_list, _size(values) + (_size(keys) if keys else 0))
            return
        rows = zip(
            self._topics(batch, topics),
            key_list,
            value_list,
            self._list(batch, "partition", -1),
            self._headers(batch),
            self._timestamps(batch),
            strict=True,
        )
        for topic, key, value, partition, headers, timestamp_ms in rows:
            sender.send(topic, key, value, partition, headers, timestamp_ms)

    def _topics(self, batch: pa.RecordBatch, topics: set[str]) -> list[str]:
        if self.topic is not None:
            topics.add(self.topic)
            return [self.topic] * batch.num_rows
        column = batch.column("topic")
        if column.null_count:
            raise InvalidRecord(
                "a row has no topic (its column 'topic' is null)", "Fill the column 'topic', or set the option topic"
            )
        topics.update(pc.unique(column).to_pylist())
        names: list[str] = column.to_pylist()
        return names

    def _list(self, batch: pa.RecordBatch, name: str, default: Any) -> list[Any]:
        if name not in self.names:
            return [default] * batch.num_rows
        if (pc.min(batch.column(name)).as_py() or 0) < 0:
            raise InvalidRecord(f"a row has a negative {name}", f"Leave {name} null where Kafka should choose it")
        filled: list[Any] = pc.fill_null(batch.column(name), default).to_pylist()
        return filled

    def _headers(self, batch: pa.RecordBatch) -> list[Any]:
        if "headers" not in self.names:
            return [None] * batch.num_rows
        found = batch.column("headers").to_pylist()
        if any(h is None or h["key"] is None for headers in found if headers for h in headers):
            raise InvalidRecord("a row has a header without a key", "Give every header a key; its value may be null")
        return [[(h["key"], h["value"]) for h in headers] if headers else None for headers in found]

    def _timestamps(self, batch: pa.RecordBatch) -> list[int]:
        if "timestamp" not in self.names:
            return [0] * batch.num_rows
        ms = batch.column("timestamp").cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        if pc.any(pc.less_equal(ms, 0)).as_py():
            raise InvalidRecord(
                "a row has a timestamp before 1970, which Kafka cannot hold", "Correct the timestamp, or leave it null"
            )
        filled: list[int] = pc.fill_null(ms, 0).to_pylist()
        return filled


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


def _binary(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())  # no copy; spares a decoding to str and an encoding back
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def _prefixed(column: pa.Array, prefix: bytes) -> pa.Array:
    """Put ``prefix`` before each value of the column; null stays null."""
    if not prefix:
        return column
    start, between = pa.scalar(prefix, column.type), pa.scalar(b"", column.type)
    return pc.binary_join_element_wise(start, column, between, null_handling="emit_null")


def _size(column: pa.Array) -> int:
    return pc.sum(pc.binary_length(column)).as_py() or 0
