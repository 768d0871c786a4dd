"""Restart strategies and the circuit breaker: when a failed stream comes back, and when a person has to look."""

from __future__ import annotations

import pytest

from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.sensors.recovery_requests import (
    Restart,
    next_restart,
    open_circuit,
)
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy

NOW = 10_000.0
EXPONENTIAL = RestartPolicy(jitter=0.0)  # the delivered figures otherwise
FIXED = RestartPolicy(strategy="fixed-delay", attempts=3, delay_s=10.0)
RATE = RestartPolicy(strategy="failure-rate", max_failures=3, interval_s=300.0, delay_s=10.0)
NONE = RestartPolicy(strategy="none")


def failed(run_id: str, began: float, ended: float) -> Run:
    return Run(run_id, "stream", "FAILURE", created=began, started=began, ended=ended)


def row(*ends: float, lived: float = 5.0) -> list[Run]:
    return [failed(f"run-{n}", end - lived, end) for n, end in enumerate(ends)]


@pytest.mark.parametrize(
    ("strategy", "failures", "expected"),
    [
        (FIXED, row(9_000.0), Restart(9_010.0, 1)),
        (FIXED, row(8_000.0, 8_500.0, 9_000.0), Restart(9_010.0, 3)),
        (EXPONENTIAL, row(9_000.0), Restart(9_001.0, 1)),
        (EXPONENTIAL, row(8_000.0, 9_000.0), Restart(9_002.0, 2)),
        (EXPONENTIAL, row(*range(9_000, 9_005)), Restart(9_020.0, 5)),
        (EXPONENTIAL, row(*range(9_000, 9_009)), Restart(9_068.0, 9)),  # the longest pause
        (RATE, row(8_800.0, 8_900.0, 9_000.0), Restart(9_010.0, 3)),
        (RATE, row(1_000.0, 8_800.0, 8_900.0, 9_000.0), Restart(9_010.0, 4)),
    ],
)
def test_a_strategy_says_when_and_how_often(strategy, failures, expected) -> None:
    assert next_restart(strategy, failures, NOW) == expected


@pytest.mark.parametrize(
    ("strategy", "failures", "why"),
    [
        (NONE, row(9_000.0), "'none'"),
        (FIXED, row(1.0, 2.0, 3.0, 4.0), "3 restarts in a row"),
        (EXPONENTIAL, row(*range(9_000, 9_011)), "10 restarts in a row"),
        (RATE, row(8_750.0, 8_800.0, 8_900.0, 9_000.0), "runs failed 4 times within 300 s"),
    ],
)
def test_a_strategy_gives_up_with_a_reason(strategy, failures, why: str) -> None:
    """A stream that fails forever must end with a person, not as noise."""
    decision = next_restart(strategy, failures, NOW)
    assert isinstance(decision, str) and why in decision


def test_giving_up_does_not_wear_off_as_time_goes_by() -> None:
    """A tick an hour later looks at the same failures, and must not start again what was given up."""
    failures = row(8_750.0, 8_800.0, 8_900.0, 9_000.0)
    assert isinstance(next_restart(RATE, failures, NOW + 3_600), str)


def test_a_long_life_begins_a_new_count() -> None:
    """Ten restarts in a year are no loop."""
    failures = [*row(*range(1_000, 1_010)), failed("long", 8_000.0, 9_000.0)]
    assert next_restart(EXPONENTIAL, failures, NOW) == Restart(9_001.0, 1)
    failures.append(failed("short", 9_100.0, 9_105.0))
    assert next_restart(EXPONENTIAL, failures, NOW) == Restart(9_107.0, 2)


def test_jitter_is_the_run_s_own_and_stays_within_its_part() -> None:
    """Each tick must come to the same moment; streams that failed together must not come back together."""
    jittered = RestartPolicy(initial_s=10.0, jitter=0.1)
    times = [next_restart(jittered, [failed(f"r{n}", 0.0, 9_000.0)], NOW).at for n in range(50)]
    assert times == [next_restart(jittered, [failed(f"r{n}", 0.0, 9_000.0)], NOW + 7).at for n in range(50)]
    assert all(9_009.0 <= at <= 9_011.0 for at in times) and len(set(times)) > 40


def test_a_clock_that_was_set_back_costs_no_more_than_the_pause() -> None:
    assert next_restart(FIXED, row(NOW + 86_400), NOW) == Restart(NOW + 10.0, 1)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (1.0, 10)),
        ({"STRATEGY": "none"}, None),
        ({"STRATEGY": "fixed-delay", "ATTEMPTS": "2", "DELAY_S": "3"}, (3.0, 2)),
        ({"STRATEGY": "failure-rate", "DELAY_S": "5"}, (5.0, 0)),
    ],
)
def test_the_environment_chooses_the_strategy(monkeypatch, variables, expected) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"X_{name}", value)
    monkeypatch.setenv("X_JITTER", "0")
    policy = RestartPolicy.from_environment("X_")
    found = next_restart(policy, row(9_000.0), NOW)
    assert expected == (None if isinstance(found, str) else (found.at - 9_000.0, policy.limit))


@pytest.mark.parametrize(("name", "value"), [("STRATEGY", "sometimes"), ("ATTEMPTS", "many"), ("DELAY_S", "-1")])
def test_a_wrong_setting_is_refused_when_the_location_loads(monkeypatch, name: str, value: str) -> None:
    """Else the first failure of the stream at night finds it."""
    monkeypatch.setenv(f"X_{name}", value)
    with pytest.raises(ValueError, match=name.lower()):
        RestartPolicy.from_environment("X_")


@pytest.mark.parametrize(
    ("recoveries", "lives", "opened"),
    [
        ([], [], False),
        ([NOW - 100, NOW - 50], [], False),
        ([NOW - 100, NOW - 50, NOW - 10], [], True),
        ([NOW - 1_000, NOW - 950, NOW - 10], [], False),  # long ago
        ([NOW - 800, NOW - 700, NOW - 10], [(NOW - 600, NOW - 400)], False),  # a healthy stretch between
        ([NOW - 800, NOW - 700, NOW - 10], [(NOW - 600, NOW - 590)], True),  # no stretch
        ([NOW - 300, NOW - 250, NOW - 200], [(NOW - 190, NOW)], False),  # it lives since
    ],
)
def test_the_circuit_opens_when_recoveries_do_not_help(recoveries, lives, opened: bool) -> None:
    """Without it a sensor that misjudges asks for a recovery at each tick, forever."""
    reason = open_circuit(WatchPolicy(), recoveries, lives, NOW)
    assert (reason is not None) == opened
    assert reason is None or ("requested 3 recoveries within 15 minutes" in reason and "by hand" in reason)


def test_the_circuit_is_a_setting(monkeypatch) -> None:
    monkeypatch.setenv("X_MAX_RECOVERIES", "1")
    policy = WatchPolicy.from_environment("X_")
    assert open_circuit(policy, [NOW - 10], [], NOW) and not open_circuit(WatchPolicy(), [NOW - 10], [], NOW)
