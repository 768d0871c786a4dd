"""The days of a backfill that nobody can write once the sink of its stream is retired."""

from collections.abc import Iterator

import dagster as dg

from dagster_exactly_once.private import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from dagster_exactly_once.resources.checkpoints import READ_BUDGET_S
from dagster_exactly_once.runs.tags import TAG_SINK, TAG_STREAM
from dagster_exactly_once.tables import next_day, ranges
from exactly_once.commitlog.commit_log import read_log
from exactly_once.inspection.words import are, plural
from exactly_once.kafka.connection import Connection

#: Dagster's tag of a run for one partition.
_PARTITION = "dagster/partition"


def unfilled_days(instance: dg.DagsterInstance, connection: Connection, sink_id: str) -> str:
    """Say which days runs of the sink's backfill were asked for that are not written; "" for none.

    The declaration of the backfill is gone: only its runs on this instance, and its commit log, know of it.
    """
    backfill = f"{sink_id}-backfill"
    runs = instance.get_runs(dg.RunsFilter(tags={TAG_SINK: backfill}))
    if not runs:
        return ""
    asset = f"{runs[0].tags.get(TAG_STREAM, '').removesuffix('_backfill')}_by_day"
    written = {d.write_id.rpartition("/")[2] for d in read_log(connection, backfill, READ_BUDGET_S).decisions}
    asked = {day for run in runs for day in _days(run)}
    missing = sorted(asked - written - instance.get_materialized_partitions(dg.AssetKey(asset)))
    if not missing:
        return ""
    days, n = ranges(missing, lambda one, other: next_day(one) == other), len(missing)
    return (
        f" {plural(n, 'day')} of {asset} {are(n)} not written ({days}), and no run can write them once the sink is "
        "retired: write them first, by the old declaration."
    )


def _days(run: dg.DagsterRun) -> Iterator[str]:
    day = run.tags.get(ASSET_PARTITION_RANGE_START_TAG) or run.tags.get(_PARTITION, "")
    last = run.tags.get(ASSET_PARTITION_RANGE_END_TAG, day)
    while day and day <= last:
        yield day
        day = next_day(day)
