"""A checkpoint and a sink that go on under another PySpark, in both directions, with a batch in flight each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from dagster_exactly_once.runs.failures import FailurePlace, diagnose
from exactly_once.kafka.connection import Connection
from testkit.stateful_oracle import Join, TransformWithState, Windows
from testkit.stream import NAMED_SOURCES, SparkDriver
from testkit.upgrades import FORMAT_2, NO_OTHERS, ROCKS, all_kinds, go_through, passed, stateful

UP = [("3.5.9", "all-prepared"), ("4.0.5", "decided"), ("4.1.4", "some-ended"), ("4.2.1", "all-ended"), ("4.3.0", "")]
DOWN = [
    ("4.3.0", "decided"),
    ("4.2.1", "all-prepared"),
    ("4.1.4", "some-ended"),
    ("4.0.5", "decided"),
    ("3.5.9", "all-ended"),
    ("4.3.0", ""),
]

Drivers = Callable[..., SparkDriver]


@pytest.mark.parametrize("steps", [UP, DOWN], ids=["up", "down"])
def test_each_kind_of_query_goes_on_under_another_spark(
    steps: list[tuple[str, str]], connection: Connection, tmp_path: Path, driver_on: Drivers
) -> None:
    """Mishap: a batch in flight while Spark is replaced is written twice, or not at all, or state begins anew."""
    streams = all_kinds(connection, tmp_path)
    go_through(streams, [(spark, point, partial(driver_on, spark)) for spark, point in steps])


@pytest.mark.parametrize(
    "steps",
    [
        [("4.0.5", "decided"), ("4.2.1", "all-prepared"), ("4.3.0", "some-ended"), ("4.1.4", "decided"), ("4.0.5", "")],
        [("4.1.4", "decided"), ("4.3.0", "all-prepared"), ("4.1.4", "")],
    ],
    ids=["windows", "transformWithState"],
)
def test_state_of_format_2_goes_on_under_another_spark_that_has_its_setting(
    steps: list[tuple[str, str]], connection: Connection, tmp_path: Path, driver_on: Drivers
) -> None:
    """Mishap: a batch that is drained reads the state of another try of it."""
    some = [
        stateful(connection, tmp_path, "windows", Windows(), conf=ROCKS | FORMAT_2),
        stateful(connection, tmp_path, "join", Join(), conf=ROCKS | FORMAT_2),
    ]
    if steps[0][0] >= "4.1":
        some = [stateful(connection, tmp_path, "transformWithState", TransformWithState(), conf=ROCKS | FORMAT_2)]
    go_through(some, [(spark, point, partial(driver_on, spark)) for spark, point in steps])


def test_state_of_format_2_is_named_where_its_setting_is_missing_or_spark_is_too_old(
    connection: Connection, tmp_path: Path, driver_on: Drivers
) -> None:
    """Mishap: a new checkpoint and sink id, which write all input again, where a setting is enough."""
    stream = stateful(connection, tmp_path, "windows", Windows(), conf=ROCKS | FORMAT_2)
    stream.complete(driver_on("4.0.5"), 2)
    stream.conf = NO_OTHERS | ROCKS
    for spark in ("4.0.5", "4.1.4", "3.5.9"):
        failure = stream.refused(driver_on(spark)).failure
        said = diagnose(RuntimeError(failure), FailurePlace(state_ids=lambda: True))
        print(f"{spark}: {said.code}: {said.sentence[:150]}")
        assert said.code == "SPARK-STATE-FORMAT"
    stream.conf |= FORMAT_2
    stream.complete(driver_on("4.3.0"))
    stream.assert_clean()


def test_named_sources_go_on_under_another_spark_and_an_older_one_refuses_them(
    connection: Connection, tmp_path: Path, driver_on: Drivers
) -> None:
    """Mishap: a Spark that does not know the names of sources reads one of them from its beginning."""
    stream = passed(connection, tmp_path)
    unnamed = stream.job
    stream.bench.job = replace(unnamed, source=unnamed.source | {"name": "orders"})
    for spark in ("4.3.0", "4.2.1", "4.3.0"):
        driver = driver_on(spark, conf=NAMED_SOURCES)
        stream.complete(driver)
        stream.hold(driver, "decided")
        driver.kill9()
    stream.bench.job = unnamed
    for spark in ("4.1.4", "3.5.9"):
        failure = stream.refused(driver_on(spark)).failure
        said = diagnose(RuntimeError(failure))
        print(f"{spark}: {said.code}: {said.sentence[:150]}")
        assert said.code == "SPARK-CHECKPOINT-NEWER"
    stream.bench.job = replace(unnamed, source=unnamed.source | {"name": "orders"})
    stream.complete(driver_on("4.3.0", conf=NAMED_SOURCES))
    stream.assert_clean()


def test_a_part_that_spark_3_5_decided_and_that_is_lost_is_written_again_by_4_3(
    connection: Connection, tmp_path: Path, driver_on: Drivers
) -> None:
    """Mishap: another Spark deals the rows otherwise among the parts, and writes rows that are there, or others."""
    stream = passed(connection, tmp_path)
    driver = driver_on("3.5.9")
    stream.complete(driver)
    stream.hold(driver, "decided")
    driver.kill9()
    decision = stream.bench.log().decisions[-1]
    stream.bench.abort_parts(decision, decision.transactions[1].part)
    stream.complete(driver_on("4.3.0"))
    print(f"rewritten: {[d.rewritten for d in stream.bench.log().decisions]}")
    stream.assert_clean()


def test_a_query_that_leans_on_ansi_off_goes_on_under_spark_4_with_it_off(
    connection: Connection, tmp_path: Path, driver_on: Drivers
) -> None:
    """Mishap: the rows that 3.5 decided are in the output, and the new query fails over them at each start."""
    stream = passed(connection, tmp_path)
    value = "string(coalesce(cast(cast(string(value) as int) as string), string(value))) value"
    stream.bench.job = replace(stream.job, select=["key", value])
    driver = driver_on("3.5.9")
    stream.complete(driver)
    stream.hold(driver, "decided")
    driver.kill9()
    newer = driver_on("4.3.0")
    assert "CAST_INVALID_INPUT" in str(stream.refused(newer).failure)
    stream.conf = {"spark.sql.ansi.enabled": "false"}
    stream.complete(newer)
    stream.assert_clean()
