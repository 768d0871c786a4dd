"""Observes a running stream from outside: checkpoint, commit log and brokers. It never talks to Spark's JVM."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from dagster_exactly_once.resources.checkpoints import CheckpointReader, Offsets, StreamProgress, compare, lag
from dagster_exactly_once.runs.failures import FailurePlace
from dagster_exactly_once.streaming.supervisor import Progress
from dagster_exactly_once.streaming.windows import ReportWindow, committed_batches
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.sink import UNDER_WAY
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.counting import counted as sum_of
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import namespace
from exactly_once.protocol.records import Count
from exactly_once.txn.coordinators import list_transactions

#: Seconds of a reading with a broker that does not answer; it takes two connections and some ten requests.
READ_BUDGET_S = 5.0


class StreamObserver:
    """Makes the windows of one run of a stream; each begins where the last reported one ended.

    Parameters
    ----------
    sources : sequence of str
        The topics of the input, for the lag.
    checkpoint : str
        The checkpoint location. Earlier runs have reported its present batches.
    """

    def __init__(
        self,
        connection: Connection,
        sink_id: str,
        sources: Sequence[str],
        checkpoint: str,
        checkpoints: CheckpointReader,
    ):
        self._connection = connection
        self._sink_id = sink_id
        self._sources = sources
        self._checkpoint = checkpoint
        self._checkpoints = checkpoints
        self._progress: dict[int, Progress] = {}
        found = checkpoints.read(checkpoint)
        self._reported = -1 if found.last_commit is None else found.last_commit
        log = read_log(connection, sink_id, READ_BUDGET_S)
        self._first_token = log.owner.token if log.owner else 0
        self._window_began = time.monotonic()
        self._before = _counted(log, found.query_id, self._reported)
        self._newest = (self._reported, self._window_began, self._before)

    def read_window(self, progress: Iterable[Progress], final: bool = False) -> ReportWindow:
        """Return the window since the last one that was :meth:`told`.

        Spark reports the progress of a batch a moment after it committed the batch. Leaves a batch without progress to
        the next window, unless this is the ``final`` one.

        Raises
        ------
        BrokerUnreachable, NotAuthorized, CheckpointUnusable
            The next window then covers this one too.
        """
        self._progress |= {p["batchId"]: p for p in progress}
        query_id = self._checkpoints.read(self._checkpoint).query_id
        marked = self._checkpoints.marked_ms(self._checkpoint, self._reported)
        log = read_log(self._connection, self._sink_id, READ_BUDGET_S)
        if not final:
            told = max(self._progress, default=self._reported)
            marked = {batch_id: ms for batch_id, ms in marked.items() if batch_id <= told}
        decisions = [d for d in log.decisions if d.query_id == query_id]
        batches = committed_batches(decisions, marked, self._progress)
        with Admin(self._connection, READ_BUDGET_S) as admin:
            committed = self._checkpoints.committed_offsets(self._checkpoint)
            lags = tuple(lag(committed, topic, admin.watermarks(topic)) for topic in self._sources)
            under_way = list_transactions(admin, namespace(self._sink_id), UNDER_WAY)
        now = time.monotonic()
        newest = max(marked, default=self._reported)
        counted = _counted(log, query_id, newest)
        self._newest = (newest, now, counted)
        return ReportWindow(
            batches,
            lag=sum(lags),
            open_transactions=len(under_way),
            seconds=now - self._window_began,
            before=self._before,
            counted=counted,
            lags=lags,
        )

    def told(self) -> None:
        """Note that the last window has reached Dagster; the next one begins where it ended."""
        self._reported, self._window_began, self._before = self._newest
        self._progress = {b: p for b, p in self._progress.items() if b > self._reported}

    def place(self, job: str) -> FailurePlace:
        """Return the stream's progress for the diagnosis of its failure; ``job`` is what a person launches again."""
        batch, waiting = self._in_flight()
        return FailurePlace(job, batch, waiting, self._without_input, self._decided, self._state_ids)

    def _in_flight(self) -> tuple[int | None, Offsets]:
        """Return the batch that Spark has planned and not committed, None without one, and where its input begins: what
        can be read of both. A source that is not Kafka has no offsets.
        """
        batch: int | None = None
        try:
            batch = self._checkpoints.read(self._checkpoint).in_flight
            return batch, self._checkpoints.committed_offsets(self._checkpoint)
        except ExactlyOnceError:
            return batch, {}

    def _compared(self) -> StreamProgress | None:
        """Return what checkpoint and commit log say together; None when one of them cannot be read."""
        try:
            log = read_log(self._connection, self._sink_id, READ_BUDGET_S)
            return compare(self._checkpoints.read(self._checkpoint), log)
        except ExactlyOnceError:
            return None

    def _without_input(self) -> tuple[str, str]:
        progress = self._compared()
        return progress.without_input(self._checkpoint, self._sink_id) if progress else ("", "")

    def _decided(self) -> bool | None:
        progress = self._compared()
        return None if progress is None else progress.state == "in doubt"

    def _state_ids(self) -> bool:
        try:
            return self._checkpoints.keeps_state_ids(self._checkpoint)
        except ExactlyOnceError:
            return False

    def superseded(self) -> bool:
        """Return whether another driver took the sink after this run's query.

        A query claims once, when it starts; a second claim since then is not its own.
        """
        owner = read_log(self._connection, self._sink_id, READ_BUDGET_S).owner
        return owner is not None and owner.token > self._first_token + 1

    def unproven(self) -> bool:
        """Return whether the commit log holds a decision that is not proven committed."""
        return bool(read_log(self._connection, self._sink_id, READ_BUDGET_S).open_decisions)


def _counted(log: LogState, query_id: str | None, last_batch: int) -> Count | None:
    """Return what the stream has committed up to ``last_batch`` of its present query, with the queries before it."""
    return sum_of(d for d in log.decisions if d.query_id != query_id or d.batch_id <= last_batch)
