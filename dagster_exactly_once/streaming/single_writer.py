"""One run of a stream writes at a time, whatever the Dagster instance lets start.

Kafka would fence the older of two drivers. That loses nothing, but each of them would fail in turn.
"""

from __future__ import annotations

import time

import dagster as dg

from dagster_exactly_once.recovery.work import SinkBusy
from dagster_exactly_once.runs.facts import frozen
from dagster_exactly_once.runs.process import FINISHED, tag_run
from dagster_exactly_once.runs.runs import Run, Runs
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import TAG_BESIDE, TAG_CONTINUES, TAG_READY, TAG_STREAM, TAG_WRITES
from exactly_once.errors import ExactlyOnceError

#: A recovery takes seconds, and some minutes with thousands of parts; one whose process died is reported within two. A
#: long run gives up its rotation before.
LONGEST_S = 900.0

#: Between two queries for older runs, by a run that has nothing else to do.
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
    """

    def __init__(self, context: dg.AssetExecutionContext | dg.OpExecutionContext, spec: StreamSpec, sink_id: str):
        self._log, self._instance, self._run = context.log, context.instance, context.run
        self._spec, self._sink_id = spec, sink_id
        fresh = context.run.parent_run_id is None  # a re-execution has the tags of the run that it repeats
        tags = context.run.tags if fresh else {}
        self._awaited = tags.get(TAG_BESIDE) or tags.get(TAG_CONTINUES)
        self._end = time.monotonic() + LONGEST_S
        self._said = False

    @property
    def waits(self) -> bool:
        """True when the run was launched beside a recovery, or to continue a long run."""
        return self._awaited is not None

    def begin(self) -> None:
        """Tag the run with its stream and its process, and wait for the older runs of the stream to end.

        Without a deadline, as in Dagster's queue, until the run is terminated; a run that was launched to continue
        another one, or beside a recovery, waits in :meth:`ready` instead.
        """
        tag_run(self._instance, self._run.run_id, None, {TAG_STREAM: self._spec.name})
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
        if self._awaited is None:
            return True
        other = self._instance.get_run_by_id(self._awaited)
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
        runs = Runs(self._instance).in_progress(self._spec)  # newest first
        mine = next((n for n, run in enumerate(runs) if run.run_id == self._run.run_id), -1)
        newer, older = runs[: max(mine, 0)], runs[mine + 1 :]
        writing = [run for run in newer if run.tags.get(TAG_WRITES) == run.run_id]
        return next((run for run in (*writing, *older) if run.works), None)

    def _take(self) -> None:
        """Tag the run with the sink: from now on recoveries and other runs leave the sink to it."""
        tag_run(self._instance, self._run.run_id, self._sink_id, {TAG_WRITES: self._run.run_id})


def _awaits(other: Run, sink_id: str) -> str:
    if other.frozen:
        why = frozen(f"run {other.name}", other.frozen, sink_id)
        return f"Run {other.name} of {other.job} holds sink {sink_id} and is frozen. {why.code}: {why.text}"
    return (
        f"Run {other.name} of {other.job} works on sink {sink_id}. This run begins when that run has ended; terminate "
        "the one that you do not want."
    )
