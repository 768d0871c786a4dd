"""Flink's restart strategies, as pure functions over the failed runs in a row.

The failures come from Dagster's run storage, so attempts count across restarts of the daemon, and two daemons decide
the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dagster_exactly_once.runs.history import FailedRun


class Restart(NamedTuple):
    """Start again, not before ``at``; ``attempt`` counts from 1."""

    at: float
    attempt: int


class GiveUp(NamedTuple):
    """Start no more: a person must look."""

    reason: str


@dataclass(frozen=True)
class NoRestart:
    """A failure stays a failure."""


@dataclass(frozen=True)
class FixedDelay:
    """A strategy of so many restarts in a row, with the same pause before each."""

    attempts: int
    delay_s: float


@dataclass(frozen=True)
class ExponentialDelay:
    """A pause that grows with each failure in a row, up to a longest one.

    ``jitter`` is the share of the pause by which it may be shorter or longer, so that streams that failed together do
    not restart together. A run that lived for ``reset_after_s`` begins a new count.
    """

    initial_s: float
    max_s: float
    multiplier: float
    jitter: float
    reset_after_s: float
    attempts: int


@dataclass(frozen=True)
class FailureRate:
    """Restarts as long as no more than ``max_failures`` fall into one interval."""

    max_failures: int
    interval_s: float
    delay_s: float


RestartStrategy = NoRestart | FixedDelay | ExponentialDelay | FailureRate


def next_restart(strategy: RestartStrategy, failures: Sequence[FailedRun], now: float) -> Restart | GiveUp:
    """Decide when to start again after the last of ``failures``.

    Parameters
    ----------
    failures : sequence of FailedRun
        In a row, oldest first, at least one.
    now : float
        No pause begins later than this, even if a clock was set back.
    """
    last = failures[-1]
    failed = min(last.ended, now)
    if isinstance(strategy, NoRestart):
        return GiveUp("the restart strategy is 'none'")
    if isinstance(strategy, FixedDelay):
        attempt = len(failures)
        if attempt > strategy.attempts:
            return GiveUp(f"{strategy.attempts} restarts in a row did not help (fixed-delay)")
        return Restart(failed + strategy.delay_s, attempt)
    if isinstance(strategy, FailureRate):
        recent = sum(f.ended > last.ended - strategy.interval_s for f in failures)
        if recent > strategy.max_failures:
            return GiveUp(
                f"{recent} failures within {strategy.interval_s:g} s, failure-rate allows {strategy.max_failures}"
            )
        return Restart(failed + strategy.delay_s, len(failures))
    attempt = _since_reset(failures, strategy.reset_after_s)
    if attempt > strategy.attempts:
        return GiveUp(f"{strategy.attempts} restarts in a row did not help (exponential-delay)")
    pause = min(strategy.max_s, strategy.initial_s * strategy.multiplier ** min(attempt - 1, 64))  # no overflow
    return Restart(failed + pause * (1 + strategy.jitter * _spread(last.run_id)), attempt)


def _since_reset(failures: Sequence[FailedRun], reset_after_s: float) -> int:
    """Return the failures from the last one that ended a long life."""
    count = 0
    for failure in reversed(failures):
        count += 1
        if failure.ended - failure.began >= reset_after_s:
            break
    return count


def _spread(run_id: str) -> float:
    """Return a number from -1 to 1 that depends on the run alone: every tick must find the same pause."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:4]) / 2**31 - 1
