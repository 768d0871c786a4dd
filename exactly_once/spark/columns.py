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

Other columns are ignored, as by Spark's sink.
"""

from __future__ import annotations

from dataclasses import dataclass
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
from exactly_once.kafka.transaction import PartTransaction

_BYTES = "string or binary"


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns a schema has, and the topic that the option gives."""

    topic: str | None
    names: frozenset[str]

    @classmethod
    def of(cls, schema: StructType, topic: str | None) -> Columns:
        """Check ``schema``.

        Raises
        ------
        InvalidSchema
            Naming the column, its type and the one that is needed.
        """
        types = {f.name: f.dataType for f in schema.fields}
        if "value" not in types:
            raise InvalidSchema(
                f"there is no column 'value' among {', '.join(types) or 'no columns'}",
                "Name the column that holds the record's value 'value' (string or binary)",
            )
        if topic is None and "topic" not in types:
            raise InvalidSchema(
                "neither the option 'topic' nor a column 'topic' says where the rows go",
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
        return cls(topic, frozenset(types) & {"value", "key", "topic", "partition", "headers", "timestamp"})

    @property
    def plain(self) -> bool:
        """Only keys and values, all to one topic."""
        return self.topic is not None and not self.names & {"partition", "headers", "timestamp"}

    def send(self, batch: pa.RecordBatch, transaction: PartTransaction, topics: set[str]) -> None:
        """Send every row of ``batch``; adds the topics that were written to ``topics``.

        Raises
        ------
        InvalidRecord, PrepareFailed
        """
        values = _binary(batch, "value")
        keys = _binary(batch, "key") if "key" in self.names else None
        value_list = values.to_pylist()
        key_list = keys.to_pylist() if keys is not None else [None] * batch.num_rows
        if self.plain:
            assert self.topic is not None
            topics.add(self.topic)
            transaction.send_many(self.topic, key_list, value_list, _size(values) + (_size(keys) if keys else 0))
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
            transaction.send(topic, key, value, partition, headers, timestamp_ms)

    def _topics(self, batch: pa.RecordBatch, topics: set[str]) -> list[str]:
        if self.topic is not None:
            topics.add(self.topic)
            return [self.topic] * batch.num_rows
        column = batch.column("topic")
        if column.null_count:
            raise InvalidRecord(
                "a row has no topic (its column 'topic' is null)", "Fill the column, or set the option topic"
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
                "a row has a timestamp before 1970, which Kafka cannot hold", "Leave it null, or correct it"
            )
        filled: list[int] = pc.fill_null(ms, 0).to_pylist()
        return filled


def _check(types: dict[str, DataType], name: str, allowed: tuple[type[DataType], ...], wanted: str) -> None:
    if name in types and not isinstance(types[name], allowed):
        _refuse(name, types[name], wanted)


def _refuse(name: str, found: DataType, wanted: str) -> None:
    raise InvalidSchema(
        f"column '{name}' is of type {found.simpleString()}, and a Kafka record needs {wanted}",
        f"Cast it, or build it with to_json or to_avro: {wanted}",
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


def _size(column: pa.Array) -> int:
    return pc.sum(pc.binary_length(column)).as_py() or 0
