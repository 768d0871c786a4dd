"""Which topics a row may name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType

from exactly_once.errors import InvalidOption, InvalidRecord
from exactly_once.options import SinkOptions
from exactly_once.protocol.names import commit_log_topic
from exactly_once.protocol.topics import TopicRule
from exactly_once.spark.columns import columns_of
from tests.unit.spark.test_columns import schema, send

OPTIONS = {"sink.id": "s", "kafka.bootstrap.servers": "h:1", "checkpointLocation": "/c"}


#: Topics that no sink may write to, and why. These tables are tried in Java, too (test_java_classes.py).
REFUSED = [
    (commit_log_topic("s"), "commit log"),
    (commit_log_topic("eo.x.commit-log"), "commit log"),
    ("__consumer_offsets", "Kafka's own"),
    ("__", "Kafka's own"),
    ("", "not a name"),
    (".", "not a name"),
    ("..", "not a name"),
    ("a b", "not a name"),
    ("a\nb", "not a name"),
    ("x" * 250, "not a name"),
    ("caf\u00e9", "not a name"),
]

TAKEN = ["t", "_t", "...", "eo.s", "eo.s.commit-logs", "a.commit-log", "x" * 249]

#: ``sink.topics.allowed``, a topic that it takes, and one that it refuses.
ALLOWED = [
    ("orders", "orders", "orders2"),
    ("orders_*, audit", "orders_eu", "orders"),
    ("orders_*, audit", "audit", "audits"),
    ("*.out", "a.b.out", "aXout"),
    ("a.*.b*", "a..b", "a.b"),
]


@pytest.mark.parametrize(("topic", "why"), REFUSED)
def test_no_sink_may_write_to_a_commit_log_or_a_topic_of_kafka_s_own(topic: str, why: str) -> None:
    """Loss: a row that forges a claim or a decision of any sink."""
    assert why in str(TopicRule().refusal(topic))
    with pytest.raises(InvalidOption, match=why):
        SinkOptions.parse({**OPTIONS, "topic": topic or " "})


@pytest.mark.parametrize("topic", TAKEN)
def test_every_other_topic_may_be_written(topic: str) -> None:
    assert TopicRule().refusal(topic) is None


@pytest.mark.parametrize(("allowed", "taken", "refused"), ALLOWED)
def test_a_sink_writes_to_no_topic_but_those_that_are_allowed(allowed: str, taken: str, refused: str) -> None:
    """A wrong expression for the topic: rows in a stranger's topic, which no rollback of a later day takes back."""
    rule = SinkOptions.parse({**OPTIONS, "sink.topics.allowed": allowed}).topics
    assert rule.refusal(taken) is None
    assert f"is not among sink.topics.allowed={','.join(a.strip() for a in allowed.split(','))}" in str(
        rule.refusal(refused)
    )


@pytest.mark.parametrize("allowed", ["a b", "orders_*,caf\u00e9", "x" * 250])
def test_a_pattern_that_matches_no_topic_is_refused_at_start(allowed: str) -> None:
    with pytest.raises(InvalidOption, match="matches no topic"):
        TopicRule.parse(allowed)


def test_the_row_that_names_a_refused_topic_is_named_and_nothing_of_its_arrow_batch_is_sent() -> None:
    """One row among millions: without its key nobody finds it. Of foreach_batch alone, which checks an Arrow batch as a
    whole: Java checks row by row, so under a weaker guarantee the rows before the refused one stay in the output.
    """
    columns = columns_of(schema(value=StringType(), key=BinaryType(), topic=StringType()), None)
    rows = {
        "value": pa.array(["a", "b", "c"]),
        "key": pa.array([b"k1", b"k2", b"k3"]),
        "topic": pa.array(["t", "t", commit_log_topic("victim")]),
    }
    sent: list[object] = []

    class Refusing:
        def send(self, topic: str, *row: object) -> None:
            sent.append(topic)

    with pytest.raises(InvalidRecord, match=r"key b'k3'.*eo\.victim\.commit-log.*log of a sink"):
        columns.send(pa.record_batch(rows), Refusing())  # type: ignore[arg-type]
    assert not sent


@pytest.mark.parametrize("topic", [b"\xff\xfe", b"", b"a b", b"x" * 250])
def test_a_topic_that_kafka_does_not_allow_is_a_refused_row_with_its_key_and_no_crash(topic: bytes) -> None:
    """Wedge: a UnicodeDecodeError, or a refusal of the broker that names no row."""
    lengths = np.array([0, 1, 1 + len(topic)], np.int32)
    raw = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(lengths), pa.py_buffer(b"t" + topic)])
    columns = columns_of(schema(value=StringType(), key=BinaryType(), topic=StringType()), None)
    with pytest.raises(InvalidRecord, match=r"a row \(key b'k2'\) names the topic .*not a name .*Kafka allows"):
        send(columns, value=pa.array(["a", "b"]), key=pa.array([b"k1", b"k2"]), topic=raw)


def test_a_list_without_a_topic_is_refused_and_does_not_allow_everything() -> None:
    """Guards against a comma that was left when the last topic went: every topic would be allowed, without a word."""
    with pytest.raises(InvalidOption, match=r"sink\.topics\.allowed names no topic"):
        TopicRule.parse(" , ")
