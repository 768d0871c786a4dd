"""Modes of the sink: the weaker guarantees; continuous and real-time mode, which are refused."""

from __future__ import annotations

from dataclasses import asdict

import pyspark
import pytest

from exactly_once.kafka.admin import Admin
from testkit.fixtures import Bench, KafkaInput
from testkit.processes import until
from testkit.stream import Job, SparkDriver


def high_watermarks(bench: Bench) -> dict[int, int]:
    with Admin(bench.connection) as admin:
        return {p: m.high for p, m in admin.watermarks(bench.topic).items()}


def test_a_query_that_changes_to_continuous_mode_is_refused(
    bench: Bench, kafka_input: KafkaInput, warm: SparkDriver
) -> None:
    """Guards against the loss of every row from then on, which a finished batch in the checkpoint must not hide."""
    kafka_input.fill(batches=1, rows=20)
    job = Job(**{**asdict(bench.job), "source": kafka_input.source(1000), "select": ["key", "value"]})
    warm.complete(job)
    before = high_watermarks(bench)
    kafka_input.fill(batches=1, rows=20)

    warm.run(Job(**{**asdict(job), "trigger": {"continuous": "1 second"}})).with_code("EO-MODE")
    assert high_watermarks(bench) == before


@pytest.mark.skipif(pyspark.__version__ < "4.2", reason="PySpark has a real-time mode from 4.2 on")
@pytest.mark.parametrize("existing", [False, pytest.param(True, marks=pytest.mark.long)])
def test_real_time_mode_is_refused(existing: bool, bench: Bench, kafka_input: KafkaInput, warm: SparkDriver) -> None:
    """Guards against batches whose range is written down after they ran: a replay would be another batch. Spark has a
    list of sinks that it allows there; with that check switched off, the sink itself refuses.
    """
    kafka_input.fill(batches=1, rows=20)
    job = Job(**{**asdict(bench.job), "source": kafka_input.source(1000), "select": ["key", "value"]})
    if existing:
        warm.complete(job)
    before = high_watermarks(bench)
    real_time = Job(**{**asdict(job), "trigger": {"realTime": "5 seconds"}, "output_mode": "update"})
    assert "the sink allowlist" in (warm.run(real_time).failure or "")
    warm.ask("conf", name="spark.sql.streaming.realTimeMode.allowlistCheck", value="false")
    try:
        refused = warm.run(real_time).failure or ""
        # Spark 4.2 names one thing that the sink has not, Spark 4.3 looks for another one first
        assert "not support Update mode" in refused or "not support async progress" in refused
        append = Job(**{**asdict(real_time), "output_mode": "append"})
        assert "OUTPUT_MODE_NOT_SUPPORTED" in (warm.run(append).failure or "")
    finally:
        warm.ask("unset", name="spark.sql.streaming.realTimeMode.allowlistCheck")
    assert high_watermarks(bench) == before


@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_a_weaker_guarantee_writes_every_row_and_neither_claims_nor_decides(
    guarantee: str, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against rows that wait in a producer when their query ends (loss), and against the price of a commit log
    where nobody asked for one.
    """
    bench.complete(warm, bench.job.having(sink_guarantee=guarantee), batches=2)
    until("all rows", lambda: len(bench.visible()) >= len(bench.input.expected()), 20)
    assert sorted(bench.visible()) == sorted(bench.input.expected())
    assert bench.log().owner is None and bench.open_parts() == 0
