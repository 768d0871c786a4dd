"""The runs of a stream and of its recovery, from Dagster's run storage."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from dagster._core.execution.plan.objects import ErrorSource
from dagster._core.storage.tags import RUN_FAILURE_REASON_TAG

from resources.run_process import TAG_HOST, TAG_PID, TAG_SINK, process_of
from sensors.restart import Failure
from sensors.stream import TAG_ATTEMPT, TAG_RECOVERS, TAG_RESTART_OF, StreamSpec

#: The sensors look at this many runs of each job: far above any limit of attempts.
LOOK_BACK = 50

#: Failure reasons in Dagster after which the same start fails again.
_HOPELESS = ("JOB_INITIALIZATION_FAILURE", "RUN_EXCEPTION")

_FINISHED = ("SUCCESS", "FAILURE", "CANCELED")


@dataclass(frozen=True)
class Classified:
    """Why a run failed.

    Attributes
    ----------
    heals : bool
        Whether starting again, unchanged, is the right reaction.
    unwanted : bool
        Whether a person had asked the run to end before it failed.
    """

    code: str
    cause: str
    way_out: str = ""
    heals: bool = True
    unwanted: bool = False


@dataclass(frozen=True)
class Run:
    """A run. Times are seconds since the epoch, None before the event; ``status`` is Dagster's name.

    ``alive``: whether its process lives; None when the process is on another host, or has not tagged the run yet.
    """

    run_id: str
    job: str
    status: str
    created: float
    started: float | None = None
    ended: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    alive: bool | None = None

    @property
    def in_progress(self) -> bool:
        """True while the run is not finished, also while it is queued."""
        return self.status not in _FINISHED

    @property
    def waits(self) -> bool:
        """True before its process has started."""
        return self.status in ("QUEUED", "NOT_STARTED")

    @property
    def works(self) -> bool:
        """True unless its process is known to be gone."""
        return self.in_progress and not self.waits and self.alive is not False

    @property
    def by_person(self) -> bool:
        """True if a person launched it, also as a re-execution of a sensor's run, whose tags it then carries."""
        return "dagster/sensor_name" not in self.tags or self.parent is not None

    @property
    def restart_of(self) -> str | None:
        """The stream run that this one replaces."""
        return self.tags.get(TAG_RESTART_OF)

    @property
    def took_over(self) -> bool:
        """True for a recovery with ``take_over``, which fences any driver at work on the sink."""
        ops = self.config.get("ops")
        configs = (
            [op.get("config") for op in ops.values() if isinstance(op, Mapping)] if isinstance(ops, Mapping) else []
        )
        return any(isinstance(c, Mapping) and c.get("take_over") is True for c in configs)

    @property
    def name(self) -> str:
        """Its name for people: the beginning of its id, as in the UI."""
        return self.run_id[:8]

    @property
    def host(self) -> str:
        """The machine of its process."""
        return self.tags.get(TAG_HOST, "")


@dataclass(frozen=True)
class History:
    """The runs that concern a sink, newest first.

    Attributes
    ----------
    others : tuple of Run
        Runs of other jobs, in progress on the same sink.
    stream_failure, recovery_failure : Classified or None
        The failure of the newest run of each job, if it failed.
    """

    now: float
    streams: tuple[Run, ...] = ()
    recoveries: tuple[Run, ...] = ()
    others: tuple[Run, ...] = ()
    stream_failure: Classified | None = None
    recovery_failure: Classified | None = None

    @property
    def stream(self) -> Run | None:
        """The newest run of the stream."""
        return self.streams[0] if self.streams else None

    @property
    def recovery(self) -> Run | None:
        """The newest recovery."""
        return self.recoveries[0] if self.recoveries else None

    def recovery_since(self, run: Run) -> Run | None:
        """Return the newest recovery, if it was launched because or after ``run`` ended, or ended ``run`` itself."""
        r = self.recovery
        if r is None:
            return None
        after = run.ended is not None and r.created >= run.ended
        return r if r.restart_of == run.run_id or after or (r.took_over and r.created >= run.created) else None

    def failures(self) -> list[Failure]:
        """Return the current streak of failures, oldest first: of the stream, and of recoveries that request a restart.

        The streak ends at a run that did not fail, or that a person launched: such a run starts a new streak.
        """
        row: list[Run] = []
        for run in self.streams:
            if run.status != "FAILURE":
                break
            row.append(run)
            if run.by_person:
                break
        if not row:
            return []
        oldest = row[-1]
        row += [
            r
            for r in self.recoveries
            if r.status == "FAILURE" and r.restart_of and not r.by_person and r.created > oldest.created
        ]
        return [
            Failure(r.run_id, r.started or r.created, r.ended or r.created)
            for r in sorted(row, key=lambda r: r.ended or r.created)
        ]

    def lives(self) -> list[tuple[float, float]]:
        """Return the start and end of each run of the stream."""
        return [
            (r.started, (r.ended or r.started) if not r.works else self.now)
            for r in self.streams
            if r.started is not None
        ]


def read_history(instance: dg.DagsterInstance, stream: StreamSpec) -> History:
    """Read the history of a stream as it is now."""
    streams = _runs(instance, stream, dg.RunsFilter(job_name=stream.job))
    recoveries = _runs(instance, stream, dg.RunsFilter(job_name=stream.recovery_job))
    unfinished = [s for s in dg.DagsterRunStatus if s.value not in _FINISHED]
    on_sink = _runs(instance, stream, dg.RunsFilter(statuses=unfinished, tags={TAG_SINK: stream.sink_id}))
    others = tuple(r for r in on_sink if r.job not in (stream.job, stream.recovery_job))
    return History(
        time.time(),
        streams,
        recoveries,
        others,
        _why(instance, streams),
        _why(instance, recoveries),
    )


def attempt_of(run: Run) -> int:
    """Return the number of a restart in a row; 0 for a first start."""
    found = run.tags.get(TAG_ATTEMPT, "")
    return int(found) if found.isdigit() else 0


def classify(instance: dg.DagsterInstance, run_id: str, reason: str = "") -> Classified:
    """Say why a run failed: by the classification of its failed step, else by its end.

    ``reason`` is Dagster's own, from the run's tag.
    """
    kind = dg.DagsterEventType
    unwanted = bool(instance.get_records_for_run(run_id, of_type=kind.PIPELINE_CANCELING, limit=1).records)
    for record in instance.get_records_for_run(run_id, of_type=kind.STEP_FAILURE).records:
        event = record.event_log_entry.get_dagster_event()
        data = event.step_failure_data
        told = {k: v.value for k, v in (data.user_failure_data.metadata if data.user_failure_data else {}).items()}
        if "restart_heals" in told:
            return Classified(
                str(told.get("code", "UNCLASSIFIED")),
                str(told.get("cause", "")),
                str(told.get("way_out", "")),
                bool(told["restart_heals"]),
                unwanted,
            )
        if data.error_source is ErrorSource.INTERRUPT:
            return Classified("INTERRUPTED", "something other than Dagster asked its process to end", unwanted=unwanted)
        described = data.user_failure_data.description if data.user_failure_data else None
        error = data.error.cause or data.error if data.error else None
        message = described or (error.message if error else None) or f"step {event.step_key} failed"
        return Classified("UNCLASSIFIED", _line(message), "Read the run's log", False, unwanted)
    if reason in _HOPELESS:
        return Classified(reason, _last_words(instance, run_id), "Read the run's log", False, unwanted)
    return Classified("PROCESS-GONE", _last_words(instance, run_id), unwanted=unwanted)


def _why(instance: dg.DagsterInstance, runs: tuple[Run, ...]) -> Classified | None:
    if not runs or runs[0].status != "FAILURE":
        return None
    return classify(instance, runs[0].run_id, runs[0].tags.get(RUN_FAILURE_REASON_TAG, ""))


def _last_words(instance: dg.DagsterInstance, run_id: str) -> str:
    records = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.PIPELINE_FAILURE, limit=1).records
    event = records[0].event_log_entry.dagster_event if records else None
    return _line(event.message or "") if event else "the run failed outside any step"


def _line(text: str) -> str:
    """Return the first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:500]


def _runs(instance: dg.DagsterInstance, stream: StreamSpec, which: dg.RunsFilter) -> tuple[Run, ...]:
    records = instance.get_run_records(which, limit=LOOK_BACK)
    return tuple(_run(r) for r in records if works_on(r.dagster_run, stream))


def _run(record: dg.RunRecord) -> Run:
    run = record.dagster_run
    signed = TAG_PID in run.tags and not run.is_finished
    return Run(
        run.run_id,
        run.job_name,
        run.status.value,
        record.create_timestamp.timestamp(),
        record.start_time,
        record.end_time,
        run.tags,
        run.run_config,
        run.parent_run_id,
        process_of(run).alive if signed else None,
    )


def works_on(run: dg.DagsterRun, stream: StreamSpec) -> bool:
    """Return whether a run of the stream's job, or of its recovery, works on the stream's sink: by the run's own tag,
    else by its configuration, else by the tag that the recovery's job gives it; True without any of them.
    """
    return _sink_of(run, stream.sink_id) == stream.sink_id


def _sink_of(run: dg.DagsterRun, default: str) -> str:
    if TAG_SINK in run.tags:
        return run.tags[TAG_SINK]
    ops = run.run_config.get("ops")
    for op in ops.values() if isinstance(ops, Mapping) else ():
        config = op.get("config") if isinstance(op, Mapping) else None
        sink_id = config.get("sink_id") if isinstance(config, Mapping) else None
        if isinstance(sink_id, str):
            return sink_id
    return run.tags.get(TAG_RECOVERS, default)
