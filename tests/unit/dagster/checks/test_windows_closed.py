"""Whether hours stay open that no run of the stream comes back to, and how certain that is."""

import pytest

from dagster_exactly_once.checks.judgements import closed_up_to_now
from dagster_exactly_once.declare.complete import Complete
from dagster_exactly_once.recovery.windows import Windows
from exactly_once.tools.diagnosis import Severity

#: 2026-01-31 14:00 UTC.
TWO = 1_769_868_000_000


def hour(n):
    return f"2026-01-31-{n:02}:00"


def found(reported, noted=None, by_input=None, watermark_ms=TWO):
    hours = {hour(n) for n in reported}
    noted, by_input = (hour(n) if n is not None else "" for n in (noted, by_input))
    return Windows(Complete.hourly("2026-01-01"), hours, noted, by_input, watermark_ms)


@pytest.mark.parametrize(
    ("windows", "grave", "missing"),
    [
        (found([11, 12], noted=9), True, [9, 10]),
        (found([9, 12], noted=9), True, [10, 11]),
        (found([11, 13]), True, [12]),
        (found([11, 12], by_input=9), False, [9, 10]),
        (found([11, 13], by_input=9), True, [9, 10, 12]),
    ],
    ids=["noted", "a gap", "a gap, nothing noted", "by the input", "a gap, and by the input"],
)
def test_hours_that_stay_open_are_named_and_certain_ones_fail(windows, grave, missing):
    verdict = closed_up_to_now(windows, "close")
    severity = Severity.ERROR if grave else Severity.WARN
    assert (verdict.code, verdict.severity) == ("EO-WARN-WINDOWS", severity) and "close" in verdict.remedy
    assert windows.left_open() == [hour(n) for n in missing]
    assert verdict.evidence == {"open_windows": len(missing), "first_open": hour(missing[0])}


@pytest.mark.parametrize(
    "windows",
    [
        found([]),
        found([], by_input=9),
        found([11, 12], noted=11, by_input=3),
        found([11, 12], by_input=11),
        found([11, 12], by_input=20),
        found([11, 12, 20], watermark_ms=TWO - 3_600_000),
        found([11, 13], watermark_ms=0),
    ],
    ids=["none", "none yet", "noted", "as the input", "dated later", "behind the watermark", "no batch"],
)
def test_hours_that_are_closed_or_can_still_get_records_pass(windows):
    assert (closed_up_to_now(windows, "close").code, windows.left_open()) == ("CHECK-PASSED", [])


def test_where_nobody_noted_the_first_hour_the_check_says_so():
    """Records may be dated long after their events: a check that only passes would say what it does not know."""
    assert "Nobody noted" in closed_up_to_now(found([11, 12]), "close").sentence
    assert "Nobody noted" not in closed_up_to_now(found([11, 12], noted=11), "close").sentence
