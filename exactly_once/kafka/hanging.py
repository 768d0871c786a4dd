"""Hanging transactions: open at a partition's leader, and no coordinator will ever end them.

A time-out cannot help, since it is the coordinator that times out. They come from brokers before 3.6 (or with
``transaction.partition.verification.enable=false``), where a late Produce request could open a transaction behind its
own end marker (KIP-664, KIP-890). The steps are those of Kafka's own tool: leaders first, coordinators second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from kafka.errors import KafkaError, LeaderNotAvailableError, for_code
from kafka.protocol.admin.transactions import DescribeProducersRequest
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from exactly_once.deadline import now_ms
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.control import Control, Description

#: The brokers' default of transaction.max.timeout.ms: no coordinator leaves a transaction open for longer than that.
OLDER_THAN_S = 900.0

#: Between two looks at a transaction whose producer no coordinator names. When a coordinator dies, its ids are in no
#: list until its successor begins to load them, which it does as soon as it hears of it: seconds at the most.
_SECOND_LOOK_S = 10.0

#: Partitions in one request, as in Kafka's own tool: a leader has to look through the producers of each.
_PARTITIONS_AT_ONCE = 500


Partition = tuple[str, int]

#: By partition, (producer id, epoch) of its open transactions -> their first offset.
Beginning = dict[Partition, dict[tuple[int, int], int]]


class Hanging(NamedTuple):
    """A transaction that is open on one partition, beyond any coordinator's reach.

    ``last_timestamp_ms`` is the timestamp of its last record, which its writer may have chosen. ``transactional_id`` is
    the id to which a coordinator has given this producer id; None when none knows it. ``records`` counts what the
    producer wrote to the partition under this epoch: at least what this transaction holds.
    """

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int
    transactional_id: str | None = None
    records: int = 0

    @property
    def name(self) -> str:
        """``topic-partition@start offset``: what a person calls it."""
        return f"{self.topic}-{self.partition}@{self.start_offset}"


class _Answer(NamedTuple):
    """One partition in the answer to DescribeProducers."""

    topic: str
    partition: int
    code: int
    open: list[Hanging]


def find_hanging(
    connection: Connection, topics: Iterable[str], older_than_s: float = OLDER_THAN_S, budget_s: float = 10.0
) -> list[Hanging]:
    """The hanging transactions on ``topics``; topics that do not exist have none.

    Parameters
    ----------
    older_than_s : float
        Only those whose last record has a timestamp at least this old. A transaction that has just begun can look like
        one that hangs, so this should be the longest transaction timeout that the brokers allow.

    Raises
    ------
    BrokerUnreachable, NotAuthorized
        It needs READ on the topics and DESCRIBE on *all* transactional ids that write to them: the brokers leave out
        the others silently, and their transactions would look like hanging ones.
    """
    with Leaders(connection, budget_s) as leaders:
        return leaders.hanging(topics, older_than_s)


def abort_hanging(connection: Connection, hanging: Hanging, budget_s: float = 10.0) -> bool:
    """Write the end marker that no coordinator will write; what the transaction holds is never visible.

    It is looked up again first: exactly this transaction is ended, and only as long as it hangs. That takes the
    explicit word of a coordinator, which describes the id and does not name the partition. Where none knows the
    producer, it takes two looks, ten seconds apart, since a coordinator may just have died.

    Returns
    -------
    bool
        False when it was there no more.

    Raises
    ------
    BrokerUnreachable, NotAuthorized
        It needs ALTER on the cluster.
    """
    with Leaders(connection, budget_s) as leaders:
        found = leaders.same(hanging)
        if found is not None and found.transactional_id is None:
            time.sleep(_SECOND_LOOK_S)
            found = leaders.renew(budget_s).same(hanging)
        if found is None:
            return False
        leaders.abort(found)
        return True


class Leaders(Control):
    """Requests to the leaders of partitions; needs READ on their topics."""

    def written(self, transaction: Description) -> int:
        """How many records an open transaction holds, as its partitions' leaders count them.

        Exact for a transaction whose producer was initialised for it alone, as a part's is.
        """
        mine = (transaction.producer_id, transaction.producer_epoch)
        found = self._open(sorted({topic for topic, _ in transaction.partitions}))
        return sum(h.records for h in found if (h.producer_id, h.producer_epoch) == mine)

    def hanging(self, topics: Iterable[str], older_than_s: float) -> list[Hanging]:
        """See :func:`find_hanging`."""
        names = sorted(set(topics))
        limit_ms = now_ms() - older_than_s * 1000
        candidates = [h for h in self._open(names) if h.last_timestamp_ms <= limit_ms]
        if not candidates:
            return []
        ids = self._ids_of({h.producer_id for h in candidates})
        known = self.describe(ids.values())
        orphans = [
            h._replace(transactional_id=ids.get(h.producer_id))
            for h in candidates
            if h.producer_id not in ids or (h.topic, h.partition) not in known[ids[h.producer_id]].partitions
        ]
        if not orphans:
            return []
        # one that ended between the two looks is not hanging
        still = {h[:6] for h in self._open(sorted({h.topic for h in orphans}))}
        return [h for h in orphans if h[:6] in still]

    def same(self, h: Hanging) -> Hanging | None:
        """The very transaction ``h`` as it hangs now; None when it does not."""
        return next((x for x in self.hanging([h.topic], 0.0) if x[:6] == h[:6]), None)

    def abort(self, h: Hanging) -> None:
        """Send the abort marker to the leader."""

        async def send() -> None:
            leader = next(
                node for node, parts in (await self._leaders([h.topic])).items() if (h.topic, h.partition) in parts
            )
            marker = WriteTxnMarkersRequest.WritableTxnMarker
            request = WriteTxnMarkersRequest(
                markers=[
                    marker(
                        producer_id=h.producer_id,
                        producer_epoch=h.producer_epoch,
                        transaction_result=False,
                        topics=[marker.WritableTxnMarkerTopic(name=h.topic, partition_indexes=[h.partition])],
                        # -1 before the producer's first marker; 0 is below the epoch of any coordinator
                        coordinator_epoch=max(0, h.coordinator_epoch),
                    )
                ]
            )
            answer = await self._admin._manager.send(request, node_id=leader)
            for result in answer.markers:
                for topic in result.topics:
                    for partition in topic.partitions:
                        _check(partition.error_code, f"WriteTxnMarkers to {h.name}")

        self._retry(send)

    def _open(self, topics: list[str]) -> list[Hanging]:
        """Every transaction that is open on a partition of ``topics``, by the partition's leader."""

        return self._open_at(topics, lambda partition: True)

    def _open_on(self, partitions: list[Partition]) -> list[Hanging]:
        """The same, of these partitions alone."""
        return self._open_at(sorted({topic for topic, _ in partitions}), set(partitions).__contains__)

    def _open_at(self, topics: list[str], wanted: Callable[[Partition], bool]) -> list[Hanging]:
        async def ask() -> list[Hanging]:
            found: list[Hanging] = []
            for p in await self._describe_producers(topics, wanted):
                _check(p.code, f"DescribeProducers of {p.topic}-{p.partition}")
                found += p.open
            return found

        return self._retry(ask)

    def _producers_on(self, partitions: list[Partition]) -> tuple[Beginning, str]:
        """The transactions that the leaders of these partitions know as open.

        A partition that does not exist has none. One that may not be read is left out, and the text says why.
        """

        async def ask() -> tuple[Beginning, str]:
            found: Beginning = {p: {} for p in partitions}
            unasked = ""
            for p in await self._describe_producers(sorted({t for t, _ in partitions}), set(partitions).__contains__):
                here = (p.topic, p.partition)
                try:
                    _check(p.code, f"DescribeProducers of {p.topic}-{p.partition}")
                    found[here] = {(h.producer_id, h.producer_epoch): h.start_offset for h in p.open}
                except KafkaError as e:
                    if e.retriable:
                        raise
                    del found[here]
                    unasked = str(e)
            return found, unasked

        return self._retry(ask)

    async def _describe_producers(self, topics: list[str], wanted: Callable[[Partition], bool]) -> list[_Answer]:
        sent = []
        for node, led in (await self._leaders(topics)).items():
            partitions = [p for p in led if wanted(p)]
            for first in range(0, len(partitions), _PARTITIONS_AT_ONCE):
                request = _describe_producers(partitions[first : first + _PARTITIONS_AT_ONCE])
                sent.append(self._admin._manager.send(request, node_id=node))
        return [answer for future in sent for answer in _answers(await future)]

    async def _leaders(self, topics: list[str]) -> dict[int, list[tuple[str, int]]]:
        """The partitions by the node that leads them."""
        if not topics:
            return {}
        found: dict[int, list[tuple[str, int]]] = {}
        for topic in (await self._admin._get_cluster_metadata(topics))["topics"]:
            error = for_code(topic["error_code"])
            if error.__name__ == "UnknownTopicOrPartitionError":  # deleted since: nothing can hang there
                continue
            _check(topic["error_code"], f"metadata of {topic['name']}")
            for partition in topic["partitions"]:
                if partition["leader_id"] < 0:
                    raise LeaderNotAvailableError(f"{topic['name']}-{partition['partition_index']}")
                found.setdefault(partition["leader_id"], []).append((topic["name"], partition["partition_index"]))
        return found

    def _ids_of(self, producer_ids: set[int]) -> dict[int, str]:
        """The transactional ids that the coordinators have given these producer ids to."""

        async def ask() -> dict[int, str]:
            answer = await self._admin._async_list_transactions(
                broker_ids=await self._brokers(), producer_id_filters=sorted(producer_ids)
            )
            return {t.producer_id: t.transactional_id for rows in answer.values() for t in rows}

        return self._retry(ask)


def _describe_producers(partitions: list[tuple[str, int]]) -> DescribeProducersRequest:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return DescribeProducersRequest(
        topics=[DescribeProducersRequest.TopicRequest(name=t, partition_indexes=p) for t, p in by_topic.items()]
    )


def _answers(answer: Any) -> list[_Answer]:
    return [
        _Answer(
            topic.name,
            p.partition_index,
            p.error_code,
            [
                Hanging(
                    topic.name,
                    p.partition_index,
                    x.producer_id,
                    x.producer_epoch,
                    x.coordinator_epoch,
                    x.current_txn_start_offset,
                    x.last_timestamp,
                    records=x.last_sequence + 1,  # sequences begin at 0 with each epoch
                )
                for x in p.active_producers
                if x.current_txn_start_offset >= 0
            ],
        )
        for topic in answer.topics
        for p in topic.partitions
    ]


def _check(code: int, what: str) -> None:
    """Raise the broker's error; those that a moved leader causes are repeated by the caller's budget."""
    if code:
        error: type[KafkaError] = for_code(code)
        raise error(what)
