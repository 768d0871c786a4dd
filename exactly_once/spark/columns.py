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

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from exactly_once.errors import InvalidRecord
from exactly_once.kafka.errors import shown
from exactly_once.kafka.produce.partitioning import split_by_partition
from exactly_once.kafka.produce.records import CHOOSE, NOW, ColumnSender, Ints, Records
from exactly_once.kafka.schema_options import Registry
from exactly_once.kafka.schema_registry import Framing
from exactly_once.protocol.row_schema import check_columns
from exactly_once.protocol.topics import ANY_TOPIC, TopicRule

_UNFRAMED = Framing()


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a schema, the topic from the options, and the framing: the bytes before keys and values. The
    framing is None until the schema registry has answered, so nothing is ever sent without its id.
    """

    topic: str | None
    names: frozenset[str]
    framing: Framing | None = _UNFRAMED
    rule: TopicRule = ANY_TOPIC

    @classmethod
    def of(
        cls, schema: StructType, topic: str | None, registry: Registry | None = None, rule: TopicRule = ANY_TOPIC
    ) -> Columns:
        """Check ``schema``; with ``registry``, also that it has the framed columns: then call :meth:`framed`.

        Raises
        ------
        InvalidSchema
            With the column, its type and the type that it needs.
        """
        columns = ((f.name, f.dataType.simpleString()) for f in schema.fields)
        names = check_columns(columns, topic, registry is not None and registry.frames("key"))
        return cls(topic, names, None if registry is not None else _UNFRAMED, rule)

    def framed(self, framing: Framing) -> Columns:
        """Return the same columns, with ``framing`` before keys and values."""
        return replace(self, framing=framing)

    def send(self, batch: pa.RecordBatch, sender: ColumnSender) -> None:
        """Send every row of ``batch``, topic by topic.

        Raises
        ------
        InvalidRecord, PrepareFailed
        """
        assert self.framing is not None, "the schema registry was not asked"
        rows = Records(
            _prefixed(_binary(batch, "key"), self.framing.key) if "key" in self.names else None,
            _prefixed(_binary(batch, "value"), self.framing.value),
            self._headers(batch),
            self._timestamps(batch),
            self._partitions(batch),
        )
        for topic, some in self._by_topic(batch, rows):
            sender.send_columns(topic, some)

    def _by_topic(self, batch: pa.RecordBatch, rows: Records) -> Iterator[tuple[str, Records]]:
        if self.topic is not None:
            yield self.topic, rows
            return
        column = _binary(batch, "topic")
        if column.null_count:
            raise InvalidRecord(
                "a row has no topic (its column 'topic' is null)", "Fill the column 'topic', or set the option topic"
            )
        names = column.dictionary_encode()
        topics = [raw.decode(errors="backslashreplace") for raw in names.dictionary.to_pylist()]
        for number, topic in enumerate(topics):  # all of them, before the first row is sent
            if why := self.rule.refusal(topic):
                raise _misdirected(topic, why, batch, pc.index(names.indices, number).as_py())
        for number, mine in split_by_partition(names.indices.to_numpy()):
            yield topics[number], rows if len(mine) == len(rows) else rows.take(mine)

    def _partitions(self, batch: pa.RecordBatch) -> Ints | None:
        if "partition" not in self.names:
            # a row that chooses its topic has the digest that it always had: with its place
            return None if self.topic is not None else np.full(batch.num_rows, CHOOSE)
        if (pc.min(batch.column("partition")).as_py() or 0) < 0:
            raise InvalidRecord("a row has a negative partition", "Leave partition null where Kafka should choose it")
        chosen: Ints = pc.fill_null(batch.column("partition"), CHOOSE).to_numpy(zero_copy_only=False)
        return chosen

    def _headers(self, batch: pa.RecordBatch) -> pa.Array | None:
        if "headers" not in self.names:
            return None
        column = batch.column("headers")
        if pc.struct_field(pc.list_flatten(column), "key").null_count:  # of a null struct too
            raise InvalidRecord("a row has a header without a key", "Give every header a key; its value may be null")
        return column

    def _timestamps(self, batch: pa.RecordBatch) -> Ints | None:
        if "timestamp" not in self.names:
            return None
        ms = batch.column("timestamp").cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        if pc.any(pc.less_equal(ms, 0)).as_py():
            raise InvalidRecord(
                "a row has a timestamp before 1970, which Kafka cannot hold", "Correct the timestamp, or leave it null"
            )
        filled: Ints = pc.fill_null(ms, NOW).to_numpy(zero_copy_only=False)
        return filled


def _misdirected(topic: str, why: str, batch: pa.RecordBatch, row: int) -> InvalidRecord:
    key = batch.column("key")[row].as_py() if "key" in batch.schema.names else None
    return InvalidRecord(
        f"a row (key {shown(key)}) names the topic {shown(topic)}, which {why}",
        "Correct the expression that fills the column 'topic'",
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
