"""Flink's restart strategies, as pure functions over the failed runs in a row.

The failures come from Dagster's run storage, so attempts count across restarts of the daemon, and two daemons decide
the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from dagster_exactly_once.runs.history import FailedRun
from dagster_exactly_once.sensors.settings import RestartPolicy


class Restart(NamedTuple):
    """Start again, not before ``at``; ``attempt`` counts from 1."""

    at: float
    attempt: int


class GiveUp(NamedTuple):
    """Start no more: a person must look."""

    reason: str


def next_restart(policy: RestartPolicy, failures: Sequence[FailedRun], now: float) -> Restart | GiveUp:
    """Decide when to start again after the last of ``failures``, by the strategy of the policy.

    ``fixed-delay`` allows so many restarts in a row, with the same pause before each. ``failure-rate`` allows them as
    long as no more failures than its limit fall into one interval. ``exponential-delay`` begins a new count after a run
    that lived for ``reset_after_s``; its pause grows with each failure in a row, and is a share longer or shorter, so
    that streams that failed together do not restart together.

    Parameters
    ----------
    failures : sequence of FailedRun
        In a row, oldest first, at least one.
    now : float
        No pause begins later than this, even if a clock was set back.
    """
    last, attempt = failures[-1], len(failures)
    failed = min(last.ended, now)
    if policy.strategy == "none":
        return GiveUp("the restart strategy is 'none'")
    if policy.strategy == "failure-rate":
        recent = sum(f.ended > last.ended - policy.interval_s for f in failures)
        if recent > policy.max_failures:
            return GiveUp(
                f"runs failed {recent} times within {policy.interval_s:g} s, and failure-rate allows "
                f"{policy.max_failures}"
            )
        return Restart(failed + policy.delay_s, attempt)
    if policy.strategy == "exponential-delay":
        attempt = _since_reset(failures, policy.reset_after_s)
    if attempt > policy.attempts:
        return GiveUp(f"{policy.attempts} restarts in a row did not help ({policy.strategy})")
    if policy.strategy == "fixed-delay":
        return Restart(failed + policy.delay_s, attempt)
    pause = min(policy.max_s, policy.initial_s * policy.multiplier ** min(attempt - 1, 64))  # no overflow
    return Restart(failed + pause * (1 + policy.jitter * _spread(last.run_id)), attempt)


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
