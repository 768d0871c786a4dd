"""The judge: what a reader of the output sees, read with kafka-python's consumer, which the sink does not use, and what
a reader of published files does.

The connection under it is also that of the sink's control plane, so test_verify_java.py holds it to Java's consumer.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from exactly_once.commitlog.commit_log import read_log
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import namespace
from exactly_once.txn.coordinators import list_transactions
from testkit.processes import until

#: Every state in which a transaction is not over.
UNFINISHED = ("Ongoing", "PrepareCommit", "PrepareAbort")


Row = tuple[str | None, str | None]


def in_files(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the JSON lines that an output of files has published in a folder; none that is staged."""
    files = folder.glob("batch=*/*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text("utf-8").split("\n") if line]


class Message(NamedTuple):
    """One record as a reader gets it."""

    topic: str
    partition: int
    offset: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


def read(
    connection: Connection, topics: Iterable[str], committed: bool = True, timeout_s: float = 30.0
) -> list[Message]:
    """Everything in ``topics``, partition by partition in order of offset.

    ``committed``: as a read_committed reader sees it now, which is up to the last stable offset.
    """
    consumer = KafkaConsumer(
        **connection.kafka_python(),
        group_id=None,
        isolation_level="read_committed" if committed else "read_uncommitted",
        auto_offset_reset="earliest",
        allow_auto_create_topics=False,
        enable_auto_commit=False,
        check_crcs=False,  # in pure Python it takes longer than all the rest, and the broker has checked them
    )
    try:
        ends = {}
        with Admin(connection) as admin:
            for topic in topics:
                for p, marks in admin.watermarks(topic).items():
                    end = marks.last_stable if committed else marks.high
                    if end > marks.low:
                        ends[TopicPartition(topic, p)] = end
        consumer.assign(list(ends))
        for tp in ends:
            consumer.seek_to_beginning(tp)
        found: list[Message] = []
        deadline = time.monotonic() + timeout_s
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            if time.monotonic() > deadline:
                raise AssertionError(f"the reader stands at {[(tp, consumer.position(tp)) for tp in ends]} of {ends}")
            for tp, records in consumer.poll(timeout_ms=200).items():
                found += [
                    Message(
                        r.topic,
                        r.partition,
                        r.offset,
                        r.key.decode() if r.key is not None else None,
                        r.value.decode() if r.value is not None else None,
                        tuple(r.headers),
                        r.timestamp,
                    )
                    for r in records
                    if r.offset < ends[tp]
                ]
        return sorted(found, key=lambda m: (m.topic, m.partition, m.offset))
    finally:
        consumer.close()


def assert_exactly(found: Sequence[Message], expected: Sequence[tuple[str, str]]) -> None:
    """``found`` holds each expected (key, value) once, nothing else, and the rows of each key in their order.

    Values are unique, so that what is lost, duplicated or made up can be named.
    """
    want: Counter[Row] = Counter(expected)
    have: Counter[Row] = Counter((m.key, m.value) for m in found)
    lost, extra = sorted((want - have).elements()), sorted((have - want).elements(), key=str)
    duplicated, made_up = [r for r in extra if r in want], [r for r in extra if r not in want]
    assert not (lost or extra), (
        f"{len(want)} expected, {len(found)} found; lost {len(lost)}: {lost[:5]}; duplicated {len(duplicated)}: "
        f"{duplicated[:5]}; never sent {len(made_up)}: {made_up[:5]}"
    )
    in_order, seen, partitions = defaultdict(list), defaultdict(list), defaultdict(set)
    for key, value in expected:
        in_order[key].append(value)
    for m in found:
        seen[m.key].append(m.value)
        partitions[m.key].add((m.topic, m.partition))
    for key, values in in_order.items():
        assert len(partitions[key]) == 1, f"key {key} is spread over {partitions[key]}"
        assert seen[key] == values, f"key {key} is out of order: {seen[key][:20]} instead of {values[:20]}"


def assert_settled(connection: Connection, sink_id: str, topics: Iterable[str], timeout_s: float = 5.0) -> None:
    """Assert that nothing of the sink is under way: no open transaction, no reader held back, no open decision."""
    with Admin(connection, timeout_s + 10) as admin:

        def is_settled() -> bool:  # the mark of the last batch is written while Spark ends the query
            under_way = list_transactions(admin, namespace(sink_id), UNFINISHED) or held_back(admin, topics)
            return not under_way and not read_log(connection, sink_id).open_decisions

        try:
            until("the sink to settle", is_settled, timeout_s)
        except AssertionError as e:
            raise AssertionError(
                f"{e}: open {list_transactions(admin, namespace(sink_id), UNFINISHED)}, held back "
                f"{held_back(admin, topics)}, decided and not completed {read_log(connection, sink_id).open_decisions}"
            ) from None


def held_back(admin: Admin, topics: Iterable[str]) -> dict[tuple[str, int], tuple[int, int]]:
    """Partitions on which read_committed readers do not reach the end: (last stable offset, high watermark)."""
    return {
        (topic, p): (m.last_stable, m.high)
        for topic in topics
        for p, m in admin.watermarks(topic).items()
        if m.last_stable < m.high
    }


def open_parts(connection: Connection, sink_id: str) -> int:
    """Return how many of the sink's parts hold a transaction open."""
    with Admin(connection) as admin:
        return len([x for x in list_transactions(admin, namespace(sink_id)) if not x.transactional_id.endswith(":log")])
