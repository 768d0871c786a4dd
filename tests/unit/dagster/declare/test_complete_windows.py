"""Which windows of event time are complete: each once, none too early, none forgotten over a restart."""

from dagster_exactly_once.declare.complete import Complete, closed

HOUR_MS = 3_600_000
#: 2026-01-31 10:00 UTC.
TEN = 1_769_853_600_000
HOURLY, DAILY = Complete.hourly("2026-01-01"), Complete.daily("2026-01-01")


def test_a_window_is_complete_when_the_watermark_has_reached_its_end():
    """An asset downstream that is built a moment earlier misses the window's last records, for good."""
    assert closed(HOURLY, [], TEN + 5, TEN + HOUR_MS - 1, 10) == []
    assert closed(HOURLY, [], TEN + 5, TEN + HOUR_MS, 10) == ["2026-01-31-10:00"]


def test_a_run_continues_behind_the_newest_window_that_an_earlier_run_reported():
    """A window that no run reports is never built downstream; one that two runs report is built twice."""
    reported = ["2026-01-31-09:00", "2026-01-31-10:00"]
    assert closed(HOURLY, reported, TEN - 9 * HOUR_MS, TEN + 3 * HOUR_MS, 10) == [
        "2026-01-31-11:00",
        "2026-01-31-12:00",
    ]
    assert closed(HOURLY, reported, TEN, TEN + HOUR_MS, 10) == []


def test_windows_before_the_declared_start_are_left_out():
    """Dagster knows no partition before the start: reporting one would fail the run."""
    assert closed(DAILY, [], 0, TEN, 2) == ["2026-01-01", "2026-01-02"]


def test_windows_after_the_declared_end_are_left_out():
    """Dagster knows no partition after the end: reporting one would fail the run."""
    ends = Complete.hourly("2026-01-01", "2026-01-31")
    assert closed(ends, ["2026-01-31-22:00"], TEN, TEN + 100 * HOUR_MS, 10) == ["2026-01-31-23:00"]
    assert closed(ends, ["2026-01-31-23:00"], TEN, TEN + 100 * HOUR_MS, 10) == []


def test_a_replay_reports_some_windows_and_the_next_report_the_others():
    found = closed(HOURLY, [], TEN, TEN + 5 * HOUR_MS, 3)
    assert found == ["2026-01-31-10:00", "2026-01-31-11:00", "2026-01-31-12:00"]
    assert closed(HOURLY, found[-1:], TEN, TEN + 5 * HOUR_MS, 3) == ["2026-01-31-13:00", "2026-01-31-14:00"]
