"""Find the sink of the cluster that holds a query: by all commit logs that this principal may read, at once."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import KafkaException, Message, TopicPartition

from exactly_once.commitlog.log_reader import PARTITION, consumer_of
from exactly_once.deadline import Deadline
from exactly_once.errors import CommitLogDamaged, ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.encoding import decode
from exactly_once.protocol.names import commit_log_topic, sink_of_log
from exactly_once.protocol.records import Decision

#: A start that is refused for another reason anyway waits for no more than this; a hundred logs take half a second.
SEARCH_BUDGET_S = 3.0


class Holder(NamedTuple):
    """The sink that has decided batches of a query, and the newest of them."""

    sink_id: str
    batch_id: int

    @property
    def title(self) -> str:
        """Name it, in words that follow the query."""
        return f"sink {self.sink_id} holds batch {self.batch_id} of this query"


def holder_of(admin: Admin, query_id: str, but: str, budget_s: float = SEARCH_BUDGET_S) -> Holder | None:
    """Return the sink other than ``but`` that holds batches of ``query_id``; None when no log that can be read within
    the budget does. Never raises: it only makes an error clearer.
    """
    try:
        admin.renew(budget_s)
        sinks = {t: sink_of_log(t) for t in admin.topics()}
        logs = [t for t, sink in sinks.items() if sink and sink != but and t == commit_log_topic(sink)]
        return _search(admin, logs, query_id, Deadline(budget_s)) if logs else None
    except (ExactlyOnceError, KafkaException):
        return None


def _search(admin: Admin, logs: list[str], query_id: str, deadline: Deadline) -> Holder | None:
    consumer = consumer_of(admin.connection, "search", {"auto.offset.reset": "earliest"})
    waiting, found = set(logs), None
    try:
        # from offset 0: a named beginning is looked up, and the client waits for 500 ms until it knows the leader
        consumer.assign([TopicPartition(log, PARTITION, 0) for log in logs])
        while waiting and not deadline.over:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:  # its end, or a log that this principal may not read
                waiting.discard(message.topic() or "")
            elif (batch_id := _decided(message, query_id)) is not None:
                found = Holder(sink_of_log(message.topic() or ""), max(batch_id, found.batch_id if found else -1))
    finally:
        consumer.close()
    return found


def _decided(message: Message, query_id: str) -> int | None:
    """Return the batch of the query that this record decides."""
    value = message.value()
    if value is None or query_id.encode() not in value:
        return None
    try:
        record = decode(value, dict(message.headers() or ()))
    except CommitLogDamaged:  # for whoever uses that log
        return None
    return record.batch_id if isinstance(record, Decision) and record.query_id == query_id else None
