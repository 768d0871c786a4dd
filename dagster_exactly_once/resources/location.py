"""Finds the checkpoint of a stream from outside."""

from __future__ import annotations

from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from exactly_once.commitlog.commit_log import read_log
from exactly_once.kafka.connection import Connection

READ_BUDGET_S = 20.0


def checkpoint_of(
    connection: Connection, sink_id: str, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader
) -> str:
    """Return the checkpoint of the sink's last claim; for a sink that was never used, its future location.

    Raises BrokerUnreachable, CommitLogDamaged or NotAuthorized.
    """
    owner = read_log(connection, sink_id, READ_BUDGET_S).owner
    if owner is not None and owner.checkpoint:
        return owner.checkpoint
    return checkpoints.location(kafka.cluster_id(), sink_id)
