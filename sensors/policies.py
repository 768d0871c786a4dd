"""The resources that the sensors read: when a stream restarts, and what counts as normal.

``EXACTLY_ONCE_RESTART_<FIELD>`` and ``EXACTLY_ONCE_WATCH_<FIELD>`` variables win over what stands here.
"""

from __future__ import annotations

import dagster as dg

from dagster_exactly_once import RestartPolicy, WatchPolicy


def policies() -> dict[str, dg.ConfigurableResource]:
    """Return the policies by the keys of their resources.

    Raises
    ------
    pydantic.ValidationError
        A variable has a value that its field cannot hold.
    """
    return {"restart_policy": restart_policy(), "watch_policy": watch_policy()}


def restart_policy() -> RestartPolicy:
    """Return when and how often a failed stream starts again: after 1 s, 2 s, 4 s, ..., ten times in a row."""
    return RestartPolicy.from_environment(
        "EXACTLY_ONCE_RESTART_",
        strategy="exponential-delay",
        attempts=10,  # fixed-delay counts them too
        initial_s=1.0,
        max_s=60.0,
        multiplier=2.0,
        jitter=0.1,
        reset_after_s=600.0,
        delay_s=10.0,  # with fixed-delay and failure-rate: the pause before a restart
        max_failures=3,  # with failure-rate: so many within interval_s
        interval_s=300.0,
        end_frozen_after_s=120.0,
    )


def watch_policy() -> WatchPolicy:
    """Return from when on a stream is stalled or lagging, a transaction stale, and a person told."""
    return WatchPolicy.from_environment(
        "EXACTLY_ONCE_WATCH_",
        stall_after_s=120.0,
        lag_limit=200_000,
        stale_after_s=300.0,
        hanging_older_than_s=900.0,  # the brokers' transaction.max.timeout.ms
        hanging_every_s=300.0,
        notice_after_s=180.0,
        max_recoveries=3,  # of one sink within window_s: then a person is told
        window_s=900.0,
        healthy_s=120.0,
    )
