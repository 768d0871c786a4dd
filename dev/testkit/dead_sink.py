"""A sink whose driver died, made without Spark: it claimed, left transactions open, and decided some of them."""

from __future__ import annotations

import socket

from confluent_kafka import Producer

from exactly_once.commitlog.commit_log import CommitLog, read_log
from exactly_once.coordinator.machine import this_machine
from exactly_once.deadline import Deadline
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.log_state import LogState
from exactly_once.protocol.names import PartId
from exactly_once.protocol.records import Claim, Decision, PreparedTransaction
from exactly_once.txn.coordinators import describe, end_txn_version
from testkit import broker as brokers
from testkit import oracle
from testkit.made_sink import begin_of
from testkit.part_ids import part_id

#: A process id that no machine gives out, for an owner on this host that is dead.
DEAD = 2**22 + 1


class DeadSink:
    """By default its owner was on another host, so that whether it lives cannot be known from here."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        host: str = "elsewhere",
        pid: int = 1,
        started: float = 0.0,
        operator: str = "",
        checkpoint: str = "/c",
    ):
        self.connection, self.topic, self.sink_id = connection, topic, brokers.fresh_name("sink")
        self.log = CommitLog(connection, self.sink_id)
        machine = this_machine() if host == socket.gethostname() else ""
        claim = Claim(1, "q", 0, "stream", host, pid, checkpoint, started, operator, machine)
        self.log.claim(lambda state: claim, Deadline(30))
        self.producers: list[Producer] = []

    def open_part(self, part: int, records: int = 1) -> str:
        """Leave a transaction of ``records`` records open, in the partition of the same number; its id."""
        name = part_id(self.sink_id, 1, part, "0.0")
        producer = brokers.open_transaction(self.connection, name)
        for _ in range(records):
            producer.produce(self.topic, f"part {part}", partition=part)
        producer.flush(30)
        self.producers.append(producer)
        return name

    def decide(self, *names: str, records: int = 1, placed: bool = False) -> None:
        """Decide batch 0 with the open transactions of these ids; ``placed`` as today, else as format 2 did, without
        what proves a loss.
        """
        with Admin(self.connection) as admin:
            version = end_txn_version(admin)
            described = describe(admin, names)
            handles = tuple(
                PreparedTransaction(
                    i,
                    d.producer_id,
                    d.producer_epoch,
                    part.part,
                    records,
                    digest="d",
                    place=begin_of(admin, d) if placed else None,
                )
                for i, d in described.items()
                if (part := PartId.parse(i))
            )
            assert len(handles) == len(described), "each is the id of a part"
        self.log.append(Decision("q", 0, 1, handles, "digest", version, 0, topics=(self.topic,)), Deadline(30))

    def read(self) -> LogState:
        """Return what the commit log says."""
        return read_log(self.connection, self.sink_id)

    def visible(self) -> list[str | None]:
        """Return the values that a read_committed reader sees, sorted."""
        return sorted((m.value for m in oracle.read(self.connection, [self.topic])), key=str)
