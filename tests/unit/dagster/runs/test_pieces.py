"""The signs of life of a long run, and what it says of its pieces when it fails."""

import threading

import pytest

from dagster_exactly_once import Backfill, exactly_once_stream
from dagster_exactly_once.backfill.asset import days_at_work
from dagster_exactly_once.backfill.days import in_ranges
from dagster_exactly_once.runs.failures import diagnose
from dagster_exactly_once.runs.pieces import logged_every
from exactly_once.errors import BrokerUnreachable

BACKFILL = Backfill.daily("2026-11-20")
DAYS = [f"2026-11-{day}" for day in (20, 21, 22, 23, 24)]
RAISED = RuntimeError(
    "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
    '  File "/app/shop.py", line 14, in price\n    return order["amount"]\nKeyError: \'amount\'\n SQLSTATE: 38000\n'
)


def rooms(decided=False, begun=3):
    """The five days of a run, of which it has begun the first ``begun``, and is in the last of these."""
    pieces = days_at_work(exactly_once_stream(name="rooms", source="raw", outputs="o", backfill=BACKFILL)(lambda e: e))
    pieces.left, pieces.decided = [*DAYS], lambda: decided
    for day in DAYS[:begun]:
        if pieces.at:
            pieces.end()
        pieces.begin(day, f"Day {day}", {"raw": {0: 298, 1: 302}})
    return pieces


def test_a_long_call_is_no_silence():
    """Six minutes and a half without a line, of a run that worked."""
    said, twice = [], threading.Event()

    def log(text):
        said.append(text)
        if len(said) == 2:
            twice.set()

    with logged_every(log, lambda: "Spark starts", every_s=0.01):
        assert twice.wait(10)
    heard = len(said)
    assert all(line.startswith("Spark starts; this run ") for line in said)
    assert not twice.wait(0) or len(said) == heard, "nothing after the end"


def test_a_backfill_that_fails_names_the_day_its_offsets_what_is_done_and_what_was_not_tried():
    """ "launch __ASSET_JOB again": no person can; and two of the three red days had never been tried."""
    pieces = rooms()
    why = pieces.failed(diagnose(RAISED, pieces.place))
    assert why.code == "EO-TRANSFORM" and not why.heals
    assert "on day 2026-11-22. Nothing of day 2026-11-22 was written" in why.sentence
    assert "raw-0@298, raw-1@302" in why.sentence
    assert why.sentence.endswith("Done: [2026-11-20...2026-11-21]. Not tried: [2026-11-23...2026-11-24].")
    assert "launch the job rooms_backfill again for the days [2026-11-22...2026-11-24]" in why.remedy
    assert why.sentence.count("rooms_backfill") == why.remedy.count("rooms_backfill") == 1


@pytest.mark.parametrize(
    ("begun", "told", "again"),
    [
        (3, "It happened on day 2026-11-22, which begins at raw-0@298, raw-1@302. Done: ", "[2026-11-22...2026-11-24]"),
        (5, "It happened on day 2026-11-24, which begins at ", "2026-11-24"),
        (0, "Not tried: [2026-11-20...2026-11-24].", "[2026-11-20...2026-11-24]"),
    ],
)
def test_a_failure_of_any_other_kind_says_the_same(begun, told, again):
    """Guards against a message that only the user's own exceptions have: brokers end a backfill as well."""
    pieces = rooms(begun=begun)
    why = pieces.failed(diagnose(BrokerUnreachable("no broker answered", "Start one"), pieces.place))
    assert why.code == "EO-UNREACHABLE" and why.heals and told in why.sentence
    assert why.remedy.startswith("Start one. ") and why.remedy.endswith(f" the days {again}")
    assert "launch the job rooms_backfill" in why.remedy


def test_a_day_that_is_decided_is_not_called_unwritten():
    """Guards against a person who writes its rows by hand."""
    pieces = rooms(decided=True)
    said = pieces.failed(diagnose(RAISED, pieces.place)).sentence
    assert "has decided day 2026-11-22" in said and "Nothing of" not in said


def test_days_are_named_as_the_launch_dialog_takes_them():
    """Guards against a list of thirty days that nobody can paste."""
    assert in_ranges([*DAYS[:3], "2026-11-30", "2026-12-01"]) == "[2026-11-20...2026-11-22], [2026-11-30...2026-12-01]"
