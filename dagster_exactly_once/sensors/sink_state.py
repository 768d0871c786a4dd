"""The state of a sink outside of Dagster, within one time budget: brokers, commit log, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from dagster_exactly_once.resources.checkpoints import CheckpointReader, Offsets, StreamProgress, compare, lag
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.operator import stream_facts
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.tick import ask_each
from exactly_once.checkpoint import Checkpoint
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.findings import Inspection
from exactly_once.inspection.processes import AliveOf
from exactly_once.inspection.sink import inspect_sink
from exactly_once.kafka.admin import Admin, Watermarks
from exactly_once.tools.diagnosis import SinkFacts

#: Seconds of the budget that are kept for the ends of the inputs: a few requests for each topic, over one connection.
ENDS_S = 1.5

#: The ends of the input's partitions.
Ends = Mapping[int, Watermarks]


@dataclass(frozen=True)
class SinkState:
    """The state of a stream as brokers, commit log and checkpoint describe it.

    ``committed`` says where Spark's committed batches end in the input, by topic and partition; None where the
    checkpoint does not: it is torn, or the sink was never used. ``lags`` are what waits in each input topic (empty
    then), in offsets, ``measured`` when the brokers were asked for the ends of the input, in seconds since the epoch.
    """

    inspection: Inspection
    checkpoint: Checkpoint
    committed: Offsets | None = None
    lags: tuple[int, ...] = ()
    measured: float = 0.0

    @property
    def progress(self) -> StreamProgress:
        """Its checkpoint, compared with the commit log."""
        return compare(self.checkpoint, self.inspection.log)

    @property
    def lag(self) -> int:
        """The sum over all input topics."""
        return sum(self.lags)


def facts_of(
    instance: dg.DagsterInstance,
    stream: StreamSpec,
    state: SinkState,
    history: StreamHistory,
    **more: Any,
) -> SinkFacts:
    """Return the facts for a diagnosis of a stream; ``more`` are those that only a series of looks tells."""
    last = max((r.decided_ms for r in state.inspection.recent), default=0) / 1000
    known = stream_facts(
        instance,
        stream,
        history,
        state.inspection.owner,
        lag=state.lag,
        idle_s=max(0.0, history.now - last) if last else None,
        in_flight=state.checkpoint.in_flight,
        **more,
    )
    facts = SinkFacts(state.inspection, checkpoint=state.checkpoint, stream=known)
    # the log was read before the checkpoint: where nobody works, that is how it stood afterwards too
    return replace(facts, after=state.inspection.log) if facts.at_work is False else facts


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
        lambda stream, left: _read(kafka, checkpoints, stream, left, alive_of),
        Deadline(deadline.left - ENDS_S),
    )
    # after the committed offsets: a batch that ends in between must not look like input that was never there
    begun = [s for s in streams if isinstance(r := readings.get(s.sink_id), SinkState) and r.committed is not None]
    topics = dict.fromkeys(topic for stream in begun for topic in stream.sources)
    measured, ends = time.time(), _ends(kafka, list(topics), deadline)
    states: dict[str, SinkState | ExactlyOnceError] = {}
    for stream in streams:
        reading = readings.get(stream.sink_id)
        if isinstance(reading, SinkState) and (stream not in begun or all(topic in ends for topic in stream.sources)):
            states[stream.sink_id] = with_lags(stream, replace(reading, measured=measured), ends)
        elif isinstance(reading, ExactlyOnceError):
            states[stream.sink_id] = reading
    return states


def _read(
    kafka: KafkaTransactionalProducerFactory,
    checkpoints: CheckpointReader,
    stream: StreamSpec,
    budget_s: float,
    alive_of: AliveOf | None,
) -> SinkState:
    inspection = inspect_sink(kafka.connection(), stream.sink_id, budget_s, alive_of=alive_of)
    if inspection.owner is None:
        return SinkState(inspection, Checkpoint(""))
    location = inspection.owner.claim.checkpoint
    checkpoint = checkpoints.read(location)
    return SinkState(inspection, checkpoint, None if checkpoint.torn else checkpoints.committed_offsets(location))


def _ends(
    kafka: KafkaTransactionalProducerFactory, topics: Sequence[str], deadline: Deadline
) -> dict[str, Ends | ExactlyOnceError]:
    """Read the ends of the topics over one connection, as far as the time goes."""
    ends: dict[str, Ends | ExactlyOnceError] = {}
    if not topics:
        return ends
    try:
        with Admin(kafka.connection(), max(0.5, deadline.left)) as admin:
            for topic in topics:
                if ends and deadline.over:
                    break
                try:
                    ends[topic] = admin.watermarks(topic)
                except ExactlyOnceError as error:
                    ends[topic] = error
    except ExactlyOnceError as error:
        return dict.fromkeys(topics, error)
    return ends


def with_lags(
    stream: StreamSpec, state: SinkState, ends: Mapping[str, Ends | ExactlyOnceError]
) -> SinkState | ExactlyOnceError:
    """Return the state with what waits in each input topic, or why the end of one cannot be read."""
    if state.committed is None:
        return state
    lags = list[int]()
    for topic in stream.sources:
        end = ends[topic]
        if isinstance(end, ExactlyOnceError):
            return end
        lags.append(lag(state.committed, topic, end))
    return replace(state, lags=tuple(lags))
