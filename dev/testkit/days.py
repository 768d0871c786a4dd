"""A code location with a stream that has a backfill, and fails at a value that is no number; ``python -m testkit.days
FIRST LAST`` writes these days, and without arguments runs the stream to the end of its input.
"""

from __future__ import annotations

import sys

import dagster as dg
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dagster_exactly_once import Backfill, exactly_once_stream
from testkit.shop import located

ROOMS, MEASURED, SINCE = "days.rooms", "rooms_measured", "2026-01-01"


@exactly_once_stream(source=ROOMS, outputs=MEASURED, backfill=Backfill.daily(SINCE), output_partitions=1)
def rooms(events: DataFrame) -> DataFrame:
    """Temperatures."""
    degrees = F.udf(lambda value: str(float(value.decode())))
    return events.select("key", degrees("value").alias("value"))


def main(*days: str) -> int:
    """Exit code 0 when the run succeeded; the failure's text is on standard error."""
    range_of = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
    spec = rooms.backfill_spec if days else rooms.spec
    config = {"mode": "caught_up", "start_from": "latest"}
    done = (
        located(rooms)
        .resolve_job_def(spec.job)
        .execute_in_process(
            run_config={} if days else {"ops": {spec.op: {"config": config}}},
            tags=dict(zip(range_of, days, strict=False)),
            instance=dg.DagsterInstance.get(),
            raise_on_error=False,
        )
    )
    return 0 if done.success else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
