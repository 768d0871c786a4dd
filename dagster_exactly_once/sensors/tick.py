"""Parts that all sensors share: the order of the streams, the cursor, and the result of a tick."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_exactly_once.runs.spec import StreamSpec
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError, InvalidOption

#: Raised when the content of a cursor changes its meaning; older cursors then count as empty.
CURSOR_VERSION = 2

#: The time of one tick, nearly all of it for the brokers. Dagster gives up a tick after 60 s, and a slow tick delays
#: others.
BUDGET_S = 8.0

#: What a tick keeps of one stream for the next tick.
Memory = Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """The sentence and the requests of a tick about one stream.

    Attributes
    ----------
    attention : bool
        Whether the sentence comes before those of streams that need nothing.
    memory : mapping or None
        What the next tick should know; None: what this one knew.
    """

    message: str
    attention: bool = False
    request: dg.RunRequest | None = None
    events: Sequence[dg.AssetObservation | dg.AssetCheckEvaluation] = ()
    memory: Memory | None = None


class Tick:
    """The streams of one tick, and what was found out about them.

    Attributes
    ----------
    streams : list of StreamSpec
        In the order of this tick: those that earlier ticks did not reach come first, the longest missed of all
        first.
    deadline : Deadline
        The end of the tick's time.
    """

    def __init__(self, context: dg.SensorEvaluationContext, streams: Sequence[StreamSpec]):
        self.deadline = Deadline(BUDGET_S)
        last = read_cursor(context.cursor)
        missed = {sink_id: place for place, sink_id in enumerate(last.get("missed", ()))}
        memories = last.get("streams", {})
        self.streams = sorted(streams, key=lambda s: missed.get(s.sink_id, len(missed)))
        self._context = context
        self._before: dict[str, Memory] = {s.sink_id: memories.get(s.sink_id, {}) for s in streams}
        self._memories = dict(self._before)
        self._missed: list[str] = []
        self._judged: list[tuple[StreamSpec, Judged]] = []

    def memory(self, stream: StreamSpec) -> Memory:
        """Return what the last tick kept of a stream; empty for a new one."""
        return self._memories[stream.sink_id]

    def add(self, stream: StreamSpec, judged: Judged) -> None:
        """Note what was found out about a stream."""
        self._judged.append((stream, judged))
        if judged.memory is not None:
            self._memories[stream.sink_id] = judged.memory

    def failed(self, stream: StreamSpec, error: ExactlyOnceError, why: str = "", memory: Memory | None = None) -> None:
        """Note that a stream could not be read; the other streams are judged all the same.

        Raises
        ------
        InvalidOption
            When the connection, which all streams share, is set up wrongly, such as without brokers: a tick that is
            skipped for ever would look like a healthy one.
        """
        if isinstance(error, InvalidOption):
            raise error
        self.add(stream, Judged(f"{error} This sensor did nothing{why}.", attention=True, memory=memory))

    def missed(self, stream: StreamSpec) -> None:
        """Note that the tick ran out of time before a stream."""
        self._missed.append(stream.sink_id)
        self.add(
            stream,
            Judged("The tick ran out of time before this stream; the next tick checks it first.", attention=True),
        )

    def observed(self, stream: StreamSpec) -> bool:
        """Return whether this tick observes something of a stream."""
        return any(judged.events for judged_of, judged in self._judged if judged_of is stream)

    def said(self, stream: StreamSpec) -> str:
        """Return this tick's sentence about a stream."""
        return next((judged.message for judged_of, judged in self._judged if judged_of is stream), "")

    def before(self, stream: StreamSpec) -> str:
        """Return the state in which the last tick found a stream; "" for a new one."""
        return str(self._before[stream.sink_id].get("state", ""))

    def changed(self, stream: StreamSpec) -> bool:
        """Return whether this tick found a stream in another state than the one before."""
        return self._before[stream.sink_id].get("state") != self.memory(stream).get("state")

    def result(
        self,
        notes: Sequence[str] = (),
        events: Sequence[dg.AssetObservation] = (),
        requests: Sequence[dg.RunRequest] = (),
    ) -> dg.SensorResult:
        """Make the result. A request's message goes to the tick's log: Dagster shows no reason beside it.

        ``notes`` are sentences, ``events`` observations and ``requests`` runs that belong to no single stream.
        """
        message = "\n".join([*self._sentences(), *notes]) or "There are no streams."
        wanted = [*(j.request for _, j in self._judged if j.request is not None), *requests]
        if wanted:
            self._context.log.info(message)
        return dg.SensorResult(
            run_requests=wanted or None,
            skip_reason=None if wanted else message,
            cursor=write_cursor(self._memories, self._missed),
            asset_events=[*(event for _, j in self._judged for event in j.events), *events],
        )

    def _sentences(self) -> list[str]:
        """Return a sentence for each stream, with its name unless it is the only one."""
        if len(self.streams) == 1:
            return [j.message for _, j in self._judged]
        ordered = sorted(self._judged, key=lambda found: not found[1].attention)
        return [f"{stream.name}: {j.message}" for stream, j in ordered]


def read_cursor(cursor: str | None) -> dict[str, Any]:
    """Return the content of the last tick's cursor; empty without one that this version understands."""
    try:
        found = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and found.get("version") == CURSOR_VERSION else {}


def write_cursor(streams: Mapping[str, Memory], missed: Sequence[str] = ()) -> str:
    """Make the cursor for the next tick: what to know of each stream, by sink id, and which it did not reach."""
    return json.dumps({"version": CURSOR_VERSION, "streams": streams, "missed": missed}, sort_keys=True)


def interval(every_s: int) -> int:
    """Return the ``minimum_interval_seconds`` of a sensor that ticks every ``every_s`` seconds.

    Dagster looks at its sensors every 5 s. It misses an interval of exactly 5, 10 or 30 s by milliseconds at every
    other look, and the tick then comes 5 s late; with one second less it comes on time.
    """
    return every_s - 1


def default_status() -> dg.DefaultSensorStatus:
    """Return RUNNING, unless ``EXACTLY_ONCE_SENSORS=stopped``. A toggle in the UI overrules it."""
    stopped = os.environ.get("EXACTLY_ONCE_SENSORS", "running").lower() == "stopped"
    return dg.DefaultSensorStatus.STOPPED if stopped else dg.DefaultSensorStatus.RUNNING
