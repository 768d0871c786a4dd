"""What a stream's events cause downstream: progress nothing, a complete window its own partition."""

import dagster as dg

from dagster_exactly_once import Complete, exactly_once_definitions, exactly_once_resources, exactly_once_stream
from dagster_exactly_once.recovery.windows import first_noted
from dagster_exactly_once.streaming.reports import Reports
from dagster_exactly_once.streaming.windows import CommittedBatch, ReportWindow
from exactly_once.protocol.records import Count


@exactly_once_stream(source="orders", outputs=["orders_hourly"], complete=Complete.hourly("2026-01-01"))
def by_hour(events):
    """Orders by hour."""
    return events


KEY = dg.AssetKey(by_hour.completed)
HOURS = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00")


@dg.asset(
    deps=[by_hour.completed],
    partitions_def=HOURS,
    automation_condition=dg.AutomationCondition.eager().without(dg.AutomationCondition.in_latest_time_window()),
)
def report():
    """What somebody builds when an hour is complete."""


@dg.asset(deps=["orders_hourly", "orders"], automation_condition=dg.AutomationCondition.eager())
def careless():
    """What somebody builds on the output itself, and on the input."""


DEFS = dg.Definitions.merge(
    exactly_once_definitions(
        by_hour,
        resources=exactly_once_resources(work_dir="s", checkpoints="c", kafka={"bootstrap_servers": "127.0.0.1:1"}),
    ),
    dg.Definitions(assets=[report, careless]),
)


class Context:
    """As much of an op's context as a report needs; events go into the instance at once."""

    def __init__(self, instance):
        self.instance, self.log = instance, self

    def info(self, text): ...

    def log_event(self, event):
        self.instance.report_runless_asset_event(event)


def test_the_assets_page_shows_the_total_of_the_newest_report(instance):
    """Dagster shows the row count of a materialization before that of any later observation: it would stand still."""
    reports = Reports(Context(instance), by_hour)
    reports.tell(
        ReportWindow((CommittedBatch(1, 5, 1, 10, 9, 1),), 0, 0, 1.0, None, Count({"orders_hourly": 5}, 1_000))
    )
    reports.tell(ReportWindow((), 0, 0, 1.0, None, Count({"orders_hourly": 7}, 1_000)))
    found = instance.fetch_observations(dg.AssetKey("orders_hourly"), limit=2).records
    shown = [record.asset_observation.metadata for record in found]
    assert [m["dagster/row_count"].value for m in shown] == [m["records_total"].value for m in shown] == [7, 5]
    assert shown[0]["records_total_since"].value == 1.0


def window(watermark, first="2026-01-31T09:10", begins=0):
    """Of two batches: that of the oldest event, and the one that the watermark of this event's batch moved."""
    batches = (
        CommittedBatch(begins, 5, 1, 10, 9, 1, event_ms=first and ms(first)),
        CommittedBatch(begins + 1, 5, 1, 10, 9, 1, event_ms=ms(watermark), watermark_ms=ms(watermark)),
    )
    return ReportWindow(batches, 0, 0, 1.0)


def ms(moment):
    import datetime

    return round(datetime.datetime.fromisoformat(f"{moment}:00+00:00").timestamp() * 1000)


def requested(instance, cursor=None):
    result = dg.evaluate_automation_conditions(defs=DEFS, instance=instance, cursor=cursor)
    partitions = {
        (key.to_user_string(), *sorted(result.get_requested_partitions(key)))
        for key in (dg.AssetKey("report"), dg.AssetKey("careless"))
        if result.get_num_requested(key)
    }
    return partitions, result.cursor


def test_progress_builds_nothing_downstream_and_a_complete_hour_builds_its_own(instance):
    """With a materialization for each report, everything downstream would be built every half minute, from data that is
    not complete.
    """
    reports = Reports(Context(instance), by_hour)
    _, cursor = requested(instance)
    reports.tell(window("2026-01-31T09:59"))
    found, cursor = requested(instance, cursor)
    assert found == set()
    reports.tell(window("2026-01-31T11:05"))
    found, cursor = requested(instance, cursor)
    assert found == {("report", "2026-01-31-09:00", "2026-01-31-10:00")}
    reports.tell(window("2026-01-31T11:30"))
    instance.report_runless_asset_event(dg.AssetObservation("orders"))  # as the sensor does, with the lag
    found, _ = requested(instance, cursor)
    assert found == set()


def hours_closed(instance):
    records = instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=KEY), limit=50).records
    return sorted(r.partition_key[-5:] for r in records)


def test_the_oldest_event_counts_also_when_it_comes_after_the_first_report(instance):
    """The watermark's delay lets it: its hours would never be closed."""
    reports = Reports(Context(instance), by_hour)
    reports.tell(window("2026-01-31T07:59", first="2026-01-31T08:59"))
    reports.tell(window("2026-01-31T07:59", first="2026-01-31T07:10", begins=2))
    reports.tell(window("2026-01-31T09:00", first="2026-01-31T08:00", begins=4))
    assert hours_closed(instance) == ["07:00", "08:00"]


def test_a_run_that_ends_before_an_hour_is_closed_leaves_the_next_one_where_the_events_begin(instance):
    """The next run saw newer events only, and the hours before them were never closed."""
    Reports(Context(instance), by_hour).tell(window("2026-01-31T07:59", first="2026-01-31T07:10"))
    assert first_noted(instance, KEY) == "2026-01-31-07:00"
    Reports(Context(instance), by_hour).tell(window("2026-01-31T10:00", first="2026-01-31T09:10", begins=2))
    assert hours_closed(instance) == ["07:00", "08:00", "09:00"]


def test_a_run_that_has_not_seen_all_batches_does_not_note_where_the_events_begin(instance):
    """What an older version or a run that was killed has not reported may have older events: the check must ask."""
    Reports(Context(instance), by_hour).tell(window("2026-01-31T10:00", begins=7))
    assert (hours_closed(instance), first_noted(instance, KEY)) == (["09:00"], "")


def test_a_run_that_waits_for_an_older_one_knows_what_that_one_has_closed(instance):
    """Both would report the same hours, and they would be built twice."""
    waits = Reports(Context(instance), by_hour)
    waits.tell(ReportWindow((), 5, 0, 1.0))
    Reports(Context(instance), by_hour).tell(window("2026-01-31T10:00"))
    waits.tell(window("2026-01-31T11:00", first="2026-01-31T10:10", begins=2))
    assert hours_closed(instance) == ["09:00", "10:00"]


def test_a_row_behind_the_watermark_is_not_where_the_events_begin(instance):
    """Spark drops it; one from 1970 would have each hour since the declared start built downstream."""
    late = CommittedBatch(2, 5, 1, 10, 9, 1, event_ms=ms("2026-01-01T00:00"), watermark_ms=ms("2026-01-31T09:40"))
    reports = Reports(Context(instance), by_hour)
    reports.tell(window("2026-01-31T09:40"))
    reports.tell(ReportWindow((late,), 0, 0, 1.0))
    reports.tell(window("2026-01-31T10:00", begins=3))
    assert hours_closed(instance) == ["09:00"]


def test_a_new_run_does_not_report_an_hour_again(instance):
    """It would be built again downstream, and its numbers sent a second time to whoever reads them."""
    Reports(Context(instance), by_hour).tell(window("2026-01-31T10:00"))
    Reports(Context(instance), by_hour).tell(window("2026-01-31T11:00"))
    assert hours_closed(instance) == ["09:00", "10:00"]
