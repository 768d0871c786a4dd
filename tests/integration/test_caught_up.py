"""A run in mode caught_up ends when the input that was there at its start is processed, whatever options its sources
have.
"""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from dagster_exactly_once import KafkaTopic, exactly_once_stream
from dagster_exactly_once.streaming.query import QueryPlan, start_query
from exactly_once.kafka.connection import Connection
from testkit import broker as brokers
from testkit import oracle
from testkit.stream import PATIENCE_S

#: Spark holds back input of fewer records until its delay is over, which is a quarter of an hour unless one says so.
LEAST = {"minOffsetsPerTrigger": "80"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "sources"),
    [(LEAST, 1), ({**LEAST, "maxtriggerdelay": "1h"}, 1), (LEAST, 2)],
    ids=["least", "delay", "two-sources"],
)
def test_a_rest_below_the_least_batch_is_read_before_a_run_that_catches_up_ends(
    spark: Any, connection: Connection, tmp_path: Path, options: dict[str, str], sources: int
) -> None:
    """Mishap: the run ends green and materializes its outputs, with 50 of 250 records left in the input."""
    sink_id, out = brokers.fresh_name("caught-up"), brokers.create_topic(connection.bootstrap_servers, partitions=1)
    topics = [brokers.create_topic(connection.bootstrap_servers, partitions=1) for _ in range(sources)]
    producer, sent = Producer(connection.librdkafka()), []
    for topic in topics:
        for n in range(250):
            sent.append((topic, f"{topic}-{n}"))
            producer.produce(topic, f"{topic}-{n}", topic)
    assert producer.flush(30) == 0

    source = {f"input_{n}": KafkaTopic(topic, options=options) for n, topic in enumerate(topics)}
    stream = exactly_once_stream(name="rests", source=source, outputs=[out])(_union if sources > 1 else _same)
    plan = QueryPlan(stream, stream.sources, sink_id, str(tmp_path / "checkpoint"), 100 * sources, None, {})
    query = start_query(spark, connection, plan, lambda inputs: reduce(_union, inputs.values()).select("key", "value"))
    assert query.awaitTermination(PATIENCE_S) and query.exception() is None
    oracle.assert_exactly(oracle.read(connection, [out]), sent)
    read = [progress["numInputRows"] for progress in query.recentProgress]
    assert [rows for rows in read if rows] == [n * sources for n in (100, 100, 50)]  # the most that a batch may have


def _same(input_0: Any) -> Any:
    return input_0


def _union(input_0: Any, input_1: Any) -> Any:
    return input_0.union(input_1)
