"""The two requests of a producer that carry records, or announce where they will go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafka.protocol.producer.produce import ProduceRequest
from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

from exactly_once.kafka.admin import Partition

#: The highest version in which the partitions of a transaction are added by a request of their own; from 12 on Produce
#: adds them itself, where transaction.version is 2 or more (KIP-890).
_EXPLICIT = 11
_IMPLICIT = 12

#: Of AddPartitionsToTxn: from 4 on it is for brokers.
_ADD_VERSION = 3


class Producer(NamedTuple):
    """Who sends. Without transactions ``transactional_id`` is None; ``implicit``: Produce adds partitions itself."""

    transactional_id: str | None
    producer_id: int
    epoch: int
    implicit: bool = False


def produce_request(producer: Producer, batches: Mapping[Partition, bytes], timeout_ms: int) -> ProduceRequest:
    """Produce, with one sealed batch for each of some partitions of one leader."""
    topics: dict[str, list[Any]] = {}
    for (name, index), data in batches.items():
        row = ProduceRequest.TopicProduceData.PartitionProduceData(index=index, records=data)
        topics.setdefault(name, []).append(row)
    return ProduceRequest(
        transactional_id=producer.transactional_id,
        acks=-1,
        timeout_ms=timeout_ms,
        topic_data=[ProduceRequest.TopicProduceData(name=n, partition_data=rows) for n, rows in topics.items()],
        min_version=_IMPLICIT if producer.implicit else None,
        max_version=_IMPLICIT if producer.implicit else _EXPLICIT,
    )


def add_partitions_request(producer: Producer, partitions: Sequence[Partition]) -> AddPartitionsToTxnRequest:
    """AddPartitionsToTxn, before the first batch to each of ``partitions``."""
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id,
        v3_and_below_producer_id=producer.producer_id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=[topic(name=n, partitions=some) for n, some in topics.items()],
        max_version=_ADD_VERSION,
    )
