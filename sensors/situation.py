"""The state outside of Dagster that a tick reads: brokers, commit log, checkpoint. Within one time budget."""

from __future__ import annotations

import time
from dataclasses import dataclass

from exactly_once.checkpoint import Checkpoint, torn_files
from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.ops.findings import Inspection
from exactly_once.ops.inspection import inspect_sink
from exactly_once.ops.processes import belongs_to
from resources.checkpoints import CheckpointReader, Standing, compare, lag
from resources.run_process import TAG_PID
from sensors.history import Run
from sensors.stream import StreamSpec


@dataclass(frozen=True)
class Situation:
    """The situation of a stream.

    Attributes
    ----------
    standing : Standing
        Its checkpoint, compared with the commit log.
    lag : int
        Offsets of the input that Spark has not committed.
    took_s : float
        The duration of this look.
    """

    inspection: Inspection
    checkpoint: Checkpoint
    standing: Standing
    lag: int
    took_s: float

    @property
    def last_progress(self) -> float:
        """When a batch was last decided, in seconds since the epoch; 0 without a decision."""
        return max((r.decided_ms for r in self.inspection.recent), default=0) / 1000

    @property
    def waiting(self) -> int:
        """Offsets of the output that read_committed readers cannot read yet, markers included."""
        return sum(b.waiting for b in self.inspection.blocked)


def look(
    connection: Connection, checkpoints: CheckpointReader, stream: StreamSpec, budget_s: float
) -> Situation | None:
    """Read the situation of the stream; None when its sink was never used.

    The checkpoint is the one that the sink's owner named in its claim.

    Raises
    ------
    BrokerUnreachable, CheckpointUnusable, CommitLogDamaged, NotAuthorized, UnknownTopic
    """
    began, deadline = time.monotonic(), Deadline(budget_s)
    inspection = inspect_sink(connection, stream.sink_id, budget_s)
    if inspection.owner is None:
        return None
    location = inspection.owner.claim.checkpoint
    checkpoint = checkpoints.read(location)
    if checkpoint.torn:
        raise torn_files(location, checkpoint.torn, stream.sink_id)
    committed = checkpoints.committed_offsets(location)
    with Admin(connection, max(0.5, deadline.left)) as admin:
        behind = lag(committed, stream.topic, admin.watermarks(stream.topic))
    return Situation(
        inspection, checkpoint, compare(checkpoint, inspection.log), behind, round(time.monotonic() - began, 3)
    )


def works_for(owner_pid: int, run: Run) -> bool | None:
    """Return whether a process of this machine is a run's own, or a child of it; None when unknown."""
    told = run.tags.get(TAG_PID, "").partition("@")[0]
    return belongs_to(owner_pid, int(told)) if told.isdigit() else None
