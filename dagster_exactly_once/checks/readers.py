"""Reads what the checks judge: a stream, and the partitions in which open transactions hold its readers back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import dagster as dg

from dagster_exactly_once.declare.stream import Stream
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.facts import stream_facts
from dagster_exactly_once.runs.history import StreamHistory, read_history
from dagster_exactly_once.runs.operator import alive_of, is_ours
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.sink_state import SinkState, sink_states
from exactly_once.deadline import Deadline
from exactly_once.diagnosis import SinkFacts
from exactly_once.diagnosis.facts import Standing
from exactly_once.errors import BrokerUnreachable, ExactlyOnceError, UnknownTopic
from exactly_once.inspection.findings import BlockedPartition
from exactly_once.inspection.sink import inspect_sink
from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.kafka.connection import Connection
from exactly_once.txn.scan import batches

#: For each query of the brokers.
READ_BUDGET_S = 20.0


def read_stream(
    instance: dg.DagsterInstance,
    stream: Stream,
    kafka: KafkaTransactionalProducerFactory,
    checkpoints: CheckpointReader,
    budget_s: float,
) -> tuple[SinkState, StreamHistory]:
    """Read the state of a stream, and then its runs.

    Raises
    ------
    ExactlyOnceError
        As :func:`~dagster_exactly_once.sensors.sink_state.sink_states` returns it; BrokerUnreachable when the time did
        not suffice.
    """
    found = sink_states(kafka, checkpoints, [stream.spec], Deadline(budget_s), alive_of(instance)).get(stream.sink_id)
    if found is None:
        raise BrokerUnreachable(
            f"the brokers did not answer for sink {stream.sink_id} within {budget_s:g} s",
            "Run exactly-once doctor to see which broker does not answer; then evaluate the check again",
        )
    if isinstance(found, ExactlyOnceError):
        raise found
    return found, read_history(instance, stream.spec)


def read_sink(instance: dg.DagsterInstance, stream: StreamSpec, connection: Connection, budget_s: float) -> SinkFacts:
    """Read the facts of a sink without a checkpoint: its transactions, and the runs that work on it."""
    sink = inspect_sink(connection, stream.sink_id, budget_s, alive_of=alive_of(instance))
    ours = sink.owner is not None and is_ours(instance, sink.owner.claim)
    return SinkFacts(sink, stream=stream_facts(stream, read_history(instance, stream), sink.owner, ours))


def held_back(
    connection: Connection, topics: Sequence[str], known: Iterable[BlockedPartition]
) -> tuple[tuple[Standing, ...], int]:
    """Return the partitions that hold readers back now, and the number of all partitions.

    Parameters
    ----------
    known : iterable of BlockedPartition
        Those of the sink's inspection, which say whose transactions hold them.
    """
    whose = {(b.topic, b.partition): b for b in known}
    with Admin(connection, READ_BUDGET_S) as admin:
        before = _watermarks(admin, topics)
        held = {where: w for where, w in before.items() if w.last_stable < w.high}
        # a marker that was just being written must not look like a waiting reader
        after = _watermarks(admin, list(dict.fromkeys(topic for topic, _ in held)))
        standing = {p: w for p, w in after.items() if p in held and w.last_stable == held[p].last_stable}
        return tuple(
            Standing(
                replace(whose.get(p, BlockedPartition(*p, 0, 0, False)), last_stable=w.last_stable, high=w.high),
                _since_ms(admin, p, w),
            )
            for p, w in standing.items()
        ), len(before)


def _watermarks(admin: Admin, topics: Sequence[str]) -> dict[Partition, Watermarks]:
    found: dict[Partition, Watermarks] = {}
    for topic in topics:
        with suppress(UnknownTopic):  # the first start makes it
            found |= {(topic, p): w for p, w in admin.watermarks(topic).items()}
    return found


def _since_ms(admin: Admin, where: Partition, marks: Watermarks) -> int | None:
    """Return the time stamp of the first records that readers do not reach; None if nobody can read it, which counts as
    too long ago.
    """
    with suppress(ExactlyOnceError):
        blocked = batches(admin, where, marks.last_stable, marks.last_stable, marks.high)
        return next((batch.timestamp_ms for batch in blocked), None)
    return None
