"""One run of a stream writes at a time, whatever the Dagster instance lets start.

Kafka would fence the older of two drivers. That loses nothing, but each of them would fail in turn.
"""

from __future__ import annotations

import time

import dagster as dg

from dagster_exactly_once.names import RECOVERY_JOB
from dagster_exactly_once.private import RUN_KEY_TAG
from dagster_exactly_once.recovery.owners import SinkBusy
from dagster_exactly_once.runs.location import location_of
from dagster_exactly_once.runs.operator import frozen
from dagster_exactly_once.runs.process import FINISHED, WORKING, lacking, outlives, tag_run
from dagster_exactly_once.runs.runs import NEWEST_RUNS, Run, Runs
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import (
    ENDLESS,
    TAG_BESIDE,
    TAG_CONTINUES,
    TAG_JOB,
    TAG_READY,
    TAG_ROTATES,
    TAG_STREAM,
    TAG_WRITES,
)
from exactly_once.errors import ExactlyOnceError
from exactly_once.tools.operation.recover import LEAVING_S

#: Seconds to wait for a recovery: it takes seconds, and some minutes with thousands of parts; one whose process died is
#: reported within two. A long run gives up its rotation before.
LONGEST_S = 900.0

#: Seconds between two queries for older runs, by a run that has nothing else to do.
POLL_S = 1.0


class Canceled(ExactlyOnceError):
    """A person canceled the run for which this one waited."""

    code = "EO-CANCELED"
    default_safe = "This run wrote nothing"


class SingleWriter:
    """Says when a run may start Spark, and when it may start its query.

    Parameters
    ----------
    spec : StreamSpec
        The stream of the run.
    sink_id : str
        The sink of the run, which a person may have set to another one than the stream's.
    queue : str
        The tag by which later runs of the stream wait in Dagster's queue; "": none.
    """

    def __init__(
        self,
        context: dg.AssetExecutionContext | dg.OpExecutionContext,
        spec: StreamSpec,
        sink_id: str,
        queue: str = "",
    ):
        self._log, self._instance, self._run = context.log, context.instance, context.run
        self._spec, self._sink_id = spec, sink_id
        queued = TAG_JOB in context.run.tags or sink_id != spec.sink_id
        self._queue = {} if queued or not queue else {TAG_JOB: queue}
        fresh = context.run.parent_run_id is None  # a re-execution has the tags of the run that it repeats
        tags = context.run.tags if fresh else {}
        self._recovery, self._continued = tags.get(TAG_BESIDE), tags.get(TAG_CONTINUES)
        self._end = time.monotonic() + LONGEST_S
        self._said = False

    @property
    def waits(self) -> bool:
        """True when the run was launched beside a recovery, or to continue a long run."""
        return bool(self._recovery or self._continued)

    def begin(self) -> None:
        """Tag the run with its stream and its process, and wait for the older runs of the stream to end.

        Without a deadline, as in Dagster's queue, until the run is terminated; a run that was launched to continue
        another one, or beside a recovery, waits in :meth:`ready` instead.
        """
        tags = {TAG_STREAM: self._spec.name, **lacking(self._run, ENDLESS)}
        tag_run(self._instance, self._run.run_id, None, tags)
        if self.waits:
            return
        told = None
        while (other := self._other()) is not None:
            if told != other.run_id:
                self._log.info(_awaits(other, self._sink_id))
                told = other.run_id
            time.sleep(POLL_S)
        self._take()

    def ready(self) -> bool:
        """Return whether the query may start: whether the recovery or the run for which this run waits has ended.

        A recovery that failed does not stop this run, whose own start recovers the sink, or fails with its own error.

        Raises
        ------
        Canceled
        SinkBusy
            After :data:`LONGEST_S`.
        """
        if not self.waits:
            return True
        other = self._awaited()
        if other is not None and other.status not in FINISHED:
            return self._waits(other)
        if other is not None and other.status is dg.DagsterRunStatus.CANCELED:
            raise Canceled(
                f"a person canceled run {other.run_id[:8]} of {other.job_name}, and this run was waiting for it",
                f"To start the stream, launch {self._spec.job}, whose start also recovers the sink",
            )
        if other is not None and other.status is dg.DagsterRunStatus.FAILURE:
            self._log.warning(f"Run {other.run_id[:8]} of {other.job_name} failed; this run recovers the sink.")
        self._take()
        return True

    def _awaited(self) -> dg.DagsterRun | None:
        if not self._recovery:
            return self._instance.get_run_by_id(self._continued or "")
        wanted = dg.RunsFilter(job_name=RECOVERY_JOB, tags={RUN_KEY_TAG: self._recovery})
        return next(iter(self._instance.get_runs(wanted, limit=1)), None)

    def _waits(self, other: dg.DagsterRun) -> bool:
        if not self._said:
            self._said = True
            self._instance.add_run_tags(self._run.run_id, {TAG_READY: self._run.run_id})
            self._log.info(
                f"Spark is ready; the query starts when run {other.run_id[:8]} of {other.job_name} has ended."
            )
        if time.monotonic() < self._end:
            return False
        raise SinkBusy(
            f"run {other.run_id[:8]} of {other.job_name} is still {other.status.value} after {LONGEST_S:.0f} s",
            f"Read the log of run {other.run_id[:8]} of {other.job_name}, terminate that run if it hangs, then launch "
            f"{self._spec.job}",
            "This run wrote nothing",
        )

    def _other(self) -> Run | None:
        """Return a run of the stream that may be alive and comes first: one that writes, or was launched before this
        one. None on a sink of the run's own.
        """
        if self._sink_id != self._spec.sink_id:
            return None
        runs = Runs(self._instance, location_of(self._run)).in_progress(self._spec)  # newest first
        mine = next((n for n, run in enumerate(runs) if run.run_id == self._run.run_id), -1)
        newer, older = runs[: max(mine, 0)], runs[mine + 1 :]
        writing = [run for run in newer if run.tags.get(TAG_WRITES) == run.run_id]
        return next((run for run in (*writing, *older) if run.works), None) or self._outliving()

    def _outliving(self) -> Run | None:
        """Return a run that Dagster has given up a moment ago, and whose process still stops its query: one that does
        not end by itself is fenced.
        """
        newest = Runs(self._instance, location_of(self._run)).of_stream(self._spec, NEWEST_RUNS)
        ended = (run for run in newest if not run.in_progress and time.time() - run.over < LEAVING_S)
        return next((run for run in ended if outlives(self._instance, run)), None)

    def _take(self) -> None:
        """Tag the run with the sink: from now on recoveries and other runs leave the sink to it."""
        tag_run(self._instance, self._run.run_id, self._sink_id, {TAG_WRITES: self._run.run_id, **self._queue})


def _awaits(other: Run, sink_id: str) -> str:
    if other.frozen:
        why = frozen(f"run {other.name}", other.frozen, sink_id)
        return f"Run {other.name} of {other.job} holds sink {sink_id} and is frozen. {why.code}: {why.text}"
    if not other.in_progress:
        return (
            f"Run {other.name} of {other.job} is {other.status}, but its process still works on sink {sink_id}. This "
            f"run begins when that process has ended, or {LEAVING_S:.0f} s after the run."
        )
    return (
        f"Run {other.name} of {other.job} works on sink {sink_id}. This run begins when that run has ended; terminate "
        "the one that you do not want."
    )


#: Seconds for a run to start: it takes a minute or two, also on a pod for which a node must be added.
PATIENCE_S = 600.0


class Rotation:
    """Asks the sensor ``exactly_once_liveness`` for the next run, and says when this one may end.

    A next run that does not come, or whose code does not load, stops nothing: this run goes on, and tries again after
    as long as before.

    Parameters
    ----------
    after_s : float
        Age of the run at which it asks.
    """

    def __init__(self, context: dg.AssetExecutionContext, after_s: float):
        self._log, self._instance, self._run_id = context.log, context.instance, context.run.run_id
        self._after_s, self._next_s = after_s, after_s
        self._asked_s: float | None = None
        self._attempts = 0

    def due(self, age_s: float) -> bool:
        """Return whether the run is to end now, at the age of ``age_s`` seconds."""
        if age_s < self._next_s:
            return False
        if self._asked_s is None:
            self._ask(age_s)
        successors = self._instance.get_runs(dg.RunsFilter(statuses=WORKING, tags={TAG_CONTINUES: self._run_id}))
        if any(run.tags.get(TAG_READY) == run.run_id for run in successors):
            self._log.info("This run ends after the batch in flight; the next one is ready and continues.")
            return True
        if age_s - (self._asked_s or 0.0) > PATIENCE_S:
            self._log.warning(
                f"No run was ready to continue this one within {PATIENCE_S:.0f} s, so this run continues. Check that "
                "the sensor exactly_once_liveness is on, that the newest run of the job starts, and that the "
                "instance has room for one more run."
            )
            self._asked_s, self._next_s = None, age_s + self._after_s
        return False

    def _ask(self, age_s: float) -> None:
        self._attempts += 1
        self._asked_s = age_s
        self._instance.add_run_tags(self._run_id, {TAG_ROTATES: f"{self._run_id}/{self._attempts}"})
        self._log.info(
            "This run is old enough to be replaced: the sensor exactly_once_liveness starts the next one, and this "
            "run continues until that one is ready."
        )
