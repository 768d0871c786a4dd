"""A code location with a stream that has a backfill, and fails at a value that is no number; ``python -m testkit.days
FIRST LAST`` writes these days, and without arguments runs the stream to the end of its input.
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dagster_exactly_once import Backfill, exactly_once_stream
from testkit.location import config_of, located, run_of

ROOMS, MEASURED, SINCE = "days.rooms", "rooms_measured", "2026-01-01"


@exactly_once_stream(source=ROOMS, outputs=MEASURED, backfill=Backfill.daily(SINCE), output_partitions=1)
def rooms(events: DataFrame) -> DataFrame:
    """Temperatures."""
    degrees = F.udf(lambda value: str(float(value.decode())))
    return events.select("key", degrees("value").alias("value"))


def main(*days: str) -> int:
    """Exit code 0 when the run succeeded; the failure's text is on standard error."""
    if not days:
        return run_of(located(rooms), rooms.spec.job, config_of(rooms, mode="caught_up", start_from="latest"))
    range_of = ("dagster/asset_partition_range_start", "dagster/asset_partition_range_end")
    return run_of(located(rooms), rooms.backfill_spec.job, tags=dict(zip(range_of, days, strict=True)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
