"""``verify`` by Spark says of each stream what the one process says, in its words."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka.structs import TopicPartition

import exactly_once
from exactly_once.error_headers import CODE, OFFSET, PARTITION, RESENT, TOPIC
from exactly_once.errors import InvalidOption
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.tools.verify.by_origin import counts
from exactly_once.tools.verify.by_origin.ledger import ComparisonResult
from exactly_once.tools.verify.by_origin.origin import PerInput
from exactly_once.tools.verify.on_spark.origins import on_spark
from testkit.traced import Row, Traced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def stream(connection: Connection, tmp_path: Path) -> Traced:
    return Traced(connection, tmp_path)


def both(stream: Traced, spark: SparkSession, **asked: Any) -> ComparisonResult:
    """Return what either finds, which is the same."""
    here = stream.compared(settle_s=0.2, **asked)
    stream.elsewhere = on_spark(spark)
    there = stream.compared(settle_s=0.2, **asked)
    stream.elsewhere = None
    for one, other in zip(here.findings, there.findings, strict=False):
        assert one == other
    assert there == here
    return here


def damage(stream: Traced) -> None:
    """Plant one of each."""
    first = stream.batch(40)
    stream.feed(4, commit=False)
    rows = stream.rows(stream.feed(40))
    swapped = [n for n, row in enumerate(rows) if row.key == rows[0].key and row.source and "-0-" in row.source][:2]
    rows[swapped[0]], rows[swapped[1]] = rows[swapped[1]], rows[swapped[0]]
    stream.write(rows[:20])
    stream.write(rows[22:])  # two are lost
    stream.decide()
    rejected = stream.rows(stream.feed(3))
    headers = ((CODE, b"EO-TRANSFORM"), (TOPIC, stream.input.encode()))
    for row in rejected:
        _, partition, offset = str(row.source).rsplit("-", 2)
        said = (*headers, (PARTITION, partition.encode()), (OFFSET, offset.encode()))
        stream.write([row._replace(source=None, headers=said)])
    stream.decide()
    stream.write([rejected[0], first[3], first[3], first[7]._replace(headers=((RESENT, b"elsewhere-0-1"),))])
    stream.write(
        [Row(1, "k", text) for text in (None, "nonsense", f"{stream.input}-7-0", f"{stream.input}-0-999", "x-0-1")]
    )
    late = stream.rows(stream.feed(4))
    stream.write([*late[:2], late[0]])
    stream.decide(complete=False)


@pytest.mark.long
def test_what_is_planted_is_found_by_spark_as_by_the_one_process(
    stream: Traced, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proof at the size of the data that sees less than the small one, or cries where that is quiet; or one that
    needs a Python on the executors.
    """
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/nonexistent/python")
    damage(stream)
    result = both(stream, spark, refuse_foreign=True)
    kinds = {f.anomaly.value for f in result.findings}
    assert kinds == {"lost", "torn batch", "duplicate", "phantom", "key reorder"} and result.unproven
    assert result.counts["under way"] == 2 and result.counts["foreign"] == 3


@pytest.mark.long
def test_a_clean_stream_is_clean_and_nothing_of_it_comes_to_the_driver(
    stream: Traced, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records through one process after all: it would take as long, and as much memory."""
    monkeypatch.setattr(counts, "BLOCK", 64)
    for _ in range(3):
        stream.batch(150)
    seen, left = [], on_spark(spark)

    def watched(of: Any) -> Any:
        found = left(of)
        seen.extend(found.arrivals)
        return replace(found, arrivals=seen)

    stream.elsewhere = watched
    result = stream.compared(settle_s=15)
    stream.elsewhere = None
    assert result.findings == () and result.unproven == {} and seen == []
    assert result.counts["input"] == result.counts["output"] == 450
    stream.write(stream.rows([(0, 100, "k0")]))
    assert "duplicate" in {f.anomaly.value for f in both(stream, spark).findings}


@pytest.mark.long
@pytest.mark.parametrize(
    ("outputs", "order"),
    [("1", "partition"), ("2", "key"), ("at-most-1", "none"), ("at-most-3", "key"), ("any", "key")],
)
def test_whatever_is_asked_both_find_the_same(
    stream: Traced, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, order: str, outputs: str
) -> None:
    """Blocks of a few records: each damage stands beside blocks that are right."""
    monkeypatch.setattr(counts, "BLOCK", 32)
    damage(stream)
    both(stream, spark, order=order, outputs=PerInput.parse(outputs))
    if outputs == "1":
        both(stream, spark, order=order, last=30)


@pytest.mark.long
@pytest.mark.parametrize("outputs", ["2", "at-most-5", "any"])
def test_numbered_outputs_are_told_apart_by_both(
    stream: Traced, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, outputs: str
) -> None:
    monkeypatch.setattr(counts, "BLOCK", 256)
    of_each = min(PerInput.parse(outputs).most or 4, 4)

    def numbered(rows: list[Row]) -> list[Row]:
        return [row._replace(source=f"{row.source}#{k}") for row in rows for k in range(of_each)]

    for _ in range(3):
        stream.write(numbered(stream.rows(stream.feed(40))))
        stream.decide()
    rows = numbered(stream.rows(stream.feed(20)))
    stream.write([*rows[:30], *rows[31:], rows[5], rows[6]._replace(source=str(rows[6].source).replace("#", "#7"))])
    stream.decide()
    result = both(stream, spark, outputs=PerInput.parse(outputs))
    assert {"duplicate"} <= {f.anomaly.value for f in result.findings}
    stream.write(stream.rows([(0, 3, "k0")]))
    for stream.elsewhere in (None, on_spark(spark)):
        with pytest.raises(InvalidOption, match=r"ends in no #k, .* ended in #k"):
            stream.compared(outputs=PerInput.parse(outputs))


@pytest.mark.long
def test_what_retention_removed_is_said_by_both_alike(stream: Traced, spark: SparkSession) -> None:
    stream.batch(40)
    stream.batch(40)
    rows = stream.rows(stream.feed(20))
    stream.write(rows[1:])
    stream.decide()
    with Admin(stream.connection) as admin:
        admin.client.delete_records({TopicPartition(stream.output, 0): 25, TopicPartition(stream.input, 1): 7})
    result = both(stream, spark)
    assert {"lost", "torn batch"} == {f.anomaly.value for f in result.findings} and result.unproven


@pytest.mark.long
@pytest.mark.parametrize("origin", ["key", "json:meta.src"])
def test_an_origin_that_stands_elsewhere_is_read_by_both(stream: Traced, spark: SparkSession, origin: str) -> None:
    rows = stream.rows(stream.feed(30))

    def said(row: Row, text: str) -> Row:
        if origin == "key":
            return row._replace(key=text, source=None)
        topic, partition, offset = str(row.source).rsplit("-", 2)
        place = {"topic": topic, "partition": int(partition), "offset": int(offset)}
        field = place if row.partition else text
        values = {
            "value": text,
            "json:src": json.dumps({"src": field}),
            "json:meta.src": json.dumps({"meta": {"src": field}}),
        }
        return row._replace(value=values[origin], source=None)

    stream.write([said(row, str(row.source)) for row in [*rows[2:], rows[9]]])
    stream.write(
        [Row(1, "k", None), Row(1, "k", None, '{"src": null}'), Row(1, "k", None, "{"), Row(2, "k", None, '{"a": 1}')]
    )
    stream.decide()
    result = both(stream, spark, origin=origin, order="none")
    assert {f.anomaly.value: f.records for f in result.findings if f.anomaly.value == "duplicate"} == {"duplicate": 1}


def test_spark_is_refused_where_it_has_nothing_to_compare(stream: Traced, spark: SparkSession) -> None:
    stream.batch(2)
    with pytest.raises(InvalidOption, match="no origin is given"):
        exactly_once.verify(stream.connection, stream.sink_id, spark=spark)


@pytest.mark.long
def test_the_command_and_the_function_give_the_same_report(stream: Traced, spark: SparkSession) -> None:
    """A report of Spark that lacks the commit log's half."""
    damage(stream)
    asked: dict[str, Any] = {"checkpoint": str(stream.location), "origin": "header:src", "settle_s": 0.0}
    here = exactly_once.verify(stream.connection, stream.sink_id, **asked).as_json()
    there = exactly_once.verify(stream.connection, stream.sink_id, **asked, spark=spark).as_json()
    command = [
        sys.executable,
        "-m",
        "exactly_once.tools.cli",
        "--bootstrap-servers",
        stream.connection.bootstrap_servers,
    ]
    command += ["verify", stream.sink_id, "--checkpoint", str(stream.location), "--origin", "header:src"]
    command += ["--settle", "0"]
    ran = subprocess.run([*command, "--spark", "local[1]", "--json"], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 1, ran.stderr
    for report in (here, there, reported := json.loads(ran.stdout)):
        for passing in ("took_s", "checked_ms", "diagnoses"):
            del report[passing]
    assert there == here == reported
