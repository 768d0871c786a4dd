"""``checkpoint_progress``: the state of a stream from what its checkpoint, commit log and input say."""

from __future__ import annotations

import pytest

from dagster_exactly_once.sensors.checkpoint_progress import Facts, verdict
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.sensors.tick import read_cursor, write_cursor

POLICY = WatchPolicy(stall_after_s=120.0, lag_limit=1_000)
LIVE = {"run": "r1", "run_age_s": 900.0, "run_alive": True, "owner_alive": True, "owner_is_run": True, "idle_s": 1.0}


@pytest.mark.parametrize(
    ("facts", "state", "says"),
    [
        ({**LIVE, "lag": 500}, "healthy", "500 offsets behind"),
        ({**LIVE, "lag": 0, "idle_s": 3_600.0}, "idle", "read all its input"),
        ({**LIVE, "lag": 0, "idle_s": None}, "idle", "no batch is decided yet"),
        ({**LIVE, "lag": 5_000, "last_lag": 9_000}, "catching up", "4,000 fewer"),
        ({**LIVE, "lag": 5_000, "last_lag": 5_000}, "lagging", "not shrinking"),
        ({**LIVE, "lag": 5_000, "last_lag": 4_000}, "lagging", "above the limit of 1,000"),
        ({**LIVE, "lag": 5_000}, "lagging", "5,000 offsets behind"),
        ({**LIVE, "lag": 1, "waited_s": 121.0, "in_flight": 7}, "stalled", "batch 7 is in flight"),
        ({**LIVE, "lag": 1, "waited_s": 119.0}, "healthy", ""),
        ({**LIVE, "lag": 1, "waited_s": 999.0, "run_age_s": 60.0}, "healthy", ""),  # it has just started
        ({**LIVE, "lag": 1, "idle_s": 9_999.0, "waited_s": 5.0}, "healthy", ""),  # input after a long silence
        ({**LIVE, "lag": 1, "run_alive": False}, "owner lost", "its process is gone"),
        ({**LIVE, "lag": 1, "owner_is_run": False}, "owner lost", "another owner"),
        ({**LIVE, "lag": 1, "owner_is_run": None}, "healthy", ""),
        ({**LIVE, "lag": 1, "unproven": (7,), "unproven_age_s": 60.0}, "healthy", ""),  # its owner works on it
        ({"lag": 9}, "stopped", "9 offsets of input are waiting"),
        ({"undecided": 4}, "stopped", "4 undecided transactions"),
        ({"unproven": (7,), "unproven_age_s": 5.0}, "stopped", ""),  # somebody may be at it
        ({"unproven": (7, 8), "unproven_age_s": 60.0}, "in doubt", "batches 7, 8 decided 60 s ago"),
        ({**LIVE, "run_alive": False, "unproven": (7,), "unproven_age_s": 60.0}, "in doubt", "batch 7"),
        ({**LIVE, "run_alive": None, "unproven": (7,), "unproven_age_s": 60.0}, "idle", ""),  # on another host
    ],
)
def test_each_state(facts, state: str, says: str):
    found = verdict(Facts(**facts), POLICY)
    assert found.state == state and says in found.message, found


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ({"unproven": (7,), "unproven_age_s": 60.0}, "in-doubt/7"),
        ({**LIVE, "run_alive": False, "lag": 9, "waited_s": 500.0}, "owner-lost/r1"),
        ({**LIVE, "run_alive": False, "lag": 9, "waited_s": 5.0}, None),
        ({**LIVE, "lag": 9, "waited_s": 500.0}, None),  # stalled, and somebody works on it
        ({**LIVE, "lag": 99_999}, None),
        ({"lag": 99_999, "undecided": 4}, None),  # stopped by a person
    ],
)
def test_a_recovery_is_wanted_only_when_nobody_works_on_the_sink(facts, wanted):
    """A recovery beside a living stream would fence it."""
    assert verdict(Facts(**facts), POLICY).incident == wanted


def test_a_cursor_of_another_version_or_none_is_no_cursor():
    """After an upgrade a tick begins anew instead of failing forever."""
    assert read_cursor(None) == read_cursor("rubbish") == read_cursor('{"version": 1, "lag": 1}') == {}
    assert read_cursor("[1]") == {}
    assert read_cursor(write_cursor({"s": {"lag": 1}}))["streams"] == {"s": {"lag": 1}}
