"""Where the checkpoint of a stream is, for those who look at it from outside."""

from __future__ import annotations

from exactly_once.kafka.commit_log import read_log
from exactly_once.kafka.connection import Connection
from resources.checkpoints import CheckpointReader
from resources.kafka import KafkaTransactionalProducerFactory

LOOK_BUDGET_S = 20.0


def checkpoint_of(
    connection: Connection, sink_id: str, kafka: KafkaTransactionalProducerFactory, checkpoints: CheckpointReader
) -> str:
    """The checkpoint that the sink was last claimed for; for a sink that was never used, where it would be.

    Raises
    ------
    BrokerUnreachable, CommitLogDamaged, NotAuthorized
    """
    owner = read_log(connection, sink_id, LOOK_BUDGET_S).owner
    if owner is not None and owner.checkpoint:
        return owner.checkpoint
    return checkpoints.location(kafka.cluster_id(), sink_id)
