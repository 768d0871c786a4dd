"""A batch write whose rows come from a read of Kafka without an end in numbers: each task asks for the end itself."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

import exactly_once
from exactly_once.kafka.connection import Connection
from testkit import broker as brokers


@pytest.mark.quick("False-none", "False-latest")
@pytest.mark.parametrize("ends", ["none", "latest", "a number that means it", "numbers"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_check_warns_of_a_read_whose_repeat_has_other_rows(
    spark: Any, connection: Connection, caplog: pytest.LogCaptureFixture, ends: str, cached: bool
) -> None:
    """Mishap: a lost part cannot be written again, since its rows are others; or rows are left out between two writes
    that follow each other.
    """
    topic, other = (brokers.create_topic(connection.bootstrap_servers, partitions=2) for _ in range(2))
    reader = spark.read.format("kafka").options(**connection.spark(), subscribe=topic)
    ending = {"latest": "latest", "numbers": offsets(topic, 0, 0), "a number that means it": offsets(topic, 0, -1)}
    if ends != "none":
        reader = reader.option("endingOffsets", ending[ends])
    rows = reader.load().selectExpr("key", "value").where("key IS NOT NULL").union(spark.sql("SELECT X'61', X'62'"))
    if cached:
        rows = rows.cache()
    options = {**connection.spark(), "sink.id": brokers.fresh_name("unbounded"), "topic": other, "write.id": "day"}
    with caplog.at_level(logging.WARNING):
        exactly_once.check(rows, options)
    said = [record.getMessage() for record in caplog.records if "EO-WARN-UNBOUNDED" in record.getMessage()]
    assert [topic in text for text in said] == ([] if ends == "numbers" else [True])


def test_a_check_of_a_stream_or_of_other_rows_warns_of_no_read(
    spark: Any, connection: Connection, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    """Mishap: each stream has the warning, so that nobody reads it where it matters."""
    topic, other = (brokers.create_topic(connection.bootstrap_servers, partitions=2) for _ in range(2))
    to = {**connection.spark(), "sink.id": brokers.fresh_name("bounded"), "topic": other}
    stream = spark.readStream.format("kafka").options(**connection.spark(), subscribe=topic).load()
    with caplog.at_level(logging.WARNING):
        exactly_once.check(stream.select("key", "value"), {**to, "checkpointLocation": str(tmp_path / "checkpoint")})
        exactly_once.check(spark.sql("SELECT 'a' key, 'b' value"), {**to, "write.id": "day"})
    assert "EO-WARN-UNBOUNDED" not in caplog.text


def offsets(topic: str, *ends: int) -> str:
    return json.dumps({topic: {str(p): end for p, end in enumerate(ends)}})
