"""Rows as Kafka records, read from Arrow batches: what a Python task sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from exactly_once.errors import InvalidRecord
from exactly_once.framing import Framing
from exactly_once.participants.kafka.digest_scope import CHOOSE, NOW, Headers
from exactly_once.protocol.row_schema import READY, SCHEMA_IDS, check_columns, check_topic_option
from exactly_once.protocol.topics import ANY_TOPIC, TopicRule
from exactly_once.schema_options import Registry

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from testkit.kafka_part import PartTransaction

UNFRAMED = Framing()

#: The time that Spark's Kafka source gives a record without one, in microseconds.
_NO_TIME = -1000

_PLACED = frozenset({"partition", "headers", "timestamp"})


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that make a record, the topic from the options, and the framing: the bytes before keys and values.
    The framing is None until the schema registry has answered, so nothing is ever sent without its id.

    :func:`columns_of` makes them from a checked schema.
    """

    topic: str | None
    names: frozenset[str]
    framing: Framing | None = UNFRAMED
    rule: TopicRule = ANY_TOPIC

    def framed(self, framing: Framing) -> Columns:
        return replace(self, framing=framing)

    def send(self, batch: pa.RecordBatch, transaction: PartTransaction) -> None:
        """Send every row of ``batch``, in their order; raise InvalidRecord or PrepareFailed."""
        assert self.framing is not None, "the schema registry was not asked"
        values = self._bytes(batch, "value", self.framing.value)
        keys = self._bytes(batch, "key", self.framing.key) if self.names & {"key", READY["key"]} else None
        key_cells = keys.to_pylist() if keys is not None else [None] * len(values)
        if self.topic is not None and not self.names & _PLACED:
            transaction.send_many(self.topic, key_cells, values.to_pylist(), _size(values) + _size(keys))
            return
        placed = self._topics(batch), self._partitions(batch), self._headers(batch), self._timestamps(batch)
        rows = zip(key_cells, values.to_pylist(), *placed, strict=True)
        for key, value, topic, partition, headers, timestamp_ms in rows:
            transaction.send(topic, key, value, partition, headers, timestamp_ms)

    def _bytes(self, batch: pa.RecordBatch, name: str, prefix: bytes) -> pa.Array:
        """Return the keys or the values, each behind ``prefix`` unless the row says that its bytes are ready."""
        ready = batch.column(READY[name]) if READY[name] in self.names else None
        if name not in self.names:
            return ready
        column = _prefixed(_binary(batch, name), prefix)
        return column if ready is None else pc.coalesce(ready.cast(column.type), column)

    def _topics(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Return the topic of each row, all of them checked before the first row of the Arrow batch is sent."""
        if self.topic is not None:
            return repeat(self.topic, batch.num_rows)
        column = _binary(batch, "topic")
        if column.null_count:
            raise InvalidRecord(
                f"{_row(batch, pc.index(column.is_null(), True))} has no topic (its column 'topic' is null)",
                "Fill the column 'topic', or set the option topic",
            )
        names = column.dictionary_encode()
        topics = [raw.decode(errors="backslashreplace") for raw in names.dictionary.to_pylist()]
        for number, topic in enumerate(topics):
            if why := self.rule.refusal(topic):
                raise InvalidRecord(
                    f"{_row(batch, pc.index(names.indices, number))} names the topic {topic!r}, which {why}",
                    "Correct the expression that fills the column 'topic'",
                )
        return map(topics.__getitem__, names.indices.to_pylist())

    def _partitions(self, batch: pa.RecordBatch) -> Iterator[int]:
        if "partition" not in self.names:
            return repeat(CHOOSE, batch.num_rows)
        if (least := pc.min(batch.column("partition")).as_py() or 0) < 0:
            raise InvalidRecord(
                f"{_row(batch, pc.index(batch.column('partition'), least))} has a negative partition ({least})",
                "Leave the column 'partition' null where Kafka should choose it",
            )
        return iter(pc.fill_null(batch.column("partition"), CHOOSE).to_pylist())

    def _headers(self, batch: pa.RecordBatch) -> Iterator[Headers]:
        """Return the headers of each row, None instead of no header. Whole columns become Python objects, not struct by
        struct.
        """
        if "headers" not in self.names:
            return repeat(None, batch.num_rows)
        column = batch.column("headers")
        keys, values = column.flatten().flatten()  # a null header is a null key
        if keys.null_count:
            row = pc.list_parent_indices(column)[pc.index(keys.is_null(), True).as_py()]
            raise InvalidRecord(
                f"{_row(batch, row)} has a header without a key",
                "Give every header of the column 'headers' a key; its value may be null",
            )
        self._check_schema_ids(batch, column, keys)
        counts = pc.fill_null(pc.list_value_length(column), 0).to_pylist()
        return _parted(list(zip(keys.to_pylist(), values.to_pylist(), strict=True)), counts)

    def _check_schema_ids(self, batch: pa.RecordBatch, headers: pa.Array, keys: pa.Array) -> None:
        """Raise InvalidRecord for a row whose header names another schema than the id that the sink writes."""
        assert self.framing is not None
        for column, name in SCHEMA_IDS.items():
            if not getattr(self.framing, column) or column not in self.names:
                continue
            rows = pc.list_parent_indices(headers).filter(pc.equal(keys, name))
            ready = batch.column(READY[column]) if READY[column] in self.names else pa.nulls(batch.num_rows)
            framed = pc.and_(pc.is_valid(batch.column(column)), pc.is_null(ready))
            if len(wrong := rows.filter(framed.take(rows))):
                raise InvalidRecord(
                    f"{_row(batch, wrong[0])} has the header {name} in its column 'headers', and the sink writes a "
                    "schema id of its own: Confluent's readers would decode by the header's",
                    f"Leave that header out: filter(headers, h -> h.key != '{name}')",
                )

    def _timestamps(self, batch: pa.RecordBatch) -> Iterator[int | None]:
        if "timestamp" not in self.names:
            return repeat(NOW, batch.num_rows)
        chosen = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC"), safe=False).cast(pa.int64())
        us = pc.if_else(pc.equal(chosen, _NO_TIME), pa.scalar(None, pa.int64()), chosen)
        if pc.any(pc.less(us, 0)).as_py():
            row = pc.index(pc.less(us, 0), True)
            raise InvalidRecord(
                f"{_row(batch, row)} has a timestamp before 1970 ({us[row.as_py()].as_py() // 1000} ms), which Kafka's "
                "Java client refuses",
                "Correct the column 'timestamp', leave it out, or make it null: the record then gets the time of "
                "writing",
            )
        if pc.any(pc.less(us, 1000)).as_py():  # librdkafka takes 0 for none
            raise InvalidRecord(
                f"{_row(batch, pc.index(pc.less(us, 1000), True))} has the timestamp 0 (the first millisecond of 1970)"
                ", which librdkafka, by which foreach_batch sends, cannot write",
                "Write with format(\"kafka_exactly_once\"); or leave the column 'timestamp' out, or make it null: the "
                "record then gets the time of writing",
            )
        return iter(pc.divide(us, 1000).to_pylist())


def _parted(headers: list[tuple[str, bytes | None]], counts: list[int]) -> Iterator[Headers]:
    start = 0
    for count in counts:
        yield headers[start : start + count] or None
        start += count


def _row(batch: pa.RecordBatch, row: pa.Scalar) -> str:
    found = (batch.column(name)[row.as_py()].as_py() for name in (READY["key"], "key") if name in batch.schema.names)
    return f"a row (key {next((key for key in found if key is not None), None)!r})"


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


def _size(column: pa.Array | None) -> int:
    return pc.sum(pc.binary_length(column)).as_py() or 0 if column is not None else 0


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
