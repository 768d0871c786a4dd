"""What the parts of a write say of attempts that Spark gave up: the driver sweeps by it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from exactly_once.coordinator.batch_write import WriteCoordinator
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.ticket import Part
from testkit import oracle
from testkit.broker import fresh_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_part_of_a_stage_that_is_run_again_says_that_an_attempt_was_given_up(
    spark: SparkSession, connection: Connection, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a transaction that holds readers back: a stage that is run again counts its attempts from 0, so by
    these numbers nothing has happened, and the driver would not look for what the first run left open.
    """
    again: list[bool] = []
    commit = WriteCoordinator.commit

    def noted(self: WriteCoordinator, parts: Any, batch_id: int) -> Any:
        again.extend(part.again for part in parts if isinstance(part, Part))
        return commit(self, parts, batch_id)

    monkeypatch.setattr(WriteCoordinator, "commit", noted)
    store = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().blockManager().diskBlockManager()  # type: ignore[union-attr]
    folders, lost = [str(f) for f in store.localDirsString()], tmp_path / "lost"

    def lose(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        yield from batches
        try:
            lost.touch(exist_ok=False)
        except FileExistsError:
            return
        for folder in folders:
            for file in Path(folder).rglob("shuffle_*"):
                file.unlink(missing_ok=True)

    rows = spark.range(60).selectExpr("CAST(id AS STRING) AS value").repartition(6, "value")
    options = {**connection.spark(), "topic": topic, "sink.id": fresh_name("sink"), "write.id": "w1"}
    rows.mapInPandas(lose, "value STRING").write.format("kafka_exactly_once").options(**options).mode("append").save()
    assert sorted(set(again)) == [False, True] and len(again) == 6
    found = oracle.read(connection, [topic])
    assert sorted(int(m.value) for m in found) == list(range(60))
