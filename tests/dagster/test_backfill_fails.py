"""A backfill with one bad record, in the middle of its days, on a real broker with Spark."""

import dagster as dg
import pytest

from dagster_exactly_once.backfill.days import DAY_MS, start_ms
from dagster_exactly_once.runs.history import classify
from platform_assets.report.reader import read_committed
from testkit.days import MEASURED, ROOMS, SINCE, rooms


def ran(site, *days):
    """Run the stream, or its backfill over these days; whether that succeeded, and the log."""
    return site.finished("testkit.days", *days, log=site.log("backfill" if days else "stream"))


@pytest.mark.long  # three starts of Spark
def test_a_bad_record_stops_a_backfill_which_says_where_and_what_to_launch(site):
    """Two of five days were done, three were red, and the message named neither a day nor anything to launch."""
    site.kafka.create_topics({ROOMS: 1})
    with site.kafka.producer("rooms") as producer, producer.transaction():
        for day in range(5):
            producer.send(ROOMS, b"x" if day == 2 else b"20", b"room", timestamp_ms=start_ms(SINCE) + day * DAY_MS)
    succeeded, said = ran(site)
    assert succeeded, said[-5000:]

    succeeded, said = ran(site, "2026-01-01", "2026-01-05")
    assert not succeeded and "for the days [2026-01-01...2026-01-05] in " in said, said[-5000:]
    with dg.DagsterInstance.from_config(str(site.home)) as instance:
        (run,) = instance.get_runs(dg.RunsFilter(job_name=rooms.backfill_spec.job))
        why = classify(instance, run.run_id)
        done = instance.get_materialized_partitions(dg.AssetKey(rooms.by_day))
    assert why.code == "EO-TRANSFORM" and "ValueError: " in why.sentence and "float: 'x'" in why.sentence
    assert "Nothing of day 2026-01-03 was written" in why.sentence and f"from {ROOMS}-0@2" in why.sentence
    assert why.sentence.endswith("Done: [2026-01-01...2026-01-02]. Not tried: [2026-01-04...2026-01-05].")
    assert "launch the job rooms_backfill again for the days [2026-01-03...2026-01-05]" in why.remedy
    assert done == {"2026-01-01", "2026-01-02"}
    assert [r.value for r in read_committed(site.connection, MEASURED)] == [b"20.0", b"20.0"]

    succeeded, said = ran(site, "2026-01-04", "2026-01-05")
    assert succeeded and len(list(read_committed(site.connection, MEASURED))) == 4, said[-5000:]
