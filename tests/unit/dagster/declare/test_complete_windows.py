"""Which windows of event time are complete: each once, none too early, none forgotten over a restart."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import dagster as dg
import pytest

from dagster_exactly_once import exactly_once_stream
from dagster_exactly_once.assets import completed_asset
from dagster_exactly_once.declare.complete import Complete, check_window, closed, in_ranges, left_open, window_of
from dagster_exactly_once.declare.errors import BadDeclaration
from exactly_once.errors import InvalidOption

HOUR_MS = 3_600_000
#: 2026-01-31 10:00 UTC.
TEN, AT_TEN = 1_769_853_600_000, "2026-01-31-10:00"
HOURLY, DAILY = Complete.hourly("2026-01-01"), Complete.daily("2026-01-01")


def test_a_window_is_complete_when_the_watermark_has_reached_its_end():
    """An asset downstream that is built a moment earlier misses the window's last records, for good."""
    assert closed(HOURLY, [], AT_TEN, TEN + HOUR_MS - 1, 10) == []
    assert closed(HOURLY, [], AT_TEN, TEN + HOUR_MS, 10) == ["2026-01-31-10:00"]


def test_a_run_continues_behind_the_newest_window_that_an_earlier_run_reported():
    """A window that no run reports is never built downstream; one that two runs report is built twice."""
    reported = ["2026-01-31-09:00", "2026-01-31-10:00"]
    assert closed(HOURLY, reported, "2026-01-31-01:00", TEN + 3 * HOUR_MS, 10) == [
        "2026-01-31-11:00",
        "2026-01-31-12:00",
    ]
    assert closed(HOURLY, reported, AT_TEN, TEN + HOUR_MS, 10) == []


def test_windows_before_the_declared_start_are_left_out():
    """Dagster knows no partition before the start: reporting one would fail the run."""
    assert closed(DAILY, [], window_of(DAILY, 0), TEN, 2) == ["2026-01-01", "2026-01-02"]
    assert (window_of(HOURLY, 0), window_of(HOURLY, TEN + 5)) == ("2026-01-01-00:00", AT_TEN)


def test_windows_after_the_declared_end_are_left_out():
    """Dagster knows no partition after the end: reporting one would fail the run."""
    ends = Complete.hourly("2026-01-01", "2026-01-31")
    assert closed(ends, ["2026-01-31-22:00"], AT_TEN, TEN + 100 * HOUR_MS, 10) == ["2026-01-31-23:00"]
    assert closed(ends, ["2026-01-31-23:00"], AT_TEN, TEN + 100 * HOUR_MS, 10) == []


def test_a_replay_reports_some_windows_and_the_next_report_the_others():
    found = closed(HOURLY, [], AT_TEN, TEN + 5 * HOUR_MS, 3)
    assert found == ["2026-01-31-10:00", "2026-01-31-11:00", "2026-01-31-12:00"]
    assert closed(HOURLY, found[-1:], AT_TEN, TEN + 5 * HOUR_MS, 3) == ["2026-01-31-13:00", "2026-01-31-14:00"]


def hours(*numbers):
    return [f"2026-01-31-{n:02}:00" for n in numbers]


def test_windows_behind_a_reported_one_are_left_open_and_those_after_it_are_the_runs_own():
    """No run comes back to them: it goes on behind the newest one that is reported."""
    reported = hours(11, 12, 14)
    assert left_open(HOURLY, reported, "", TEN + 9 * HOUR_MS) == hours(13)
    assert left_open(HOURLY, reported, "2026-01-31-08:00", TEN + 9 * HOUR_MS) == hours(8, 9, 10, 13)
    assert left_open(HOURLY, [], "2026-01-31-08:00", TEN) == []
    assert left_open(DAILY, ["2026-01-03"], "2025-12-01", TEN) == ["2026-01-01", "2026-01-02"]


def test_a_window_that_the_watermark_has_not_passed_is_not_left_open_whatever_was_reported_after_it():
    """Somebody may report a later one by hand: the windows before it can still get records."""
    assert left_open(HOURLY, hours(8, 23), "", TEN + HOUR_MS) == hours(9, 10)


def test_windows_are_said_in_rows():
    assert in_ranges(HOURLY, hours(0, 1, 2, 5, 7, 8)) == (
        "2026-01-31-00:00 to 2026-01-31-02:00, 2026-01-31-05:00, 2026-01-31-07:00 to 2026-01-31-08:00"
    )


@pytest.mark.parametrize("wrong", ["2026-01-31", "2026-01-31-09:30", "2025-12-31-23:00", "2026-01-31-12:00", "nine"])
def test_a_first_window_that_is_none_or_would_hide_an_open_one_is_refused(wrong):
    assert check_window(HOURLY, "2026-01-31-09:00", hours(11, 12)) == "2026-01-31-09:00"
    with pytest.raises(InvalidOption):
        check_window(HOURLY, wrong, hours(11, 12))


# -- windows of local time -------------------------------------------------------------------------------------------

#: Summer time at midnight (Havana, Cairo), in the south, of half an hour past the hour, and none.
ZONES = ["Europe/Berlin", "America/Havana", "Africa/Cairo", "America/Santiago", "Asia/Kolkata", "Etc/UTC"]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("every", ["hour", "day"])
def test_local_windows_have_the_names_and_the_ends_that_dagster_gives_them(zone, every):
    """A window of another name is one that Dagster does not know: reporting it fails the run. One of another end is
    built downstream before its last records are there.
    """
    kind = dg.HourlyPartitionsDefinition if every == "hour" else dg.DailyPartitionsDefinition
    theirs = kind("2026-01-01-00:00" if every == "hour" else "2026-01-01", timezone=zone)
    year = datetime(2027, 1, 1, tzinfo=ZoneInfo(zone))
    windows = Complete(every, "2026-01-01", timezone=zone)
    found = closed(windows, [], windows.first, round(year.timestamp() * 1000), 10_000)
    assert found == theirs.get_partition_keys(year)
    assert found == sorted(found)  # the newest window is the greatest name
    for name in found[:: 97 if every == "hour" else 1]:
        end = theirs.time_window_for_partition_key(name).end.timestamp()  # clocks may skip it: no hour of the zone
        assert windows.after(windows.begin(name)).timestamp() == end
        assert window_of(windows, round(end * 1000) - 1) == name


def test_an_hour_that_the_clocks_repeat_is_two_windows():
    """The second of them would be taken for the first, and never be built."""
    windows = Complete.hourly("2026-01-01", timezone="Europe/Berlin")
    end = round(datetime(2026, 10, 25, 3, tzinfo=ZoneInfo("Europe/Berlin")).timestamp() * 1000)
    assert closed(windows, ["2026-10-25-01:00"], "", end, 10) == ["2026-10-25-02:00", "2026-10-25-02:00+0100"]
    assert closed(windows, ["2026-10-25-02:00"], "", end, 10) == ["2026-10-25-02:00+0100"]
    assert left_open(windows, ["2026-10-25-02:00", "2026-10-25-03:00"], "", end + HOUR_MS) == ["2026-10-25-02:00+0100"]
    assert in_ranges(windows, ["2026-10-25-02:00", "2026-10-25-02:00+0100"]).endswith(" to 2026-10-25-02:00+0100")


def test_a_time_zone_that_does_not_exist_is_refused_where_it_is_declared():
    with pytest.raises(BadDeclaration, match="Europe/Belin"):
        Complete.daily("2026-01-01", timezone="Europe/Belin")


def test_an_asset_of_days_in_another_zone_stops_every_tick_and_loads_all_the_same():
    """streams.md says so: no validation finds it, since the windows have no op that Dagster runs."""
    stream = exactly_once_stream(source="orders", outputs=["paid"], complete=Complete.hourly("2026-03-01"))(paid)

    @dg.asset(
        partitions_def=dg.DailyPartitionsDefinition("2026-03-01", timezone="Europe/Berlin"),
        deps=["paid_complete"],
        automation_condition=dg.AutomationCondition.eager(),
    )
    def revenue() -> None: ...

    @dg.asset(automation_condition=dg.AutomationCondition.eager())
    def of_others() -> None: ...

    defs = dg.Definitions([completed_asset(stream), revenue, of_others])
    dg.Definitions.validate_loadable(defs)
    with dg.instance_for_test() as instance, pytest.raises(Exception, match="evaluating conditions for revenue"):
        dg.evaluate_automation_conditions(defs, instance)


@pytest.mark.parametrize("every", ["hour", "day"])
def test_an_asset_of_local_days_is_requested_when_its_last_window_is_complete(every):
    """With windows of another time zone, every tick of the automation sensor raised, also for the assets of others."""
    windows = Complete(every, "2026-03-01", timezone="Europe/Berlin")
    stream = exactly_once_stream(source="orders", outputs=["paid"], complete=windows)(paid)

    @dg.asset(
        partitions_def=dg.DailyPartitionsDefinition("2026-03-01", timezone="Europe/Berlin"),
        deps=["paid_complete"],
        automation_condition=dg.AutomationCondition.eager(),
    )
    def revenue() -> None: ...

    defs = dg.Definitions([completed_asset(stream), revenue])
    end = datetime(2026, 3, 30, tzinfo=ZoneInfo("Europe/Berlin"))  # of a day of 23 hours
    names = closed(
        windows, [], window_of(windows, round((end.timestamp() - 82_800) * 1000)), end.timestamp() * 1000, 99
    )
    assert len(names) == (23 if every == "hour" else 1)
    with dg.instance_for_test() as instance:

        def requested(hour, cursor=None):
            at = datetime(2026, 3, 30, hour, tzinfo=UTC)
            found = dg.evaluate_automation_conditions(defs, instance, evaluation_time=at, cursor=cursor)
            return found.get_requested_partitions(dg.AssetKey("revenue")), found.cursor

        _, cursor = requested(1)
        for name in names[:-1]:
            instance.report_runless_asset_event(dg.AssetMaterialization("paid_complete", partition=name))
        found, cursor = requested(2, cursor)
        assert not found or every == "hour"
        instance.report_runless_asset_event(dg.AssetMaterialization("paid_complete", partition=names[-1]))
        assert requested(3, cursor)[0] == {"2026-03-29"}


def paid(events):
    return events
