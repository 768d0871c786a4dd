"""Parts that all sensors share: the cursor, and the result of a tick."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import dagster as dg

#: Raised when the content of a cursor changes its meaning; older cursors then count as empty.
CURSOR_VERSION = 1

#: The time that one tick may spend on the brokers. Dagster gives up a tick after 60 s, and a slow tick delays others.
BUDGET_S = 8.0

#: Dagster looks at its sensors every 5 s. It misses an interval of exactly 5, 10 or 30 s by milliseconds at every other
#: look, and the tick then comes 5 s late; with one second less it comes on time.
EVERY_5_S, EVERY_10_S, EVERY_30_S = 4, 9, 29


def read_cursor(cursor: str | None) -> dict[str, Any]:
    """Return the data of the last tick; empty without one that this version understands."""
    try:
        found = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and found.get("version") == CURSOR_VERSION else {}


def write_cursor(**values: Any) -> str:
    """Make the cursor for the next tick."""
    return json.dumps({"version": CURSOR_VERSION, **values}, sort_keys=True)


def ended(
    context: dg.SensorEvaluationContext,
    message: str,
    request: dg.RunRequest | None = None,
    cursor: str | None = None,
    events: Sequence[dg.AssetObservation] = (),
) -> dg.SensorResult:
    """Make the result of a tick. A request's message goes to the tick's log: Dagster shows no reason beside it."""
    if request is not None:
        context.log.info(message)
    return dg.SensorResult(
        run_requests=[request] if request else None,
        skip_reason=None if request else message,
        cursor=cursor if cursor is not None else context.cursor,
        asset_events=events,
    )


def default_status() -> dg.DefaultSensorStatus:
    """Return RUNNING, unless ``EXACTLY_ONCE_SENSORS=stopped``. A toggle in the UI overrules it."""
    stopped = os.environ.get("EXACTLY_ONCE_SENSORS", "running").lower() == "stopped"
    return dg.DefaultSensorStatus.STOPPED if stopped else dg.DefaultSensorStatus.RUNNING
