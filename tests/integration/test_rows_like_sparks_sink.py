"""Whatever a row can say: the same records as Spark's own sink writes, or a refusal that names the column; as a batch
and as a stream, by ``format("kafka_exactly_once")`` and by ``foreach_batch``.

Frames are drawn from seeds (:mod:`testkit.frames`). The reader is librdkafka's. Spark's sink ignores ``timestamp``, so
times are compared with the rows.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import exactly_once
from dagster_exactly_once.backfill.resend import RejectedSpan
from dagster_exactly_once.backfill.spark import rejected_rows, to_send
from dagster_exactly_once.streaming.source import OffsetSpan
from exactly_once import error_headers
from exactly_once.errors import code_in, sentence_in
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from testkit import oracle
from testkit.broker import create_topic, create_topics, fresh_name
from testkit.frames import ANY_TIME, BAD, GOOD, OF_RECORD, PARTITIONS, TOPICS, Frame, draw, draw_bad, draw_columns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: So many seeds in make test, and so many more in the long tests.
FEW, MANY = 3, 40

DEAD = "dead"

#: The ways in: Spark's own sink and this one, as a batch and as a stream.
SPARKS, SPARKS_STREAM = "sparks", "sparks-stream"
BATCH, STREAM, FOREACH = "batch", "stream", "foreach"
#: exactly_once.check writes nothing.
CHECK = "check"


class Record(NamedTuple):
    """One record as a reader gets it; the topic without the prefix."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


@dataclass
class Sinks:
    """Both sinks on the shared broker, each way into topics of its own."""

    spark: SparkSession
    servers: str
    folder: Path
    name: str = field(default_factory=lambda: fresh_name("rows"))
    _read: Counter[tuple[str, int]] = field(default_factory=Counter)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def prefix(self, way: str) -> str:
        return f"{self.name}-{way}-"

    def write(self, frame: Frame, way: str, **more: str) -> str | None:
        """Write the frame; return the text of the error, None without one."""
        number = next(self._numbers)
        folder = self.folder / f"frame-{number}"
        frame.write(folder)
        try:
            self._run(
                frame.read(self.spark, folder, self.prefix(way), way in (SPARKS_STREAM, STREAM, FOREACH)),
                frame,
                way,
                number,
                more,
            )
        except Exception as e:
            return str(e)
        return None

    def _run(self, df: Any, frame: Frame, way: str, number: int, more: dict[str, str]) -> None:
        options = {"kafka.bootstrap.servers": self.servers, "kafka.max.block.ms": "1500", **more}
        if not frame.names_topic:
            options["topic"] = f"{self.prefix(way)}{TOPICS[0]}"
        if way in (BATCH, STREAM, FOREACH, CHECK):
            options["sink.id"] = f"{self.prefix(way)}{number}"
        if way == CHECK:
            exactly_once.check(df, {**options, "write.id": "1"})
            return
        if way in (SPARKS, BATCH):
            named = {"write.id": "1"} if way == BATCH else {}
            df.write.format(_format(way)).options(**options, **named).mode("append").save()
            return
        options["checkpointLocation"] = str(self.folder / f"checkpoint-{number}")
        if way == FOREACH:
            writer = df.writeStream.foreachBatch(exactly_once.foreach_batch(options))
            writer = writer.option("checkpointLocation", options["checkpointLocation"])
        else:
            writer = df.writeStream.format(_format(way)).options(**options)
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(60), "the query does not end"

    def new(self, way: str, topics: tuple[str, ...] = TOPICS) -> list[Record]:
        """Return what a read_committed reader sees that this did not return before."""
        if way == CHECK:
            return []
        prefix = self.prefix(way)
        settings = {"isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False}
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "none", "log_level": 0, **settings})
        places = [(f"{prefix}{topic}", partition) for topic in topics for partition in range(PARTITIONS)]
        consumer.assign([TopicPartition(*place, self._read[place]) for place in places])
        found: list[Record] = []
        ended = set[tuple[str, int]]()
        while len(ended) < len(places):
            message = consumer.poll(20)
            assert message is not None, f"the reader waits at {set(places) - ended}"
            place = str(message.topic()), message.partition() or 0
            if message.error():
                ended.add(place)
                continue
            self._read[place] = (message.offset() or 0) + 1
            headers = tuple(message.headers() or ())
            at = place[0].removeprefix(prefix), place[1]
            found.append(Record(*at, message.key(), message.value(), headers, message.timestamp()[1]))  # type: ignore[arg-type]
        consumer.close()
        return found


def _format(way: str) -> str:
    return "kafka" if way in (SPARKS, SPARKS_STREAM) else "kafka_exactly_once"


@pytest.fixture(scope="module")
def sinks(spark: SparkSession, bootstrap_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Sinks:
    exactly_once.register(spark)
    made = Sinks(spark, bootstrap_servers, tmp_path_factory.mktemp("frames"))
    ways = SPARKS, SPARKS_STREAM, BATCH, STREAM, FOREACH, CHECK
    topics = [f"{made.prefix(way)}{topic}" for way in ways for topic in (*TOPICS, DEAD)]
    create_topics(bootstrap_servers, dict.fromkeys(topics, PARTITIONS), ANY_TIME)
    return made


# -- what must be there -----------------------------------------------------------------------------------------------


def as_bytes(cell: str | bytes | None) -> bytes | None:
    return cell.encode() if isinstance(cell, str) else cell


def content(records: list[Record]) -> Counter[Any]:
    """All that both sinks write of a record; the partition where a key decides over it."""
    return Counter((r.topic, r.key, r.value, r.headers, None if r.key is None else r.partition) for r in records)


def assert_rows(frame: Frame, found: list[Record], began: float) -> None:
    """Assert that ``found`` is what the rows say: all fields, with the times and partitions that they chose."""
    times: dict[Any, list[int | None]] = defaultdict(list)
    partitions: dict[Any, Counter[int]] = defaultdict(Counter)
    for row in frame.records():
        headers = tuple((h["key"], h["value"]) for h in row.get("headers") or ())
        topic = row["topic"] if frame.names_topic else TOPICS[0]
        said = topic, as_bytes(row.get("key")), as_bytes(row["value"]), headers
        us = row.get("timestamp")
        times[said].append(None if us in (None, -1000) else us // 1000)
        if row.get("partition") is not None:
            partitions[said][row["partition"]] += 1
    seen: dict[Any, list[Record]] = defaultdict(list)
    for r in found:
        seen[r.topic, r.key, r.value, r.headers].append(r)
    assert seen.keys() == times.keys()
    for said, records in seen.items():
        chosen = Counter(ms for ms in times[said] if ms is not None)
        there = Counter(r.timestamp_ms for r in records)
        assert len(records) == len(times[said]) and chosen <= there, f"{said}: {there} instead of {chosen}"
        assert all(began <= ms / 1000 <= time.time() for ms in (there - chosen)), f"{said}: {there - chosen}"
        assert partitions[said] <= Counter(r.partition for r in records)


def names_a_column(text: str, frame: Frame) -> bool:
    """Whether the error is one of this sink's that names a column of the frame, or the column that is missing."""
    sentence = sentence_in(text) or ""
    return any(re.search(rf"column '{name}'|columns are named {name}\b", sentence) for name in OF_RECORD)


def assert_same_or_refused(sinks: Sinks, frame: Frame, way: str, theirs: str | None, expected: Counter[Any]) -> None:
    """Assert that this way in writes what Spark's sink wrote, or is a refusal that names a column."""
    ours = sinks.write(frame, way)
    found = sinks.new(way)
    if ours is None:
        assert theirs is None, f"{way} writes {frame}, and Spark's sink fails: {theirs[:500]}"
        assert content(found) == expected, frame
    else:
        assert code_in(ours) in ("EO-SCHEMA", "EO-RECORD") and names_a_column(ours, frame), f"{frame}: {ours[:1500]}"
        assert not found, f"{way} refuses {frame}, and writes {found}"


# -- the tests --------------------------------------------------------------------------------------------------------


def both_write(sinks: Sinks, seed: int, *ways: str) -> None:
    frame, began = draw(seed), time.time() - 1
    theirs = SPARKS_STREAM if SPARKS_STREAM in ways else SPARKS
    assert sinks.write(frame, theirs) is None, frame
    expected = content(sinks.new(theirs))
    for way in ways:
        if way != theirs:
            assert sinks.write(frame, way) is None, f"{way}: {frame}"
            found = sinks.new(way)
            assert content(found) == expected, f"{way}: {frame}"
            assert_rows(frame, found, began)


@pytest.mark.quick("2")
@pytest.mark.parametrize("seed", range(FEW))
def test_a_batch_is_what_sparks_sink_writes(seed: int, sinks: Sinks) -> None:
    """Guards against a row that becomes another record on the day of the switch, without a word."""
    both_write(sinks, seed, BATCH)


@pytest.mark.quick("4")
@pytest.mark.parametrize("seed", range(FEW, FEW + 2))
def test_a_stream_is_what_sparks_sink_writes_by_both_ways_in(seed: int, sinks: Sinks) -> None:
    """Guards against a row that becomes another record by one of the two ways in."""
    both_write(sinks, seed, STREAM, FOREACH)


@pytest.mark.quick("1", "4")
@pytest.mark.parametrize("seed", range(2 * FEW))
def test_columns_that_are_there_twice_or_wrong_are_written_as_by_sparks_sink_or_named(seed: int, sinks: Sinks) -> None:
    """Guards against a column that is chosen of two, or passed over, without a word."""
    frame = draw_columns(seed)
    theirs = sinks.write(frame, SPARKS)
    expected = content(sinks.new(SPARKS))
    assert_same_or_refused(sinks, frame, BATCH, theirs, expected)
    assert_same_or_refused(sinks, frame, CHECK, theirs, Counter())


@pytest.mark.quick("0")
@pytest.mark.parametrize("seed", range(2 * FEW))
def test_a_row_of_which_no_record_can_be_made_is_refused_by_its_column(seed: int, sinks: Sinks) -> None:
    """Guards against a row that is changed until it fits, and against a refusal that nobody can act on."""
    frame = draw_bad(seed)
    theirs = sinks.write(frame, SPARKS)
    expected = content(sinks.new(SPARKS))
    assert_same_or_refused(sinks, frame, BATCH, theirs, expected)


@pytest.mark.long
@pytest.mark.parametrize("way", [STREAM, FOREACH])
def test_a_stream_of_two_columns_of_one_name_is_refused_before_anything_is_written(way: str, sinks: Sinks) -> None:
    """Guards against a join whose other value is written; and, by foreach_batch, against an error of Spark's own that
    has no code. Columns that no record has may share a name.
    """
    twice = Frame((("value", "text"), ("key", "text"), ("value", "text")), (("order", "k", "ref"),), False)
    text = sinks.write(twice, way) or ""
    assert code_in(text) == "EO-SCHEMA" and "columns are named value. " in text, text
    assert "STREAM_FAILED" not in text or way == FOREACH, "start() itself has to refuse it"
    assert not sinks.new(way)
    others = Frame((("value", "text"), ("id", "long"), ("id", "long"), ("VALUE", "text")), (("v", 1, 2, "V"),), False)
    assert sinks.write(others, way) is None
    assert [r.value for r in sinks.new(way)] == [b"v"]


@pytest.mark.quick("stream")
@pytest.mark.parametrize("way", [STREAM, FOREACH])
def test_a_time_is_written_as_it_is_and_none_as_none(way: str, sinks: Sinks) -> None:
    """Guards against 1970-01-01 that becomes the present, and against a copied record without a time, which Spark's
    source gives the time -1, that stops the stream.
    """
    began = time.time() * 1000 - 1000
    times = {"one": 1000, "minus-one": -1000, "null": None}
    zero = Frame((("value", "text"), ("timestamp", "time")), (("zero", 0), *times.items()), False)
    text = sinks.write(zero, way)
    found = {r.value: r.timestamp_ms for r in sinks.new(way)}
    assert text is None
    assert (found[b"zero"], found[b"one"]) == (0, 1)
    assert found[b"minus-one"] > began and found[b"null"] > began


@pytest.mark.quick(FOREACH)
@pytest.mark.parametrize("way", [STREAM, FOREACH])
def test_with_a_dead_letter_topic_each_row_is_a_record_or_a_letter(way: str, sinks: Sinks) -> None:
    """Guards against a bad row that takes a good one with it, and against one that is written after all."""
    columns = (("value", "text"), *((name, OF_RECORD[name][0]) for name in BAD))
    good = [(f"good-{n}", *(GOOD[name][n % len(GOOD[name])] for name in BAD)) for n in range(12)]
    bad = [
        (f"bad-{name}-{n}", *(cell if other == name else GOOD[other][0] for other in BAD))
        for name, cells in BAD.items()
        for n, cell in enumerate(cells)
    ]
    began = time.time() - 1
    frame = Frame(columns, (*good, *bad), True)
    assert sinks.write(frame, way, **{"sink.dead.letter.topic": f"{sinks.prefix(way)}{DEAD}"}) is None
    assert_rows(Frame(columns, tuple(good), True), sinks.new(way), began)
    assert sorted(r.value or b"" for r in sinks.new(way, (DEAD,))) == sorted(row[0].encode() for row in bad)


@pytest.mark.long
def test_a_letter_that_was_refused_for_its_schema_header_is_sent_again_without_it(
    sinks: Sinks, connection: Connection
) -> None:
    """Guards against a letter whose value has the sink's schema id, and which readers decode by the input's."""
    said = {"code": "EO-RECORD", "message": "a row (key 'k') has the header __value_schema_id", "output.topic": "x"}
    own = [("h", b"1"), ("__value_schema_id", b"2"), ("__key_schema_id", b"3")]
    dead, output = (create_topic(sinks.servers, partitions=1) for _ in range(2))
    producer = Producer({"bootstrap.servers": sinks.servers})
    ours = [(f"{error_headers.PREFIX}{name}", text.encode()) for name, text in said.items()]
    producer.produce(dead, b"\0\0\0\0\7x", b"k", headers=[*own, *ours])
    producer.flush()
    with Admin(connection) as admin:
        marks = admin.watermarks(dead)
    piece = RejectedSpan(0, OffsetSpan(0, 1))
    options = {"sink.id": output, "write.id": "1", **connection.spark()}
    rows = to_send(rejected_rows(sinks.spark, connection, dead, piece, marks), output, (), False, None, True)
    rows.write.format("kafka_exactly_once").mode("append").options(**options).save()
    [sent] = oracle.read(connection, [output])
    assert (sent.value, sent.headers) == ("\0\0\0\0\7x", (("h", b"1"), ("__key_schema_id", b"3")))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 100 + MANY))
def test_many_frames_by_every_way_in(seed: int, sinks: Sinks) -> None:
    """The same as above, over more seeds, and with Spark's own stream."""
    both_write(sinks, seed, SPARKS_STREAM, BATCH, STREAM, FOREACH)
    for frame in (draw_columns(seed), draw_bad(seed)):
        theirs = sinks.write(frame, SPARKS)
        expected = content(sinks.new(SPARKS))
        for way in (BATCH, STREAM, FOREACH):
            assert_same_or_refused(sinks, frame, way, theirs, expected)
