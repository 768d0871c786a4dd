"""Which windows of event time are complete: each once, none too early, none forgotten over a restart."""

import pytest

from dagster_exactly_once.declare.complete import Complete, check_window, closed, in_ranges, left_open, window_of
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
