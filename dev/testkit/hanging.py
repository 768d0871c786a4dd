"""A true hanging transaction, made as an old broker let it happen: records that no coordinator was told of."""

from __future__ import annotations

import time

from kafka.protocol.producer import ProduceRequest
from kafka.protocol.producer.transaction import InitProducerIdRequest
from kafka.record.default_records import DefaultRecordBatchBuilder

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import check
from exactly_once.txn.leaders import open_on, write_marker
from testkit.processes import until

#: Without it the partition leader asks the coordinator before it lets a transaction begin, which makes them impossible.
UNVERIFIED = {"transaction.partition.verification.enable": "false"}

#: Of Produce: the last version in which a client adds partitions to a transaction itself.
_LAST_EXPLICIT = 11


def leave_hanging(
    connection: Connection, topic: str, partition: int, transactional_id: str | None = None, age_s: float = 3600.0
) -> int:
    """Open a transaction at the leader of ``partition`` that nobody will end, on a broker that is :data:`UNVERIFIED`.

    Parameters
    ----------
    transactional_id : str, optional
        An id that its coordinator knows, without this partition. Default: the producer id belongs to no id at all.
    age_s : float
        The age of its one record, by the record's timestamp.

    Returns
    -------
    int
        The producer id.
    """

    async def act() -> int:
        coordinator = None
        if transactional_id is not None:
            coordinator = (await admin.coordinators([transactional_id]))[transactional_id]
        init = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
            max_version=5,
        )
        given = await admin.send(init, coordinator)
        check(given.error_code, "InitProducerId")
        batch = DefaultRecordBatchBuilder(2, 0, True, given.producer_id, given.producer_epoch, 0, 10_000)
        batch.append(0, int((time.time() - age_s) * 1000), b"k", b"hanging", [])
        data = ProduceRequest.TopicProduceData
        records = data.PartitionProduceData(index=partition, records=bytes(batch.build()))
        produce = ProduceRequest(
            transactional_id=transactional_id or "nobody",
            acks=-1,
            timeout_ms=10_000,
            topic_data=[data(name=topic, partition_data=[records])],
            max_version=_LAST_EXPLICIT,
        )
        answer = await admin.send(produce, await admin.leader((topic, partition)))
        for written in answer.responses:
            for p in written.partition_responses:
                check(p.error_code, "Produce")
        return int(given.producer_id)

    with Admin(connection) as admin:
        return admin.ask(act)


def mark_aborted(connection: Connection, topic: str, partition: int) -> None:
    """Write an abort marker into the transaction that is open on one partition, behind its coordinator's back: what
    ``kafka-transactions.sh abort`` does with a partition and a start offset.
    """
    with Admin(connection) as admin:
        [found] = open_on(admin, [(topic, partition)])
        write_marker(admin, found, False)


def blocked(connection: Connection, topic: str) -> list[int]:
    """Return the partitions on which readers wait."""
    with Admin(connection) as admin:
        return [p for p, w in admin.watermarks(topic).items() if w.last_stable < w.high]


def wait_until_readable(connection: Connection, topic: str, partition: int) -> None:
    """Wait until readers reach the end of a partition: the end markers follow the answer."""
    until(f"readers of {topic}-{partition}", lambda: partition not in blocked(connection, topic), 10)
