"""The history of a stream: its runs, its recoveries, and why the newest ones failed."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import dagster as dg

from dagster_exactly_once.names import RECOVERY_OP
from dagster_exactly_once.private import RUN_FAILURE_REASON_TAG, RUN_KEY_TAG, ErrorSource
from dagster_exactly_once.runs.failures import Failure, failure, first_line
from dagster_exactly_once.runs.runs import Run, Runs, op_config
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_ATTEMPT, TAG_BESIDE

#: Reasons that Dagster gives for a failure after which the same start fails again.
_HOPELESS = ("JOB_INITIALIZATION_FAILURE", "RUN_EXCEPTION")

#: The words of Dagster's run monitoring for its request to end, and for the end itself; a person's request has neither.
_LIMIT = re.compile(r"exceed(?:ing|ed) maximum runtime of (\d+) seconds", re.IGNORECASE)
_WITHOUT_LIMIT = "Tag the run, or its job, with dagster/max_runtime: 0, as the stream's own job does"


@dataclass(frozen=True)
class StreamHistory:
    """The runs that concern a sink, newest first.

    ``streams`` are those of the stream, by its own job or by others that materialize its assets; ``others`` work on the
    same sink, or will (:meth:`Runs.others`). The failures are those of the newest of each, if it failed. All are of one
    code ``location`` ("": of any).
    """

    now: float
    streams: tuple[Run, ...] = ()
    recoveries: tuple[Run, ...] = ()
    others: tuple[Run, ...] = ()
    stream_failure: Failure | None = None
    recovery_failure: Failure | None = None
    location: str = ""

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
        took_over = op_config(r.config, RECOVERY_OP).get("take_over") is True and r.created >= run.created
        after = run.ended is not None and r.created >= run.ended
        return r if r.restart_of == run.run_id or after or took_over else None

    def failures(self) -> list[Run]:
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
        # the run beside a recovery failed of the same cause
        counted = {key for run in row if (key := run.tags.get(TAG_BESIDE))}
        row += [
            r
            for r in self.recoveries
            if r.status == "FAILURE"
            and r.restart_of
            and not r.by_person
            and r.created > oldest.created
            and r.tags.get(RUN_KEY_TAG) not in counted
        ]
        return sorted(row, key=lambda r: r.over)

    def lifetimes(self) -> list[tuple[float, float]]:
        """Return the start and end of each run of the stream."""
        return [
            (r.started, (r.ended or r.started) if not r.works else self.now)
            for r in self.streams
            if r.started is not None
        ]


class Histories:
    """The histories of the streams of a code ``location`` at one moment: each tick makes one."""

    def __init__(self, instance: dg.DagsterInstance, location: str = ""):
        self._instance, self._location = instance, location
        self.now = time.time()
        self.runs = Runs(instance, location)

    def summaries(self, streams: Sequence[StreamSpec]) -> dict[str, StreamHistory]:
        """Return, by sink id, what each stream does now: enough to see whether something is to be done, not to do it.

        ``streams`` are the runs in progress, or the newest ones; ``recoveries`` are those in progress, and those that
        request a restart of the newest run. Reasons of failures are left out.
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
            return StreamHistory(self.now, found, recoveries, runs.others(stream), location=self._location)

        return {s.sink_id: summary(s) for s in streams}

    def whole(self, stream: StreamSpec) -> StreamHistory:
        """Return the history as far as any decision looks back."""
        streams, recoveries = self.runs.of_stream(stream), self.runs.recoveries(stream)
        why, why_recovery = _why(self._instance, streams), _why(self._instance, recoveries)
        others = self.runs.others(stream)
        return StreamHistory(self.now, streams, recoveries, others, why, why_recovery, self._location)


def read_history(instance: dg.DagsterInstance, stream: StreamSpec, location: str = "") -> StreamHistory:
    """Read the whole history of one stream of a code location as it is now."""
    return Histories(instance, location).whole(stream)


def attempt_of(run: Run) -> int:
    """Return the number of a restart in a row; 0 for a first start."""
    found = run.tags.get(TAG_ATTEMPT, "")
    return int(found) if found.isdigit() else 0


def classify(instance: dg.DagsterInstance, run_id: str, reason: str = "") -> Failure:
    """Say why a run failed: by what asked it to end, by the classification of its failed step, else by its end and by
    Dagster's ``reason``. The first of its events is the cause of those that follow.
    """
    kind = dg.DagsterEventType
    records = instance.get_records_for_run(
        run_id, of_type={kind.PIPELINE_CANCELING, kind.STEP_FAILURE, kind.PIPELINE_FAILURE}
    ).records
    events = [r.event_log_entry.get_dagster_event() for r in records]
    if events and (limit := _LIMIT.search(events[0].message or "")):
        cause = f"Dagster's run monitoring ended it after its maximum runtime of {limit[1]} s"
        return failure("MAX-RUNTIME", cause, _WITHOUT_LIMIT)
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
        return failure("UNCLASSIFIED", first_line(message), "Read the run's log", False, unwanted)
    said = next((first_line(e.message or "") for e in events if e.event_type is kind.PIPELINE_FAILURE), None)
    last_words = said or "the run failed outside any step"
    if reason in _HOPELESS:
        return failure(reason, last_words, "Read the run's log", False, unwanted)
    return failure("PROCESS-GONE", last_words, unwanted=unwanted)


def _why(instance: dg.DagsterInstance, runs: tuple[Run, ...]) -> Failure | None:
    if not runs or runs[0].status != "FAILURE":
        return None
    why = classify(instance, runs[0].run_id, runs[0].tags.get(RUN_FAILURE_REASON_TAG, ""))
    return replace(why, subject=f"run {runs[0].name}")
