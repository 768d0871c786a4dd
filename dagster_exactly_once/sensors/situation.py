"""The state outside of Dagster that a tick reads: brokers, commit log, checkpoint. Within one time budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dagster_exactly_once.resources.checkpoints import CheckpointReader, Offsets, Standing, compare, lag
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.run_process import TAG_PID
from dagster_exactly_once.sensors.looking import look_at
from dagster_exactly_once.sensors.runs import Run
from dagster_exactly_once.sensors.stream import StreamSpec
from exactly_once.checkpoint import Checkpoint, torn_files
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin, Watermarks
from exactly_once.kafka.connection import Connection
from exactly_once.ops.findings import Inspection
from exactly_once.ops.inspection import inspect_sink
from exactly_once.ops.processes import AliveOf, Process, alive, belongs_to
from exactly_once.protocol.records import Claim

#: Of the budget, kept for the ends of the inputs: a few requests for each topic, over one connection.
ENDS_S = 1.5

#: The ends of the input's partitions.
Ends = Mapping[int, Watermarks]


@dataclass(frozen=True)
class Situation:
    """The situation of a stream.

    Attributes
    ----------
    standing : Standing
        Its checkpoint, compared with the commit log.
    lag : int
        Offsets of the input that Spark has not committed.
    lags : tuple of int
        The same, of each input topic.
    """

    inspection: Inspection
    checkpoint: Checkpoint
    standing: Standing
    lag: int
    lags: tuple[int, ...] = ()

    @property
    def last_progress(self) -> float:
        """When a batch was last decided, in seconds since the epoch; 0 without a decision."""
        return max((r.decided_ms for r in self.inspection.recent), default=0) / 1000

    @property
    def waiting(self) -> int:
        """Offsets of the output that read_committed readers cannot read yet, markers included."""
        return sum(b.waiting for b in self.inspection.blocked)


def situations(
    kafka: KafkaTransactionalProducerFactory,
    checkpoints: CheckpointReader,
    streams: Sequence[StreamSpec],
    deadline: Deadline,
    alive_of: AliveOf | None = None,
) -> dict[str, Situation | ExactlyOnceError | None]:
    """Read the situation of each stream, by its sink id: None when the sink was never used, the error when the stream
    could not be looked at. A stream whose turn did not come in time is left out.

    The checkpoint is the one that the sink's owner named in its claim. Errors are BrokerUnreachable,
    CheckpointUnusable, CommitLogDamaged, InvalidOption, NotAuthorized and UnknownTopic.
    """
    looks = look_at(
        streams,
        lambda stream, left: _look(kafka.connection(), checkpoints, stream, left, alive_of),
        Deadline(deadline.left - ENDS_S),
    )
    # after the committed offsets: a batch that ends in between must not look like input that was never there
    topics = dict.fromkeys(t for s in streams if isinstance(looks.get(s.sink_id), _Look) for t in s.sources)
    ends = _ends(kafka, list(topics), deadline)
    found: dict[str, Situation | ExactlyOnceError | None] = {}
    for stream in streams:
        if stream.sink_id not in looks:
            continue
        look = looks[stream.sink_id]
        if not isinstance(look, _Look):
            found[stream.sink_id] = look
        elif all(topic in ends for topic in stream.sources):
            found[stream.sink_id] = _situation(stream, look, ends)
    return found


@dataclass(frozen=True)
class _Look:
    """A stream without the ends of its input."""

    inspection: Inspection
    checkpoint: Checkpoint
    committed: Offsets


def _look(
    connection: Connection,
    checkpoints: CheckpointReader,
    stream: StreamSpec,
    budget_s: float,
    alive_of: AliveOf | None,
) -> _Look | None:
    inspection = inspect_sink(connection, stream.sink_id, budget_s, alive_of=alive_of)
    if inspection.owner is None:
        return None
    location = inspection.owner.claim.checkpoint
    checkpoint = checkpoints.read(location)
    if checkpoint.torn:
        raise torn_files(location, checkpoint.torn, stream.sink_id)
    return _Look(inspection, checkpoint, checkpoints.committed_offsets(location))


def _ends(
    kafka: KafkaTransactionalProducerFactory, topics: Sequence[str], deadline: Deadline
) -> dict[str, Ends | ExactlyOnceError]:
    """Read the ends of the topics over one connection, as far as the time goes."""
    found: dict[str, Ends | ExactlyOnceError] = {}
    if not topics:
        return found
    try:
        with Admin(kafka.connection(), max(0.5, deadline.left)) as admin:
            for topic in topics:
                if found and deadline.over:
                    break
                try:
                    found[topic] = admin.watermarks(topic)
                except ExactlyOnceError as error:
                    found[topic] = error
    except ExactlyOnceError as error:
        return dict.fromkeys(topics, error)
    return found


def _situation(
    stream: StreamSpec, look: _Look, ends: Mapping[str, Ends | ExactlyOnceError]
) -> Situation | ExactlyOnceError:
    lags = list[int]()
    for topic in stream.sources:
        end = ends[topic]
        if isinstance(end, ExactlyOnceError):
            return end
        lags.append(lag(look.committed, topic, end))
    standing = compare(look.checkpoint, look.inspection.log)
    return Situation(look.inspection, look.checkpoint, standing, sum(lags), tuple(lags))


def works_for(claim: Claim, run: Run) -> bool | None:
    """Return whether a run made a claim: by the claim's operator, else by the process that the run is, or the parent
    of; None when unknown.
    """
    if claim.operator:
        return claim.operator.rpartition("/")[2] == run.run_id
    told = run.tags.get(TAG_PID, "").partition("@")[0]
    return belongs_to(claim.pid, int(told)) if told.isdigit() and alive(Process.of(claim)) is not None else None
