"""A circuit breaker for recoveries that sensors request and that do not help."""

from __future__ import annotations

from collections.abc import Iterable

from dagster_exactly_once.names import RECOVERY_JOB
from dagster_exactly_once.sensors.settings import WatchPolicy


def open_circuit(
    policy: WatchPolicy, recoveries: Iterable[float], lifetimes: Iterable[tuple[float, float]], now: float
) -> str | None:
    """Say why sensors may request no further recovery; None when they may.

    They may request ``max_recoveries`` within ``window_s``, unless the stream was healthy for ``healthy_s`` in between.

    Parameters
    ----------
    recoveries : iterable of float
        When sensors launched recoveries, in seconds since the epoch.
    lifetimes : iterable of (float, float)
        Start and end of each run of the stream; ``now`` as the end of a live one.
    """
    healthy_until = max((end for start, end in lifetimes if end - start >= policy.healthy_s), default=float("-inf"))
    since = max(now - policy.window_s, healthy_until)
    recent = sorted(at for at in recoveries if at > since)
    if len(recent) < policy.max_recoveries:
        return None
    closes_s = max(0.0, recent[-policy.max_recoveries] + policy.window_s - now)
    return (
        f"the circuit breaker is open: sensors requested {len(recent)} recoveries within {policy.window_s / 60:g} "
        f"minutes, and none helped. Read the log of the newest recovery, then launch the job {RECOVERY_JOB} by hand "
        "(recoveries that a person launches do not count). Sensors may request a recovery again in "
        f"{closes_s / 60:.0f} min"
    )
