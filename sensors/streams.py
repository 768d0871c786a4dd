"""The sensors that watch the streams and restart them: checkpoint progress, stale transactions, failed runs, liveness.

The library has their verdicts (``dagster_exactly_once/sensors/``); their intervals are this code location's.
"""

from __future__ import annotations

import dagster as dg

from dagster_exactly_once import Stream, exactly_once_sensors


def stream_sensors(*streams: Stream) -> list[dg.SensorDefinition]:
    """Return the sensors of ``streams``; put one of your own beside them here."""
    return exactly_once_sensors(
        *streams,
        progress_every_s=10,  # asks the brokers and reads the checkpoint: eight streams at once, within 8 s
        stale_every_s=30,  # asks the transaction coordinators; transactions are stale after minutes
        failure_every_s=5,  # reads Dagster's runs; readers wait until the sink of a failed run is recovered
        liveness_every_s=5,  # looks at processes of this host, and starts a stream after its recovery
    )
