"""A drop-in for Spark's own Kafka sink: the same rows become the same records."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import pytest

from testkit import oracle
from testkit.broker import create_topic
from testkit.fixtures import Bench
from testkit.oracle import Message
from testkit.stream import Job, SparkDriver

ROWS = 400
HEADERS = """if(n % 3 = 0, array(
    named_struct('key', 'number', 'value', cast(value as binary)),
    named_struct('key', 'twice', 'value', cast('x' as binary)),
    named_struct('key', 'twice', 'value', cast(null as binary))), null) headers"""


def number_rows(bench: Bench, columns: list[str], **options: str | None) -> Job:
    """A job over the numbers 0 to 399, in two batches of four parts, as the column ``n``."""
    if not bench.input.batches:
        for start in (0, ROWS // 2):
            quarter = ROWS // 8
            bench.input.add_rows(
                [[(str(n), "") for n in range(start + p * quarter, start + (p + 1) * quarter)] for p in range(4)]
            )
    numbers = {"transform": "testkit.transforms:selected", "arguments": {"columns": columns}}
    select = ["cast(split(value, '[|]')[0] as int) n", "split(value, '[|]')[0] value"]
    return Job(**{**asdict(bench.job.having(**options)), "select": select, **numbers})


def as_spark_writes(job: Job) -> Job:
    """The same job with Spark's own sink."""
    return Job(**{**asdict(job.having(sink_id=None)), "format": "kafka"})


def both(bench: Bench, warm: SparkDriver, columns: list[str], topics: bool = False) -> tuple[list[Any], list[Any]]:
    """What both sinks make of ``columns``: (ours, Spark's)."""
    theirs = create_topic(bench.connection.bootstrap_servers, f"{bench.topic}-spark", partitions=4)
    job = number_rows(bench, columns)
    warm.complete(job)
    warm.complete(as_spark_writes(job.having(topic=theirs, checkpointLocation=f"{bench.checkpoint}-spark")))
    ours = oracle.read(bench.connection, [bench.topic])
    return ours, oracle.read(bench.connection, [theirs])


def content(messages: list[Message]) -> Counter[Any]:
    """All that a record is, but its place; the partition where the row chose one, by its key or by number."""
    return Counter((m.key, m.value, m.headers, None if m.key is None else m.partition) for m in messages)


def test_keys_values_headers_and_the_partitions_of_keys_are_those_of_sparks_own_sink(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a changed record, and against a key whose new rows go to another partition than its old ones: its
    order would be lost on the day of the switch.
    """
    columns = [
        "case when n % 7 = 0 then null when n % 7 = 1 then '' else concat('schlüssel-', n % 100) end key",
        "case when n % 5 = 0 then null when n % 5 = 1 then '' else concat('wert ', n) end value",
        HEADERS,
    ]
    ours, theirs = both(bench, warm, columns)
    assert len(ours) == ROWS
    assert content(ours) == content(theirs)


@pytest.mark.long
def test_binary_keys_and_values_and_partitions_by_number_are_those_of_sparks_own_sink(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against bytes that are taken for text, and against a partition column that is not followed."""
    columns = [
        "if(n % 2 = 0, cast(concat('k', n) as binary), null) key",
        "cast(concat('v', n) as binary) value",
        "case when n % 3 = 0 then cast(n % 4 as int) end partition",
    ]
    ours, theirs = both(bench, warm, columns)
    assert content(ours) == content(theirs)
    placed = {m.value: m.partition for m in ours}
    assert all(placed[f"v{n}"] == n % 4 for n in range(0, ROWS, 3))


@pytest.mark.long
def test_the_option_topic_goes_before_the_column_as_with_sparks_own_sink(bench: Bench, warm: SparkDriver) -> None:
    """Guards against rows in a topic that the user has overridden."""
    warm.complete(number_rows(bench, ["'nowhere' topic", "value key", "value"]))
    assert len(bench.visible()) == ROWS


def test_what_belongs_to_a_row_stays_together_and_the_rows_of_a_key_keep_their_order(
    bench: Bench, warm: SparkDriver
) -> None:
    """Guards against columns that slip against each other by a row where some are null, and against a tombstone that
    overtakes the value it deletes, or is overtaken by it: over four parts of two batches, topics and partitions.
    """
    other = create_topic(bench.connection.bootstrap_servers, f"{bench.topic}-b", partitions=4)
    columns = [
        f"if(n % 7 = 0, '{other}', '{bench.topic}') topic",
        "if(n % 11 = 3, null, concat('k', (n % 200) div 50, '.', n % 7)) key",  # a key stays in one part of a batch
        "if(n % 5 = 0, null, value) value",
        "if(n % 7 = 1, 2, null) partition",
        "array(named_struct('key', 'n', 'value', cast(value as binary)),"
        " named_struct('key', 'n', 'value', if(n % 2 = 0, null, cast('' as binary)))) headers",
        "timestamp_millis(1000000000000 + n) timestamp",
    ]
    warm.complete(number_rows(bench, columns, topic=None))

    oracle.assert_settled(bench.connection, bench.sink_id, [bench.topic, other])
    assert set(bench.log().decisions[-1].topics) == {bench.topic, other}
    found = oracle.read(bench.connection, [bench.topic, other])
    rows = [(int(m.headers[0][1] or b"-1"), m) for m in found]
    assert sorted(n for n, _ in rows) == list(range(ROWS))
    for n, m in rows:
        assert m.topic == (other if n % 7 == 0 else bench.topic)
        assert m.key == (None if n % 11 == 3 else f"k{n % 200 // 50}.{n % 7}")
        assert m.value == (None if n % 5 == 0 else str(n))
        assert m.headers == (("n", str(n).encode()), ("n", None if n % 2 == 0 else b""))
        assert m.timestamp_ms == 1_000_000_000_000 + n
        assert n % 7 != 1 or m.partition == 2
    by_key: dict[str, list[tuple[int, Message]]] = {}
    for n, m in rows:
        if m.key is not None:
            by_key.setdefault(m.key, []).append((n, m))
    assert len(by_key) == 28
    for key, of_key in by_key.items():
        assert len({(m.topic, m.partition) for _, m in of_key}) == 1, key
        assert [n for n, _ in of_key] == sorted(n for n, _ in of_key), f"{key} is out of order"


def test_batches_and_parts_without_rows_open_no_transaction(bench: Bench, warm: SparkDriver) -> None:
    """Guards against the commit of an empty transaction, which the broker refuses, and against a batch that is never
    finished because it has nothing to commit.
    """
    bench.input.add_rows([[("a", "1")], [], [], [("b", "2")]])
    bench.input.add_rows([[("a", "filtered")], [("b", "filtered")], [], []])
    bench.input.add_rows([[("a", "3")], [], [("b", "4")], []])
    job = Job(**{**asdict(bench.job), "transform": "testkit.transforms:where"})
    job.arguments = {"condition": "value != 'filtered'"}

    warm.complete(job)

    bench.assert_exactly([row for row in bench.input.expected() if row[1] != "filtered"])
    assert [len(d.handles) for d in bench.log().decisions] == [2, 0, 2]
