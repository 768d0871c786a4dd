"""The cluster as it is: its brokers, topics, offsets and settings.

Transactions, partition leaders and consumer groups are functions over an :class:`Admin`, in the modules of these names.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.structs import TopicPartition

from exactly_once.errors import BrokerRefused, NotAuthorized, UnknownTopic
from exactly_once.kafka.asking import Asking, Partition, id_of
from exactly_once.kafka.errors import check, lacking, of_new_topic

__all__ = ["EARLIEST", "LATEST", "START_S", "STATIC_S", "Admin", "Partition", "TopicConfigs", "Watermarks", "by_topic"]

#: Age of an answer that names whom to ask for a broker's settings: brokers name one that died for longer.
_ALIVE_S = 5.0

#: Age of an answer by which a start makes sure of topics and rights: the claim takes what the check was told.
START_S = 5.0

EARLIEST, LATEST = -2, -1

_LONGEST = "transaction.max.timeout.ms"

#: Age of an answer that names a setting of which a new value needs a restart of the brokers.
STATIC_S = 60.0

#: Settings by topic.
TopicConfigs = Mapping[str, Mapping[str, str]]


class Watermarks(NamedTuple):
    """Offsets of a partition: first, last stable (the end of what read_committed sees), high watermark."""

    low: int
    last_stable: int
    high: int


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Return the numbers of partitions by topic, as requests take them."""
    found: dict[str, list[int]] = {}
    for topic, number in partitions:
        found.setdefault(topic, []).append(number)
    return found


class Admin(Asking):
    """Questions about a cluster, its topics, their offsets and settings: see :class:`Asking` for budget and errors."""

    def broker_count(self, old_s: float = 0.0) -> int:
        """Return the number of live brokers, as an answer had them that is no older than that."""
        return len(self.ask(lambda: self.brokers(old_s)))

    def cluster_id(self) -> str:
        """Return the id that the cluster gave itself."""
        return str(self.ask(lambda: self._metadata([])).cluster_id)

    def topics(self) -> list[str]:
        """Return the names of all topics that the principal may describe."""
        return sorted(t["name"] for t in self._described(None) if not t["error_code"])

    def sizes(self, topics: list[str], old_s: float = 0.0) -> dict[str, int]:
        """Return the number of partitions of those of ``topics`` that exist and may be described, by an answer that is
        no older than that.
        """
        found = self._described_within(topics, old_s)
        return {t["name"]: len(t["partitions"]) for t in found if not t["error_code"]}

    def topic_partitions(
        self, topics: Iterable[str], operations: Collection[str] = (), old_s: float = 0.0, absent: bool = False
    ) -> dict[str, int]:
        """Return the number of partitions of each topic; raise UnknownTopic when one of them does not exist, or may not
        be described, and NotAuthorized as :meth:`check_rights` does for ``operations``. An answer that raises neither
        may be ``old_s`` seconds old, and so may one by which a topic is ``absent``.
        """
        wanted = list(topics)
        errors = (0, UnknownTopicOrPartitionError.errno) if absent else (0,)
        described = self._described_within(wanted, old_s, operations, errors)
        sizes = {t["name"]: len(t["partitions"]) for t in described if not t["error_code"]}
        if denied := [t["name"] for t in described if t["error_code"] == TopicAuthorizationFailedError.errno]:
            raise NotAuthorized(
                f"this principal may not describe topic {denied[0]!r} on {self.connection.bootstrap_servers}",
                f"Grant DESCRIBE on the topic {denied[0]}; docs/reference.md lists all rights",
            )
        if missing := [t for t in wanted if t not in sizes]:
            way_out = "Create the topic with the number of partitions that you want, or correct its name"
            raise self._unknown(missing[0], way_out)
        for topic in described:
            _check_rights(topic, operations)
        return sizes

    def watermarks(self, topic: str) -> dict[int, Watermarks]:
        """Return the offsets of every partition of ``topic``; raise :class:`UnknownTopic` where there is none."""
        return {p: w for (_, p), w in self.marks([topic]).items()}

    def marks(self, topics: Iterable[str]) -> dict[Partition, Watermarks]:
        """Return the offsets of every partition of ``topics``, all asked at once; raise as :meth:`watermarks`."""
        tps = [TopicPartition(topic, p) for topic, n in self.topic_partitions(topics).items() for p in range(n)]
        if not tps:
            return {}
        low = self.list_offsets(tps, EARLIEST, "read_uncommitted")
        # in this order a commit in between cannot make a reader wait for less than nothing
        stable, high = (self.list_offsets(tps, LATEST, level) for level in ("read_committed", "read_uncommitted"))
        found = {tp: Watermarks(low[tp].offset, stable[tp].offset, high[tp].offset) for tp in tps}
        return {(tp.topic, tp.partition): w for tp, w in found.items()}

    def high_watermark(self, topic: str, partition: int) -> int:
        """Return the offset after a partition's last record, committed or not, as its leader says: one request."""
        return self.ask(lambda: self.end_of((topic, partition)))

    def offsets_since(self, topic: str, timestamp_ms: int) -> dict[int, int | None]:
        """Return, by partition, the first offset whose timestamp is at or after ``timestamp_ms``; None without one.

        Offsets of transaction markers count, and these carry the time of writing: in a transactional topic with old
        event times this is a lower bound of the first *record* since then, often a far too low one.
        """
        tps = [TopicPartition(topic, p) for p in range(self.topic_partitions([topic])[topic])]
        found = self.list_offsets(tps, timestamp_ms, "read_uncommitted")
        offsets = {tp.partition: found[tp].offset for tp in tps if found.get(tp) is not None}
        return {tp.partition: o if (o := offsets.get(tp.partition, -1)) >= 0 else None for tp in tps}

    def list_offsets(self, partitions: list[TopicPartition], spec: int, isolation: str) -> Mapping[TopicPartition, Any]:
        """Return the leaders' answers for ``spec``: :data:`EARLIEST`, :data:`LATEST`, or a time in ms."""
        wanted = dict.fromkeys(partitions, spec)
        return self.call(lambda: self.client.list_partition_offsets(wanted, isolation_level=isolation))

    def earliest(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """Return the offset at which each of these partitions begins, as its leader says."""
        wanted = list(partitions)
        return self.ask(lambda: self.begins_of(wanted)) if wanted else {}

    def topic_config(self, topic: str) -> dict[str, str]:
        """Return the topic's effective configuration; empty when the principal may not read it, or when the brokers do
        not show it.
        """
        return self._config(ConfigResourceType.TOPIC, topic)

    def broker_config(self, names: Iterable[str] = ()) -> dict[str, str]:
        """Return the effective configuration of one broker, or these settings of it: to read all takes Python 12 ms.
        Empty when the principal may not read it, or when the brokers do not show it.
        """
        return self._config(ConfigResourceType.BROKER, str(self.ask(lambda: self.brokers(_ALIVE_S))[0]), names)

    def longest_transaction_ms(self, old_s: float = 0.0) -> int | None:
        """Return the brokers' transaction.max.timeout.ms, by an answer no older than that; None when the principal may
        not know it.
        """
        longest = self.remembered(_LONGEST, lambda: self.broker_config([_LONGEST]), old_s).get(_LONGEST)
        return int(longest) if longest else None

    def create_topic(
        self,
        name: str,
        partitions: int,
        replication: int,
        configs: Mapping[str, str],
        validate_only: bool = False,
    ) -> None:
        """Create a topic; a no-op when it is there. With ``validate_only`` the brokers only say whether they would
        (KIP-4); nothing is created.

        Parameters
        ----------
        replication : int
            -1: the cluster's default (KIP-464).

        Raises
        ------
        BrokerRefused
            With the brokers' own sentence. Its cause is kafka-python's error.
        NotAuthorized, BrokerUnreachable
        """
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, topic_configs=dict(configs))

        def act() -> KafkaError | None:
            [made] = self.client.create_topics([topic], validate_only=validate_only, raise_errors=False)["topics"]
            try:
                check(made["error_code"], made.get("error_message") or "")
            except KafkaError as e:
                if e.retriable:
                    raise
                return e
            return None

        refusal = self.call(act)
        if refusal is not None and not isinstance(refusal, TopicAlreadyExistsError):
            raise of_new_topic(refusal, name) or self.named(refusal) from refusal

    def check_rights(self, topic: str, operations: Iterable[str]) -> None:
        """Raise NotAuthorized unless this principal may do ``operations`` (READ, WRITE) on ``topic``, as far as brokers
        tell (KIP-430).
        """
        [found] = self._described([topic])
        if found["error_code"] == TopicAuthorizationFailedError.errno:
            raise lacking(operations, topic)
        _check_rights(found, operations)

    def unreadable(self, topics: list[str]) -> list[str]:
        """Return those of ``topics`` on which this principal lacks READ, as far as brokers tell (KIP-430)."""
        found = self._described(topics) if topics else []
        return [
            t["name"]
            for t in found
            if t["error_code"] == TopicAuthorizationFailedError.errno
            or "READ" not in (t.get("authorized_operations") or ["READ"])
        ]

    def topic_ids(self, topics: list[str]) -> dict[str, str]:
        """Return the ids of those of ``topics`` that exist and may be described (KIP-516).

        Brokers before 2.8 give none.
        """
        described = self._described(topics) if topics else []
        ids = {t["name"]: str(t.get("topic_id") or "") for t in described if not t["error_code"]}
        return {topic: i for topic, i in ids.items() if i.strip("-0")}

    def cluster_and_topic_id(self, topic: str) -> tuple[str, str]:
        """Return the cluster's id and the topic's; "" where these brokers have none. Raise UnknownTopic when they do
        not know the topic within the budget: one of them may learn of it late.
        """
        for _ in self.deadline.tries():
            answer = self.ask(lambda: self._metadata([topic]))
            [found] = answer.topics
            if not found.error_code:
                return str(answer.cluster_id or ""), id_of(found)
        raise self._unknown(
            topic, "Start again; if the error persists, grant the rights that docs/reference.md lists under 'Rights'"
        )

    # -- for questions --------------------------------------------------------------------------------------------

    async def end_of(self, partition: Partition) -> int:
        """Return the high watermark of ``partition``, from its leader: one request once the leader is known."""
        return (await self._offsets(await self.led_by(partition), [partition], LATEST))[partition]

    async def begins_of(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return where each of ``partitions`` begins, from its leader: one request to each once they are known."""
        if unknown := {topic for topic, p in partitions if self.known.led_by.get((topic, p), -1) < 0}:
            await self.leaders(sorted(unknown), [])
        by_leader: dict[int, list[Partition]] = {}
        for where in partitions:
            by_leader.setdefault(self.known.led_by.get(where, -1), []).append(where)
        for where in by_leader.get(-1, ()):
            without = LeaderNotAvailableError if where in self.known.led_by else UnknownTopicOrPartitionError
            raise without(f"{where[0]}-{where[1]}")
        asked = [self.begin(partial(self._offsets, node, its, EARLIEST)) for node, its in by_leader.items()]
        return {where: offset for one in asked for where, offset in (await one).items()}

    async def _offsets(self, node: int, partitions: Sequence[Partition], spec: int) -> dict[Partition, int]:
        of_topic = ListOffsetsRequest.ListOffsetsTopic
        one = partial(of_topic.ListOffsetsPartition, timestamp=spec)
        its = by_topic(partitions).items()
        wanted = [of_topic(name=name, partitions=[one(partition_index=n) for n in some]) for name, some in its]
        request = ListOffsetsRequest(isolation_level=0, topics=wanted, min_version=1)  # 0: read_uncommitted
        found: dict[Partition, int] = {}
        try:
            for answer in (await self.send(request, node)).topics:
                for p in answer.partitions:
                    check(p.error_code, f"ListOffsets of {answer.name}-{p.partition_index}")
                    found[answer.name, p.partition_index] = int(p.offset)
        except KafkaError:
            self.forget_leader(*partitions)
            raise
        return found

    async def topic_configs(self, topics: Iterable[str], names: Iterable[str]) -> TopicConfigs:
        """Return these settings of ``topics``, without those that the principal may not read: one request."""
        one, kind = DescribeConfigsRequest.DescribeConfigsResource, ConfigResourceType.TOPIC.value
        wanted = [one(resource_type=kind, resource_name=topic, configuration_keys=[*names]) for topic in topics]
        found = (await self.send(DescribeConfigsRequest(resources=wanted))).results
        return {r.resource_name: {c.name: c.value for c in r.configs} for r in found if not r.error_code}

    def _described(self, topics: list[str] | None) -> list[Any]:
        """Metadata of these topics, errors included; of all topics if None."""
        found: list[Any] = self.call(lambda: self.client.describe_topics(topics))
        if topics is not None:
            self.known.topics |= {t["name"]: (time.monotonic(), t) for t in found}
            led = {(t["name"], p["partition_index"]): p["leader_id"] for t in found for p in t["partitions"]}
            self.known.led_by |= led
        return found

    def _described_within(
        self, topics: list[str], old_s: float, operations: Collection[str] = (), errors: Collection[int] = (0,)
    ) -> list[Any]:
        """Return what :meth:`_described` returned less than ``old_s`` seconds ago, if it allows ``operations`` and has
        none but these ``errors``; else ask.
        """
        since_s, found = time.monotonic() - old_s, list[Any]()
        for name in topics:
            when_s, topic = self.known.topics.get(name, (float("-inf"), {}))
            if when_s <= since_s or topic["error_code"] not in errors or _lacks(topic, operations):
                return self._described(topics)
            found.append(topic)
        return found

    def _config(self, kind: Any, name: str, names: Iterable[str] = ()) -> dict[str, str]:
        wanted = [ConfigResource(kind, name, [*names] or None)]
        try:
            found = self.call(lambda: self.client.describe_configs(wanted, config_filter="all"))
        except (NotAuthorized, BrokerRefused):
            return {}
        values = found.get(kind.name.lower(), {}).get(name, {})
        return {key: data["value"] for key, data in values.items() if data["value"] is not None}

    def _unknown(self, topic: str, way_out: str) -> UnknownTopic:
        return UnknownTopic(
            f"topic {topic!r} does not exist on {self.connection.bootstrap_servers} (or this principal may not "
            "describe it)",
            way_out,
        )


def _check_rights(topic: Mapping[str, Any], operations: Iterable[str]) -> None:
    if missing := _lacks(topic, operations):
        raise lacking(missing, topic["name"])


def _lacks(topic: Mapping[str, Any], operations: Iterable[str]) -> list[str]:
    may = topic.get("authorized_operations")  # old brokers say nothing; who may do nothing sees no topic
    return [o for o in operations if o not in may] if may else []
