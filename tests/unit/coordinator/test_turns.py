"""The turns of a driver's streams while one of them starts: few at once, in order, and nobody waits for one whose
brokers are away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from exactly_once.coordinator.turns import AT_ONCE, Turns, turns_of
from testkit.processes import until


class Steps:
    """Steps in threads of their own, each until it is told to end."""

    def __init__(self, turns: Turns):
        self.turns, self.begun = turns, list[int]()
        self._ends: list[threading.Event] = []
        self._threads: list[threading.Thread] = []

    def begin(self, turn: Callable[[], AbstractContextManager[None]] | None = None) -> None:
        """Ask for a turn, and return when the step waits for it or has it."""
        number, end = len(self._threads), threading.Event()

        def work() -> None:
            with (turn or self.turns.step)():
                self.begun.append(number)
                end.wait(30)

        self._ends.append(end)
        self._threads.append(threading.Thread(target=work, daemon=True))
        self._threads[-1].start()
        until("the step", lambda: number in self.begun or len(self.turns._waiting) + len(self.begun) > number)

    def end(self, number: int) -> None:
        """End a step that has its turn."""
        self._ends[number].set()
        self._threads[number].join(30)


def test_while_a_stream_claims_its_sink_few_steps_work_at_once_in_the_order_in_which_they_came() -> None:
    """Outage: fifty streams of a driver that start at once, and of which none gets on."""
    turns = Turns(lasts_s=60)
    steps = Steps(turns)
    for turn in (turns.claim, *(AT_ONCE + 1) * [turns.step]):
        steps.begin(turn)
    assert sorted(steps.begun) == list(range(AT_ONCE))
    steps.end(1)
    until("the next one", lambda: steps.begun[AT_ONCE:] == [AT_ONCE])
    steps.end(0)  # nobody claims any more
    until("all of them", lambda: len(steps.begun) == AT_ONCE + 2)


def test_streams_that_run_wait_for_nobody() -> None:
    """Outage: a bound that fits brokers beside the driver, and halves what fifty streams write to those far away."""
    steps = Steps(Turns(lasts_s=60))
    for number in range(10):
        steps.begin()
        until("the step", lambda number=number: number in steps.begun)  # type: ignore[misc]


def test_a_claim_whose_brokers_are_away_holds_up_nobody_for_longer_than_a_turn_lasts() -> None:
    """Outage: all streams of a driver wait for the two whose claim does not end."""
    turns = Turns(lasts_s=0.05)
    steps = Steps(turns)
    for turn in (*AT_ONCE * [turns.claim], *AT_ONCE * [turns.step]):
        steps.begin(turn)
    until("all of them", lambda: len(steps.begun) == 2 * AT_ONCE)


def test_a_step_that_fails_ends_its_turn() -> None:
    """Outage: a turn, or a claim, that nobody gives back."""
    turns = Turns(lasts_s=60)
    for turn in 2 * (turns.claim, turns.step, turns.claim):
        with pytest.raises(KeyError), turn():
            raise KeyError


def test_the_streams_to_one_cluster_share_their_turns() -> None:
    """Outage: a claim on brokers that are away slows the streams to others down."""
    assert turns_of("a:1") is turns_of("a:1") and turns_of("a:1") is not turns_of("b:1")
