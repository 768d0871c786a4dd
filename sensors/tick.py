"""What all sensors share: the cursor, and how a tick speaks."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import dagster as dg

#: Raised when what a cursor holds changes its meaning; an older one then counts as none.
CURSOR_VERSION = 1

#: All that one tick may spend on the brokers. Dagster gives up a tick after 60 s, and one that is slow delays others.
BUDGET_S = 8.0

#: Dagster looks at its sensors every 5 s. An interval of exactly 5, 10 or 30 s is missed by milliseconds at every other
#: look, and the tick then comes 5 s late; with one second less it comes when it should.
EVERY_5_S, EVERY_10_S, EVERY_30_S = 4, 9, 29


def read_cursor(cursor: str | None) -> dict[str, Any]:
    """What the last tick left; empty when there is none, or none that this version understands."""
    try:
        found = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and found.get("version") == CURSOR_VERSION else {}


def write_cursor(**values: Any) -> str:
    """The cursor for the next tick."""
    return json.dumps({"version": CURSOR_VERSION, **values}, sort_keys=True)


def ended(
    context: dg.SensorEvaluationContext,
    message: str,
    request: dg.RunRequest | None = None,
    cursor: str | None = None,
    events: Sequence[dg.AssetObservation] = (),
) -> dg.SensorResult:
    """The result of a tick. With a request the message stands in the tick's log: Dagster shows no reason beside it."""
    if request is not None:
        context.log.info(message)
    return dg.SensorResult(
        run_requests=[request] if request else None,
        skip_reason=None if request else message,
        cursor=cursor if cursor is not None else context.cursor,
        asset_events=events,
    )


def default_status() -> dg.DefaultSensorStatus:
    """RUNNING, unless ``EXACTLY_ONCE_SENSORS=stopped``. Once somebody has toggled a sensor, that is what counts."""
    stopped = os.environ.get("EXACTLY_ONCE_SENSORS", "running").lower() == "stopped"
    return dg.DefaultSensorStatus.STOPPED if stopped else dg.DefaultSensorStatus.RUNNING
