"""The state of a sink outside of Dagster, within one time budget: brokers, commit log, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import dagster as dg

from dagster_exactly_once.resources.checkpoints import CheckpointReader, Offsets, StreamProgress, compare, lag
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.facts import stream_facts
from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.operator import is_ours
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.fan_out import ask_each
from exactly_once.checkpoint import Checkpoint
from exactly_once.deadline import Deadline
from exactly_once.diagnosis import SinkFacts
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.findings import Inspection
from exactly_once.inspection.processes import AliveOf
from exactly_once.inspection.sink import inspect_sink
from exactly_once.kafka.admin import Admin, Watermarks
from exactly_once.kafka.connection import Connection

#: Of the budget, kept for the ends of the inputs: a few requests for each topic, over one connection.
ENDS_S = 1.5

#: The ends of the input's partitions.
Ends = Mapping[int, Watermarks]


@dataclass(frozen=True)
class SinkState:
    """The state of a stream as brokers, commit log and checkpoint describe it.

    Attributes
    ----------
    progress : StreamProgress
        Its checkpoint, compared with the commit log.
    lag : int
        Offsets of the input that Spark has not committed.
    lags : tuple of int
        The same, of each input topic; empty where the checkpoint does not say what is committed: it is torn, or the
        sink was never used.
    measured : float
        When the brokers were asked for the ends of the input, in seconds since the epoch.
    committed : mapping
        Where Spark's committed batches end in the input, by topic and partition.
    """

    inspection: Inspection
    checkpoint: Checkpoint
    progress: StreamProgress
    lag: int
    lags: tuple[int, ...] = ()
    measured: float = 0.0
    committed: Offsets = field(default_factory=dict)

    @property
    def last_progress(self) -> float:
        """The time when a batch was last decided, in seconds since the epoch; 0 without a decision."""
        return max((r.decided_ms for r in self.inspection.recent), default=0) / 1000

    @property
    def waiting(self) -> int:
        """Offsets of the output that read_committed readers cannot read yet, markers included."""
        return sum(b.waiting for b in self.inspection.blocked)


def facts_of(
    instance: dg.DagsterInstance,
    stream: StreamSpec,
    found: SinkState,
    history: StreamHistory,
    last_lag: int | None = None,
    waited_s: float = 0.0,
) -> SinkFacts:
    """Return the facts for a diagnosis of a stream.

    Parameters
    ----------
    last_lag : int or None
        The lag at the look before.
    waited_s : float
        For how long input has been waiting while no batch was decided or marked.
    """
    owner, last = found.inspection.owner, found.last_progress
    known = stream_facts(
        stream,
        history,
        owner,
        owner is not None and is_ours(instance, owner.claim),
        lag=found.lag,
        last_lag=last_lag,
        waited_s=waited_s,
        idle_s=max(0.0, history.now - last) if last else None,
        in_flight=found.checkpoint.in_flight,
    )
    facts = SinkFacts(found.inspection, checkpoint=found.checkpoint, stream=known)
    # the log was read before the checkpoint: where nobody works, that is how it stood afterwards too
    return replace(facts, after=found.inspection.log) if facts.at_work is False else facts


def sink_states(
    kafka: KafkaTransactionalProducerFactory,
    checkpoints: CheckpointReader,
    streams: Sequence[StreamSpec],
    deadline: Deadline,
    alive_of: AliveOf | None = None,
) -> dict[str, SinkState | ExactlyOnceError]:
    """Read the state of each stream, by its sink id, or the error when the stream could not be looked at. A stream that
    the time did not suffice for is left out.

    The checkpoint is the one that the sink's owner named in its claim. Errors are BrokerUnreachable,
    CheckpointUnusable, CommitLogDamaged, InvalidOption, NotAuthorized and UnknownTopic.
    """
    readings = ask_each(
        streams,
        lambda stream, left: _read(kafka.connection(), checkpoints, stream, left, alive_of),
        Deadline(deadline.left - ENDS_S),
    )
    # after the committed offsets: a batch that ends in between must not look like input that was never there
    wanted = (s for s in streams if isinstance(r := readings.get(s.sink_id), _SinkReading) and r.committed is not None)
    topics = dict.fromkeys(topic for stream in wanted for topic in stream.sources)
    measured, ends = time.time(), _ends(kafka, list(topics), deadline)
    found: dict[str, SinkState | ExactlyOnceError] = {}
    for stream in streams:
        if stream.sink_id not in readings:
            continue
        reading = readings[stream.sink_id]
        if not isinstance(reading, _SinkReading):
            found[stream.sink_id] = reading
        elif reading.committed is None or all(topic in ends for topic in stream.sources):
            found[stream.sink_id] = _sink_state(stream, reading, ends, measured)
    return found


@dataclass(frozen=True)
class _SinkReading:
    """A stream without the ends of its input."""

    inspection: Inspection
    checkpoint: Checkpoint
    committed: Offsets | None


def _read(
    connection: Connection,
    checkpoints: CheckpointReader,
    stream: StreamSpec,
    budget_s: float,
    alive_of: AliveOf | None,
) -> _SinkReading:
    inspection = inspect_sink(connection, stream.sink_id, budget_s, alive_of=alive_of)
    if inspection.owner is None:
        return _SinkReading(inspection, Checkpoint(""), None)
    location = inspection.owner.claim.checkpoint
    checkpoint = checkpoints.read(location)
    return _SinkReading(inspection, checkpoint, None if checkpoint.torn else checkpoints.committed_offsets(location))


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


def _sink_state(
    stream: StreamSpec, reading: _SinkReading, ends: Mapping[str, Ends | ExactlyOnceError], measured: float
) -> SinkState | ExactlyOnceError:
    lags, committed = list[int](), reading.committed
    for topic in stream.sources if committed is not None else ():
        end = ends[topic]
        if isinstance(end, ExactlyOnceError):
            return end
        lags.append(lag(committed or {}, topic, end))
    progress = compare(reading.checkpoint, reading.inspection.log)
    found = SinkState(reading.inspection, reading.checkpoint, progress, sum(lags), tuple(lags), measured)
    return replace(found, committed=committed or {})
