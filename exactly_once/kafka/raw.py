"""A kafka-python admin connection with one time budget, the project's own errors, and what can be asked about a
cluster.

Every call retries what Kafka calls retriable until the budget of the object is spent.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.errors import KafkaError, TopicAlreadyExistsError, TopicAuthorizationFailedError, UnknownBrokerIdError
from kafka.protocol.admin.transactions import DescribeTransactionsRequest
from kafka.protocol.producer.transaction import EndTxnRequest
from kafka.structs import TopicPartition

from exactly_once.deadline import Deadline
from exactly_once.errors import (
    BrokerRefused,
    BrokerTooOld,
    BrokerUnreachable,
    ExactlyOnceError,
    NotAuthorized,
    UnknownTopic,
)
from exactly_once.kafka.connection import Connection

T = TypeVar("T")

#: A single request may take this long before its connection is given up; a healthy broker answers in milliseconds, and
#: the budget of a step (10 s and more) must leave room for a second coordinator.
REQUEST_TIMEOUT_MS = 5_000

#: Requests that go to one broker together: the EndTxn of a batch. The broker works them off one by one, so more would
#: gain nothing.
IN_FLIGHT = 100

EARLIEST, LATEST = -2, -1


class Watermarks(NamedTuple):
    """Offsets of a partition: first, last stable (the end of what read_committed sees), high watermark."""

    low: int
    last_stable: int
    high: int


# its debug output holds the whole configuration, passwords included
logging.getLogger("kafka.admin.client").setLevel(logging.INFO)


class _Admin(KafkaAdminClient):
    """An admin client that leaves no thread and no socket behind when it cannot connect."""

    def __init__(self, **configs: Any):
        try:
            super().__init__(**configs)
        except BaseException:
            if hasattr(self, "_client"):
                self._client.close()
                self._client._manager._net.stop()
            raise


class RawClient:
    """Raw requests to a cluster, within ``budget_s`` seconds (renewable).

    Raises
    ------
    BrokerUnreachable
        From the constructor and from every call, when no broker answered within the budget.
    NotAuthorized
        When the principal cannot authenticate or lacks a right.
    """

    def __init__(self, connection: Connection, budget_s: float = 10.0):
        self._connection = connection
        self._deadline = Deadline(budget_s)
        self._led_by: dict[TopicPartition, int] = {}
        try:
            self._admin = _Admin(
                client_id="exactly-once-control",
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                bootstrap_timeout_ms=int(budget_s * 1000),
                reconnect_backoff_max_ms=500,  # a broker that restarts must not cost the default's 30 s of silence
                # the client refuses what goes beyond: metadata, say, which it asks for by itself
                max_in_flight_requests_per_connection=IN_FLIGHT + 20,
                **connection.kafka_python(),
            )
        except (KafkaError, OSError, ValueError) as e:
            raise self._named(e) from e

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def renew(self, budget_s: float) -> Self:
        """Start a new budget for the next step over the same connections; returns self."""
        self._deadline = Deadline(budget_s)
        return self

    # -- the cluster ----------------------------------------------------------------------------------------------

    def end_txn_version(self) -> int:
        """The EndTxn version for new decisions: 5 where the cluster's finalized transaction.version is 2 or more, else
        at most 4 (the broker takes the semantics from the version alone, so 5 must not be sent below that).

        Raises
        ------
        BrokerTooOld
            Without EndTxn 3 (Kafka 2.8) or DescribeTransactions (Kafka 3.0).
        """

        async def ask() -> tuple[int, int, int]:
            data = self._admin._manager.broker_version_data
            features = await self._admin._async_describe_features()

            def highest(request: Any) -> int:
                try:
                    return int(data.api_version(request))
                except KafkaError:
                    return -1

            return (
                highest(EndTxnRequest()),
                highest(DescribeTransactionsRequest()),
                features.get("transaction.version", {}).get("finalized", (0, 0))[1],
            )

        end_txn, describe, finalized = self._retry(ask)
        if end_txn < 3 or describe < 0:
            raise BrokerTooOld(
                f"the brokers at {self._connection.bootstrap_servers} cannot describe transactions (KIP-664)",
                "Use Apache Kafka 3.0 or newer",
            )
        return min(end_txn, 5 if finalized >= 2 else 4)

    def broker_count(self) -> int:
        """The number of live brokers."""
        return len(self._retry(self._brokers))

    def topic_partitions(self, topics: Iterable[str]) -> dict[str, int]:
        """The number of partitions of each topic.

        Raises
        ------
        UnknownTopic
            When one of them does not exist, or may not be described.
        """
        wanted = list(topics)
        metadata = self._retry(lambda: self._admin._get_cluster_metadata(wanted))
        found = {t["name"]: len(t["partitions"]) for t in metadata["topics"] if not t["error_code"]}
        denied = [t["name"] for t in metadata["topics"] if t["error_code"] == TopicAuthorizationFailedError.errno]
        if denied:
            raise NotAuthorized(
                f"this principal may not describe topic {denied[0]!r} on {self._connection.bootstrap_servers}",
                f"Grant the rights on {denied[0]} that docs/reference.md lists under 'Rights'",
            )
        missing = [t for t in wanted if t not in found]
        if missing:
            raise UnknownTopic(
                f"topic {missing[0]!r} does not exist on {self._connection.bootstrap_servers} (or this principal may "
                "not describe it)",
                "Create the topic with the number of partitions that you want, or correct its name",
            )
        return found

    def watermarks(self, topic: str) -> dict[int, Watermarks]:
        """The offsets of every partition of ``topic``; raises :class:`UnknownTopic`."""
        tps = [TopicPartition(topic, p) for p in range(self.topic_partitions([topic])[topic])]
        low = self._list_offsets(tps, EARLIEST, "read_uncommitted")
        stable, high = (self._list_offsets(tps, LATEST, level) for level in ("read_committed", "read_uncommitted"))
        return {tp.partition: Watermarks(low[tp].offset, stable[tp].offset, high[tp].offset) for tp in tps}

    def high_watermark(self, topic: str, partition: int) -> int:
        """The offset after the last record of a partition, committed or not, as its leader says: one request."""
        return self._retry(lambda: self._high_watermark(TopicPartition(topic, partition)))

    def offsets_since(self, topic: str, timestamp_ms: int) -> dict[int, int | None]:
        """By partition, the first offset whose time stamp is at or after ``timestamp_ms``; None where there is none.

        Offsets of transaction markers count, and these carry the time of writing: in a transactional topic with old
        event times this is a lower bound of the first *record* since then, often a far too low one.
        """
        tps = [TopicPartition(topic, p) for p in range(self.topic_partitions([topic])[topic])]
        found = self._list_offsets(tps, timestamp_ms, "read_uncommitted")
        offsets = {tp.partition: found[tp].offset if found.get(tp) is not None else -1 for tp in tps}
        return {p: offset if offset >= 0 else None for p, offset in offsets.items()}

    def topic_config(self, topic: str) -> dict[str, str]:
        """The topic's effective configuration; empty when the principal may not read it."""
        return self._config(ConfigResourceType.TOPIC, topic)

    def broker_config(self) -> dict[str, str]:
        """The effective configuration of one broker; empty when the principal may not read it."""
        return self._config(ConfigResourceType.BROKER, str(self._retry(self._brokers)[0]))

    def create_topic(self, name: str, partitions: int, replication: int, configs: dict[str, str]) -> None:
        """Create a topic; a no-op when it is there."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replication, topic_configs=configs)
        try:
            self._admin.create_topics([topic])
        except TopicAlreadyExistsError:
            pass
        except KafkaError as e:
            raise self._named(e) from e

    def check_rights(self, topic: str, operations: Iterable[str]) -> None:
        """Make sure that this principal may do ``operations`` (READ, WRITE) on ``topic``, as far as brokers tell
        (KIP-430).

        Raises
        ------
        NotAuthorized
        """
        [found] = self._retry(lambda: self._admin._get_cluster_metadata([topic]))["topics"]
        may = found.get("authorized_operations")  # nothing from old brokers: who may do nothing sees no topic
        if may and (missing := [o for o in operations if o not in may]):
            raise NotAuthorized(
                f"this principal has no {' and no '.join(missing)} right on topic {topic!r}",
                f"Grant {' and '.join(missing)} on the topic {topic}; docs/reference.md lists all rights",
            )

    def topic_ids(self, topics: list[str]) -> dict[str, str]:
        """The ids of those of ``topics`` that exist and may be described (KIP-516); none from brokers before 2.8."""
        if not topics:
            return {}
        metadata = self._retry(lambda: self._admin._get_cluster_metadata(topics))
        ids = {t["name"]: str(t.get("topic_id") or "") for t in metadata["topics"] if not t["error_code"]}
        return {topic: i for topic, i in ids.items() if i.strip("-0")}

    def cluster_and_topic_id(self, topic: str) -> tuple[str, str]:
        """The cluster's id and the topic's; "" where these brokers have none.

        Raises
        ------
        UnknownTopic
            When the brokers do not know the topic within the budget: one of them may learn of it late.
        """
        for _ in self._deadline.tries():
            metadata = self._retry(lambda: self._admin._get_cluster_metadata([topic]))
            if not any(t["error_code"] for t in metadata["topics"]):
                topic_id = str(metadata["topics"][0].get("topic_id") or "")
                return str(metadata.get("cluster_id") or ""), topic_id if topic_id.strip("-0") else ""
        raise UnknownTopic(
            f"topic {topic!r} does not exist on {self._connection.bootstrap_servers} (or this principal may not "
            "describe it)",
            "Start again; if the error persists, grant the rights that docs/reference.md lists",
        )

    # -- plumbing -------------------------------------------------------------------------------------------------

    def _sizes(self, topics: list[str]) -> dict[str, int]:
        """The number of partitions of those of ``topics`` that exist and may be described."""
        metadata = self._retry(lambda: self._admin._get_cluster_metadata(topics))
        return {t["name"]: len(t["partitions"]) for t in metadata["topics"] if not t["error_code"]}

    def _list_offsets(
        self, partitions: list[TopicPartition], spec: int, isolation: str
    ) -> Mapping[TopicPartition, Any]:
        """What the leaders say of ``spec``: :data:`EARLIEST`, :data:`LATEST`, or a time in ms."""
        found: Mapping[TopicPartition, Any] = self._retry(
            lambda: self._admin._async_list_partition_offsets(
                dict.fromkeys(partitions, spec), isolation_level=isolation
            )
        )
        return found

    async def _high_watermark(self, tp: TopicPartition) -> int:
        if tp not in self._led_by:
            leaders = await self._admin._async_get_leader_for_partitions([tp])
            self._led_by |= {tp: leader for leader, led in leaders.items() for tp in led}
        request = self._admin._list_partition_offsets_request({tp: LATEST}, 0)  # 0: read_uncommitted
        try:
            answer = await self._admin._manager.send(request, node_id=self._led_by[tp])
            return int(self._admin._list_partition_offsets_process_response(answer)[tp].offset)
        except KafkaError:
            self._led_by.pop(tp, None)  # it may have moved
            raise

    async def _brokers(self) -> list[int]:
        cluster = self._admin._manager.cluster
        await cluster.refresh_metadata()
        return [b.node_id for b in cluster.brokers()]

    def _config(self, kind: Any, name: str) -> dict[str, str]:
        try:
            found = self._retry(
                lambda: self._admin._async_describe_configs(
                    [ConfigResource(kind, name)], config_filter="all", flat=True
                )
            )
        except NotAuthorized:
            return {}
        return {key: data["value"] for key, data in found[0].items() if data["value"] is not None}

    def _retry(self, coro: Callable[[], Awaitable[T]]) -> T:
        failure: Exception | None = None
        for _ in self._deadline.tries():
            try:
                answer: T = self._admin._manager.run(coro)
                return answer
            except UnknownBrokerIdError as e:  # it joined after the client's last look at the cluster
                failure = e
                with contextlib.suppress(KafkaError):
                    self._admin._manager.run(self._admin._manager.cluster.refresh_metadata)
            except KafkaError as e:
                if not e.retriable:
                    raise self._named(e) from e
                failure = e
        raise self._named(failure) from failure

    def _named(self, e: Exception | None) -> ExactlyOnceError:
        kind = type(e).__name__
        if "Authorization" in kind or "Authentication" in kind:
            return NotAuthorized(
                f"{self._connection.bootstrap_servers} refuses this principal: {e}",
                "Grant the right that docs/reference.md lists, or correct the credentials",
            )
        if isinstance(e, KafkaError) and not e.retriable and not isinstance(e, UnknownBrokerIdError):
            return BrokerRefused(
                f"{self._connection.bootstrap_servers} refuses a request: {e}",
                "Correct the setting that the answer names, in the options or on the brokers",
            )
        return BrokerUnreachable(
            f"no broker of {self._connection.bootstrap_servers} answered within {self._deadline.seconds:g} s ({e})",
            "Check kafka.bootstrap.servers, the brokers and the network; start again, unchanged, once they answer",
        )
