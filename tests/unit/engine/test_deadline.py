"""One budget for a step: it ends, and it always allows one try."""

from __future__ import annotations

import time

import pytest

from exactly_once import deadline as module
from exactly_once.deadline import Deadline


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_deadline_counts_down_and_never_below_zero(clock: Clock) -> None:
    """A negative time-out means "forever" to some clients: a claim that never ends."""
    d = Deadline(10.0)
    assert (d.left, d.over, d.seconds) == (10.0, False, 10.0)
    clock.now += 4
    assert (d.left, d.over) == (6.0, False)
    clock.now += 60
    assert (d.left, d.over) == (0.0, True)


@pytest.mark.parametrize("budget", [0.0, -1.0, 0.01])
def test_a_spent_budget_still_allows_one_try(clock: Clock, budget: float) -> None:
    """Else an EndTxn that comes late in a step is never sent, and its batch stays undone without having been tried."""
    assert list(Deadline(budget).tries()) == [0]


def test_pauses_double_up_to_the_longest_and_end_within_the_budget(clock: Clock) -> None:
    """A broker that restarts is asked again soon, and one that is dead does not cost more than the budget."""
    tries = list(Deadline(3.0).tries(first_pause_s=0.1, longest_pause_s=0.5))
    assert clock.slept[:4] == [0.1, 0.2, 0.4, 0.5]
    assert max(clock.slept) == 0.5
    assert sum(clock.slept) <= 3.0
    assert tries == list(range(len(clock.slept) + 1))


def test_what_a_try_costs_counts(clock: Clock) -> None:
    """Time-outs inside a step share its budget; they do not add up."""
    n = 0
    for _ in Deadline(10.0).tries():
        clock.now += 4
        n += 1
    assert n == 3


def test_the_real_clock_is_monotonic_time() -> None:
    """A wall clock that is set back would stretch a budget without bound."""
    before = time.monotonic()
    assert 0.9 < Deadline(1.0).left <= 1.0
    assert time.monotonic() - before < 0.1
