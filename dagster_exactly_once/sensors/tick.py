"""Parts that all sensors share: the sensor itself, the order of its streams, its cursor, and the result of a tick."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import dagster as dg

from dagster_exactly_once.private import UnresolvedAssetJobDefinition
from dagster_exactly_once.runs.history import Histories, StreamHistory
from dagster_exactly_once.runs.location import location_of_tick
from dagster_exactly_once.runs.spec import StreamSpec
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError, InvalidOption
from exactly_once.inspection.processes import Frozen
from exactly_once.tools.diagnosis import Diagnosis

T = TypeVar("T")

#: A job that a sensor may request runs of.
Job = dg.JobDefinition | UnresolvedAssetJobDefinition

#: The version of a cursor's content, raised when that changes its meaning; older cursors then count as empty.
CURSOR_VERSION = 2

#: Seconds of one tick, nearly all of them for the brokers. Dagster gives up a tick after 60 s, and a slow tick delays
#: others.
BUDGET_S = 8.0

#: The most calls at a time. They mostly wait for brokers, and each has connections and threads of its own, so more gain
#: little.
AT_ONCE = 8

#: Seconds below which a call does not begin: it would only fail, and say that the brokers are silent.
ENOUGH_S = 1.0

#: The entries that a tick keeps of one stream for the next tick.
Memory = Mapping[str, Any]


@dataclass(frozen=True)
class Judged:
    """The verdict of a sensor about one stream: what a tick says, and what it does.

    ``message`` is a sentence; of what is wrong, as its diagnosis has it. With ``attention`` it comes before those of
    streams that need nothing. ``requests`` are the recovery or the run of the stream to launch, or both: the second one
    is of use only behind the first. ``events`` are what Dagster stores with the tick, ``memory`` what the next tick
    knows (None: what this one knew). ``why`` needs a person, because nothing here ends it; its subject is the run.
    ``dead`` are runs to report as ended; ``end`` and ``resume`` frozen processes to kill, and to let go on.
    """

    message: str
    attention: bool = False
    requests: Sequence[dg.RunRequest] = ()
    events: Sequence[dg.AssetObservation | dg.AssetCheckEvaluation] = ()
    memory: Memory | None = None
    why: Diagnosis | None = None
    dead: tuple[str, ...] = ()
    end: tuple[Frozen, ...] = ()
    resume: tuple[Frozen, ...] = ()


class Tick:
    """The streams of one tick, those that earlier ticks missed first, and what was found out about them, by sink id.

    ``before`` is what the last tick kept of each stream, ``memory`` what this one keeps; ``deadline`` ends its time;
    ``location`` is the sensor's code location.
    """

    def __init__(self, context: dg.SensorEvaluationContext, streams: Sequence[StreamSpec]):
        self.deadline = Deadline(BUDGET_S)
        self.context = context
        self.location = location_of_tick(context)
        last = read_cursor(context.cursor)
        missed = {sink_id: place for place, sink_id in enumerate(last.get("missed", ()))}
        self.streams = sorted(streams, key=lambda s: missed.get(s.sink_id, len(missed)))
        self.before: dict[str, Memory] = {s.sink_id: last.get("streams", {}).get(s.sink_id, {}) for s in streams}
        self.memory = dict(self.before)
        self.judged: dict[str, Judged] = {}
        self._missed: list[str] = []

    @cached_property
    def histories(self) -> Histories:
        """The runs of the sensor's code location, read when first asked for: behind the brokers' answers, so that a run
        that began meanwhile is seen.
        """
        return Histories(self.context.instance, self.location)

    @cached_property
    def summaries(self) -> dict[str, StreamHistory]:
        """The newest runs of each stream, by sink id (:meth:`Histories.summaries`)."""
        return self.histories.summaries(self.streams)

    def read_again(self) -> None:
        """Forget the runs that this tick has read, and give what follows the time of a tick."""
        self.deadline = Deadline(BUDGET_S)
        for name in ("histories", "summaries"):
            vars(self).pop(name, None)

    @property
    def requests(self) -> list[dg.RunRequest]:
        """The runs to request of all streams that were judged."""
        return [request for judged in self.judged.values() for request in judged.requests]

    def add(self, stream: StreamSpec, judged: Judged) -> None:
        """Note what was found out about a stream.

        Dagster (1.13.29) fails a tick of which it cannot launch one request, with the requests of all other streams:
        so a request that repeats a configuration which its job no longer takes is left out, and said.
        """
        unfit = ((n, request, why) for n, request in enumerate(judged.requests) if (why := self._unfit(request)))
        for n, request, why in islice(unfit, 1):
            sentence = (
                f"{judged.message} No run of the job {request.job_name} is requested, because the configuration that "
                f"it would repeat no longer fits that job: {why} Launch it by hand, with a configuration that fits."
            )
            memory = judged.memory if n else self.before[stream.sink_id]
            judged = Judged(sentence, attention=True, requests=judged.requests[:n], memory=memory)
        self.judged[stream.sink_id] = judged
        if judged.memory is not None:
            self.memory[stream.sink_id] = judged.memory

    def _unfit(self, request: dg.RunRequest) -> str:
        """Return why the job of a request does not take its configuration; empty where it does."""
        location = self.context.repository_def
        if location is None or request.job_name is None:
            return ""
        try:
            dg.validate_run_config(location.get_job(request.job_name), request.run_config)
        except dg.DagsterInvalidConfigError as error:
            return f"{error.errors[0].message.rstrip('.')}."
        return ""

    def failed(self, stream: StreamSpec, error: ExactlyOnceError, why: str = "") -> None:
        """Note that a stream could not be read; the other streams are judged all the same.

        Raises InvalidOption, which all streams share: a tick that is skipped for ever would look like a healthy one.
        """
        if isinstance(error, InvalidOption):
            raise error
        self.add(stream, Judged(f"{error} This sensor did nothing{why}.", attention=True))

    def missed(self, stream: StreamSpec) -> None:
        """Note that the tick ran out of time before a stream."""
        self._missed.append(stream.sink_id)
        sentence = "The tick ran out of time before this stream; the next tick checks it first."
        self.add(stream, Judged(sentence, attention=True))

    def each(self, found: Mapping[str, T | ExactlyOnceError], judge: Callable[[StreamSpec, T], Judged]) -> None:
        """Judge each stream by what was ``found`` of it; one of which nothing was found was missed."""
        for stream in self.streams:
            reading = found.get(stream.sink_id)
            if reading is None:
                self.missed(stream)
            elif isinstance(reading, ExactlyOnceError):
                self.failed(stream, reading)
            else:
                self.add(stream, judge(stream, reading))

    def result(
        self,
        notes: Sequence[str] = (),
        events: Sequence[dg.AssetObservation] = (),
        requests: Sequence[dg.RunRequest] = (),
    ) -> dg.SensorResult:
        """Make the result, with sentences, observations and runs that belong to no single stream."""
        judged = self.judged.values()
        message = "\n".join([*self._sentences(), *notes]) or "There are no streams."
        wanted = [*self.requests, *requests]
        if wanted:  # Dagster shows no reason beside a request
            self.context.log.info(message)
        kept = {"version": CURSOR_VERSION, "streams": self.memory, "missed": self._missed}
        return dg.SensorResult(
            run_requests=wanted or None,
            skip_reason=None if wanted else message,
            cursor=json.dumps(kept, sort_keys=True),
            asset_events=[*(event for j in judged for event in j.events), *events],
        )

    def _sentences(self) -> list[str]:
        """Return a sentence for each stream, with its name unless it is the only one; what is true of several once."""
        if len(self.streams) == 1:
            return [j.message for j in self.judged.values()]
        judged = [(s.name, self.judged[s.sink_id]) for s in self.streams if s.sink_id in self.judged]
        names: dict[str, list[str]] = {}
        for name, j in sorted(judged, key=lambda one: not one[1].attention):
            names.setdefault(j.message, []).append(name)
        return [f"{', '.join(those)}: {message}" for message, those in names.items()]


def check_jobs(sensor: str, wanted: Iterable[str], jobs: Iterable[Job]) -> None:
    """Raise DagsterInvalidDefinitionError unless ``jobs`` have all names that a sensor requests."""
    if missing := sorted(set(wanted) - {job.name for job in jobs}):
        raise dg.DagsterInvalidDefinitionError(f"{sensor} cannot start {', '.join(missing)}: pass each of these jobs")


def read_cursor(cursor: str | None) -> dict[str, Any]:
    """Return the content of the last tick's cursor; empty without one that this version understands."""
    try:
        found = json.loads(cursor or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and found.get("version") == CURSOR_VERSION else {}


def sensor_over(
    streams: Sequence[StreamSpec], name: str, every_s: int, resources: Sequence[str], **more: Any
) -> Callable[[Callable[[Tick], dg.SensorResult]], dg.SensorDefinition]:
    """Return the decorator of what a sensor does at each tick over ``streams``; ``more`` is of :func:`dagster.sensor`.

    Dagster looks at its sensors every 5 s. It misses an interval of exactly 5, 10 or 30 s by milliseconds at every
    other look, and the tick then comes 5 s late; with one second less it comes on time. A toggle in the UI overrules
    ``EXACTLY_ONCE_SENSORS=stopped``.
    """
    stopped = os.environ.get("EXACTLY_ONCE_SENSORS", "running").lower() == "stopped"
    made = dg.sensor(
        name=name,
        minimum_interval_seconds=every_s - 1,
        default_status=dg.DefaultSensorStatus.STOPPED if stopped else dg.DefaultSensorStatus.RUNNING,
        required_resource_keys=set(resources),
        **more,
    )

    def decorated(body: Callable[[Tick], dg.SensorResult]) -> dg.SensorDefinition:
        def sensor(context: dg.SensorEvaluationContext, **_: Any) -> dg.SensorResult:  # direct calls pass resources
            return body(Tick(context, streams))

        return made(sensor)

    return decorated


def ask_each(
    streams: Sequence[StreamSpec], ask: Callable[[StreamSpec, float], T], deadline: Deadline
) -> dict[str, T | ExactlyOnceError]:
    """Return, by sink id, ``ask(stream, budget_s)`` or its error; streams for which no time was left are missing."""

    def found(stream: StreamSpec) -> dict[str, T | ExactlyOnceError]:
        left = deadline.left
        if left < ENOUGH_S:
            return {}
        try:
            return {stream.sink_id: ask(stream, left)}
        except ExactlyOnceError as error:
            return {stream.sink_id: error}

    if not streams:
        return {}
    with ThreadPoolExecutor(min(AT_ONCE, len(streams)), thread_name_prefix="ask") as threads:
        return {sink_id: result for some in threads.map(found, streams) for sink_id, result in some.items()}
