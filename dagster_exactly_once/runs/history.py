"""The history of a stream: its runs, its recoveries, and why the newest ones failed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import dagster as dg

from dagster_exactly_once.private import RUN_FAILURE_REASON_TAG, ErrorSource
from dagster_exactly_once.runs.failures import Failure, failure
from dagster_exactly_once.runs.runs import Run, Runs
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_ATTEMPT, TAG_BESIDE

#: FailedRun reasons in Dagster after which the same start fails again.
_HOPELESS = ("JOB_INITIALIZATION_FAILURE", "RUN_EXCEPTION")


@dataclass(frozen=True)
class FailedRun:
    """A run that failed, and when it began and ended, in seconds since the epoch."""

    run_id: str
    began: float
    ended: float


@dataclass(frozen=True)
class StreamHistory:
    """The runs that concern a sink, newest first.

    Attributes
    ----------
    streams : tuple of Run
        Runs of the stream, of its own job or of others that materialize its assets.
    others : tuple of Run
        Runs in progress that work on the same sink, or will: see :meth:`Runs.others`.
    stream_failure, recovery_failure : Failure or None
        The failure of the newest of each, if it failed.
    """

    now: float
    streams: tuple[Run, ...] = ()
    recoveries: tuple[Run, ...] = ()
    others: tuple[Run, ...] = ()
    stream_failure: Failure | None = None
    recovery_failure: Failure | None = None

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

    def failures(self) -> list[FailedRun]:
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
        counted = {run.tags.get(TAG_BESIDE) for run in row}  # the run beside a recovery failed of the same cause
        row += [
            r
            for r in self.recoveries
            if r.status == "FAILURE"
            and r.restart_of
            and not r.by_person
            and r.created > oldest.created
            and r.run_id not in counted
        ]
        return [
            FailedRun(r.run_id, r.started or r.created, r.ended or r.created)
            for r in sorted(row, key=lambda r: r.ended or r.created)
        ]

    def lifetimes(self) -> list[tuple[float, float]]:
        """Return the start and end of each run of the stream."""
        return [
            (r.started, (r.ended or r.started) if not r.works else self.now)
            for r in self.streams
            if r.started is not None
        ]


class Histories:
    """The histories of streams at one moment: each tick makes one."""

    def __init__(self, instance: dg.DagsterInstance):
        self._instance = instance
        self.now = time.time()
        self.runs = Runs(instance)

    def summaries(self, streams: Sequence[StreamSpec]) -> dict[str, StreamHistory]:
        """Return, by sink id, what each stream does now, in a few queries for all: enough to see whether something is
        to be done, not to do it.

        ``streams`` of a history are the runs in progress, or the newest ones; ``recoveries`` are those in progress, and
        those that request a restart of the newest run. Reasons of failures are left out.
        """
        runs = self.runs
        streams_of = {s.sink_id: runs.in_progress(s) for s in streams}
        idle = [s for s in streams if not any(r.waits or r.works for r in streams_of[s.sink_id])]
        streams_of |= runs.newest(idle)
        ended = [streams_of[s.sink_id][0].run_id for s in idle if streams_of[s.sink_id]]
        restarting = runs.restarting(ended)

        def summary(stream: StreamSpec) -> StreamHistory:
            found = streams_of[stream.sink_id]
            wanted = restarting.get(found[0].run_id, ()) if found else ()
            recoveries = (*runs.recovering(stream), *(r for r in wanted if not r.in_progress))
            return StreamHistory(self.now, found, recoveries, runs.others(stream))

        return {s.sink_id: summary(s) for s in streams}

    def whole(self, stream: StreamSpec) -> StreamHistory:
        """Return the history as far as any decision looks back."""
        streams, recoveries = self.runs.of_stream(stream), self.runs.recoveries(stream)
        why, why_recovery = _why(self._instance, streams), _why(self._instance, recoveries)
        return StreamHistory(self.now, streams, recoveries, self.runs.others(stream), why, why_recovery)


def read_history(instance: dg.DagsterInstance, stream: StreamSpec) -> StreamHistory:
    """Read the whole history of one stream as it is now."""
    return Histories(instance).whole(stream)


def attempt_of(run: Run) -> int:
    """Return the number of a restart in a row; 0 for a first start."""
    found = run.tags.get(TAG_ATTEMPT, "")
    return int(found) if found.isdigit() else 0


def classify(instance: dg.DagsterInstance, run_id: str, reason: str = "") -> Failure:
    """Say why a run failed: by the classification of its failed step, else by its end.

    ``reason`` is Dagster's own, from the run's tag.
    """
    kind = dg.DagsterEventType
    records = instance.get_records_for_run(
        run_id, of_type={kind.PIPELINE_CANCELING, kind.STEP_FAILURE, kind.PIPELINE_FAILURE}
    ).records
    events = [r.event_log_entry.get_dagster_event() for r in records]
    unwanted = any(e.event_type is kind.PIPELINE_CANCELING for e in events)
    for event in (e for e in events if e.event_type is kind.STEP_FAILURE):
        data = event.step_failure_data
        told = {k: v.value for k, v in (data.user_failure_data.metadata if data.user_failure_data else {}).items()}
        if "restart_heals" in told:
            return failure(
                str(told.get("code", "UNCLASSIFIED")),
                str(told.get("cause", "")),
                str(told.get("way_out", "")),
                bool(told["restart_heals"]),
                unwanted,
            )
        if data.error_source is ErrorSource.INTERRUPT:
            return failure("INTERRUPTED", "something other than Dagster asked its process to end", unwanted=unwanted)
        described = data.user_failure_data.description if data.user_failure_data else None
        error = data.error.cause or data.error if data.error else None
        message = described or (error.message if error else None) or f"step {event.step_key} failed"
        return failure("UNCLASSIFIED", _line(message), "Read the run's log", False, unwanted)
    said = next((_line(e.message or "") for e in events if e.event_type is kind.PIPELINE_FAILURE), None)
    last_words = said or "the run failed outside any step"
    if reason in _HOPELESS:
        return failure(reason, last_words, "Read the run's log", False, unwanted)
    return failure("PROCESS-GONE", last_words, unwanted=unwanted)


def _why(instance: dg.DagsterInstance, runs: tuple[Run, ...]) -> Failure | None:
    if not runs or runs[0].status != "FAILURE":
        return None
    why = classify(instance, runs[0].run_id, runs[0].tags.get(RUN_FAILURE_REASON_TAG, ""))
    return replace(why, subject=f"run {runs[0].name}")


def _line(text: str) -> str:
    """Return the first line that is not blank."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")[:500]
