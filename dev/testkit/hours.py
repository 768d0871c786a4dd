"""A code location with a stream that closes hours; ``python -m testkit.hours JOB [CONFIG]`` runs one of its jobs.

With :data:`SOON`, Spark reports after 0.2 s that a query waits, not after 10 s, and keeps no report. A run leaves the
file ``waits-for-<batch>`` in its folder when its query has reported that.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from dagster_exactly_once import Checks, Complete, exactly_once_stream
from dagster_exactly_once.streaming import supervisor
from testkit.location import located, run_of

if TYPE_CHECKING:
    import dagster as dg

VISITS, COUNTED = "hours.visits", "visits_counted"

#: Settings of the run's session, for its environment.
SOON = (
    '{"spark.sql.streaming.noDataProgressEventInterval": "200ms", "spark.sql.streaming.numRecentProgressUpdates": "1"}'
)


@exactly_once_stream(
    source=VISITS, outputs=COUNTED, complete=Complete.hourly("2026-01-31"), checks=Checks(), output_partitions=1
)
def visits(events: DataFrame) -> DataFrame:
    """Visits, which are their times."""
    from pyspark.sql import functions as F

    at = F.to_timestamp(F.col("value").cast("string"))
    rows = events.withColumn("at", at).withWatermark("at", "0 seconds")
    return rows.observe("read", F.count(F.lit(1)).alias("read")).select("key", "value")


def definitions() -> dg.Definitions:
    """Return the code location."""
    return located(visits)


def note_waiting() -> None:
    """Have this process's runs note what their queries wait for."""
    collect = supervisor.Supervisor._collect

    def noted(self: supervisor.Supervisor[Any], query: Any, seen: int) -> int:
        last = query.lastProgress
        if last is not None and "addBatch" not in last["durationMs"]:
            (Path(os.environ["EXACTLY_ONCE_RUN_DIR"]) / f"waits-for-{last['batchId']}").touch()
        return collect(self, query, seen)

    supervisor.Supervisor._collect = noted  # type: ignore[method-assign]


if __name__ == "__main__":
    note_waiting()
    sys.exit(run_of(definitions(), *sys.argv[1:]))
