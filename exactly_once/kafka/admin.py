"""One kafka-python admin connection, with one time budget and the project's own errors: the only file that touches what
kafka-python does not publish (tests/contract/test_kafka_python.py holds it to these names).

What a cluster is (brokers, topics, offsets, settings) is answered here; transactions, partition leaders and consumer
groups are functions over an :class:`Admin`, in the modules of these names.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewTopic
from kafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import ListOffsetsRequest
from kafka.protocol.metadata import CoordinatorType, MetadataRequest
from kafka.structs import TopicPartition

from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerRefused, ExactlyOnceError, NotAuthorized, UnknownTopic
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import Cause, cause_of, check, lacking, of_admin, of_new_topic
from exactly_once.kafka.login_probe import refusal_of

T = TypeVar("T")

#: Time after which a request's connection is given up; a healthy broker answers in milliseconds, and the budget of a
#: step (10 s and more) must leave room for a second coordinator.
REQUEST_TIMEOUT_MS = 5_000

#: Requests that go to one broker together: the EndTxn of a batch. The broker works them off one by one, so more would
#: gain nothing.
IN_FLIGHT = 100

#: Requests like EndTxn that go over one connection, and the most connections for more of them: a broker answers one
#: request of a connection after the other, and an EndTxn once its end is on enough replicas.
ENDS_A_CONNECTION = 50
MOST_CONNECTIONS = 8

#: Budget for making one of these connections: without it the first one takes all.
_MORE_S = 2.0

#: Age of an answer that names whom to ask for a broker's settings: brokers name one that died for longer.
_ALIVE_S = 5.0

#: Ids in one request. A request is given up after a fixed time, so what it asks must not grow with a batch; a thousand
#: take a broker some tens of milliseconds.
IDS_AT_ONCE = 1_000

EARLIEST, LATEST = -2, -1

_LONGEST = "transaction.max.timeout.ms"

Partition = tuple[str, int]

#: Settings by topic.
TopicConfigs = Mapping[str, Mapping[str, str]]


class Watermarks(NamedTuple):
    """Offsets of a partition: first, last stable (the end of what read_committed sees), high watermark."""

    low: int
    last_stable: int
    high: int


# its debug output holds the whole configuration, passwords included
logging.getLogger("kafka.admin.client").setLevel(logging.INFO)


class _Client(KafkaAdminClient):
    """An admin client that leaves no thread and no socket behind when it cannot connect."""

    def __init__(self, **configs: Any):
        try:
            super().__init__(**configs)
        except BaseException:
            if hasattr(self, "_net"):
                self._client.close()
                self._net.stop()
            raise


class Admin:
    """Requests to a cluster, within ``budget_s`` seconds (renewable); a context manager that closes its connections.

    A question is a function without arguments that returns an awaitable, most often a coroutine function. The
    ``async`` methods are for use inside of questions.

    Attributes
    ----------
    client : kafka.admin.KafkaAdminClient
        For what kafka-python publishes; :meth:`call` gives it the budget and our errors.
    deadline : Deadline
        What is left of the budget.

    Raises
    ------
    BrokerUnreachable
        From the constructor and from every call, when no broker answered within the budget.
    NotAuthorized
        When the principal cannot authenticate or lacks a right.
    InvalidOption
        From the constructor, when the user's token provider returns something else than a token.
    BrokerRefused
        When the brokers refuse a request for good.
    """

    def __init__(self, connection: Connection, budget_s: float = 10.0):
        self.connection = connection
        self.deadline = Deadline(budget_s)
        self._led_by: dict[Partition, int] = {}
        self._alive: tuple[float, list[int]] = (float("-inf"), [])
        self._beside: list[Admin] = []
        connection.check_login()
        try:
            self.client = _Client(
                client_id="exactly-once-control",
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                bootstrap_timeout_ms=int(budget_s * 1000),
                reconnect_backoff_max_ms=500,  # a broker that restarts must not cost the default's 30 s of silence
                # the client refuses what goes beyond: metadata, say, which it asks for by itself
                max_in_flight_requests_per_connection=IN_FLIGHT + 20,
                **connection.kafka_python(),
            )
        except (KafkaError, OSError, ValueError) as e:
            reason = refusal_of(connection) if isinstance(e, KafkaTimeoutError) else None
            raise self.named(reason or e) from e
        self._see([b.node_id for b in self._cluster.brokers()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        for one in (*self._beside, self):
            one.client.close()

    def shares(self, requests: int) -> list[Admin]:
        """Return this and as many more, each with connections of its own and what is left of the budget, as so many
        requests like EndTxn are to go over; fewer where the brokers take no more connections. They are kept.
        """
        wanted = min(MOST_CONNECTIONS, -(-requests // ENDS_A_CONNECTION))
        with contextlib.suppress(ExactlyOnceError):
            while len(self._beside) < wanted - 1:
                self._beside.append(Admin(self.connection, min(_MORE_S, max(1.0, self.deadline.left))))
        return [self, *(one.renew(self.deadline.left) for one in self._beside[: wanted - 1])]

    def renew(self, budget_s: float) -> Self:
        """Start a new budget for the next step over the same connections; returns self."""
        self.deadline = Deadline(budget_s)
        return self

    def within(self, budget_s: float) -> Self:
        """Return the same connections with a budget of its own, for whoever asks meanwhile; only this one is closed."""
        same = copy.copy(self)
        return same.renew(budget_s)

    # -- asking ---------------------------------------------------------------------------------------------------

    def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to ``question``.

        It is asked again after errors that Kafka calls retriable until the budget is spent.

        Raises BrokerUnreachable, NotAuthorized or BrokerRefused.
        """
        return self.call(lambda: self.run(question))

    def call(self, act: Callable[[], T]) -> T:
        """Do as :meth:`ask` does, for an act that waits for its answer itself, such as the methods of ``client``."""
        failure: Exception | None = None
        for _ in self.deadline.tries():
            try:
                return act()
            except UnknownBrokerIdError as e:  # it joined after the client's last look at the cluster
                failure = e
                with contextlib.suppress(KafkaError):
                    self.run(self._cluster.refresh_metadata)
            except KafkaError as e:
                if not e.retriable:
                    raise self.named(e) from e
                failure = e
        raise self.named(failure) from failure

    def run(self, question: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to ``question``, asked once; raise kafka-python's own errors."""
        answer: T = self.client._net.run(question)
        return answer

    def begin(self, question: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Ask without waiting; what it returns is awaited inside of another question."""
        asked: Awaitable[T] = self.client._manager.call_soon(question)
        return asked

    def named(self, e: Exception | None) -> ExactlyOnceError:
        """Return our error for a client's (:func:`exactly_once.kafka.errors.of_admin`). A client without a token only
        says that it cannot connect.
        """
        try:
            if cause_of(e) is Cause.SILENT:
                self.connection.check_login()
        except ExactlyOnceError as why:
            return why
        return of_admin(e, self.connection.bootstrap_servers, self.deadline.seconds)

    # -- to whom: for use inside of questions ---------------------------------------------------------------------

    def send(self, request: Any, node: int | None = None, timeout_ms: int | None = None) -> Any:
        """Send a request to a broker, to any when ``node`` is None; returns what its answer can be awaited from."""
        return self.client._manager.send(request, node_id=node, request_timeout_ms=timeout_ms)

    def api_version(self, request: Any) -> int:
        """Return the highest version of a request that client and brokers know; -1 when they have none in common."""
        try:
            return int(self.client._manager.broker_version_data.api_version(request))
        except KafkaError:
            return -1

    async def brokers(self, old_s: float = 0.0) -> list[int]:
        """Return the live brokers, as an answer had them that is no older than ``old_s`` seconds, or by a fresh one."""
        when_s, found = self._alive
        if not found or time.monotonic() - when_s > old_s:
            await self._cluster.refresh_metadata()
            found = self._see([b.node_id for b in self._cluster.brokers()])
        return found

    def _see(self, alive: list[int]) -> list[int]:
        self._alive = time.monotonic(), alive
        return alive

    async def coordinators(self, transactional_ids: list[str]) -> dict[str, int]:
        """Return the coordinator of each id, from memory or by FindCoordinator (KIP-699)."""
        found: dict[str, int] = {}
        for first in range(0, len(transactional_ids), IDS_AT_ONCE):
            some = transactional_ids[first : first + IDS_AT_ONCE]
            try:
                found |= await self.client._find_coordinator_ids(some, key_type=CoordinatorType.TRANSACTION)
            except TransactionalIdAuthorizationFailedError as e:  # without the id
                raise type(e)(f"FindCoordinator of {some[0]}") from e
        return found

    def forget_coordinator(self, transactional_id: str) -> None:
        """Look it up again next time: it may have moved."""
        self._cluster._coordinators.pop((CoordinatorType.TRANSACTION, transactional_id), None)

    async def group_coordinator(self, group: str) -> int:
        """Return the coordinator of a consumer group, by a fresh FindCoordinator."""
        self._cluster._coordinators.pop((CoordinatorType.GROUP, group), None)
        return int((await self.client._find_coordinator_ids([group]))[group])

    async def leaders(
        self,
        topics: list[str],
        leaderless: list[Partition] | None = None,
        ids: dict[str, str] | None = None,
        denied: dict[str, KafkaError] | None = None,
    ) -> dict[int, list[Partition]]:
        """All partitions of ``topics`` by the broker that leads them; a topic that does not exist has none.

        Parameters
        ----------
        leaderless : list, optional
            Takes the partitions that have no leader at this moment.
        ids : dict, optional
            Takes the ids of the topics that exist; "" where the brokers have none.
        denied : dict, optional
            Takes the errors of topics about which the brokers say nothing. Without it, the first one is raised.

        Raises
        ------
        LeaderNotAvailableError
            When one of them has none, and nothing takes it.
        """
        found: dict[int, list[Partition]] = {}
        for topic in (await self._metadata(topics)).topics if topics else ():
            if for_code(topic.error_code) is UnknownTopicOrPartitionError:  # deleted since
                continue
            try:
                check(topic.error_code, f"metadata of {topic.name}")
            except KafkaError as e:
                if denied is None:
                    raise
                denied[topic.name] = e
                continue
            if ids is not None:
                ids[topic.name] = _id_of(topic)
            for p in topic.partitions:
                self._led_by[topic.name, p.partition_index] = int(p.leader_id)
                if p.leader_id >= 0:
                    found.setdefault(p.leader_id, []).append((topic.name, p.partition_index))
                elif leaderless is None:
                    raise LeaderNotAvailableError(f"{topic.name}-{p.partition_index}")
                else:
                    leaderless.append((topic.name, p.partition_index))
        return found

    def led_before(self, topics: Iterable[str]) -> dict[int, list[Partition]]:
        """Return the partitions of ``topics`` by the broker that led them when this was last asked for: whoever asks it
        makes sure meanwhile that it still does.
        """
        wanted, found = set(topics), dict[int, list[Partition]]()
        for partition, node in list(self._led_by.items()):
            if partition[0] in wanted and node >= 0:
                found.setdefault(node, []).append(partition)
        return found

    async def leader(self, partition: Partition) -> int:
        """Return the broker that leads ``partition``, whatever its topic's other partitions do.

        Raises LeaderNotAvailableError or UnknownTopicOrPartitionError.
        """
        name, index = partition
        [topic] = (await self._metadata([name])).topics
        check(topic.error_code, f"metadata of {name}")
        led = {p.partition_index: int(p.leader_id) for p in topic.partitions}
        if led.get(index, -1) < 0:
            raise (LeaderNotAvailableError if index in led else UnknownTopicOrPartitionError)(f"{name}-{index}")
        return led[index]

    async def end_of(self, partition: Partition) -> int:
        """Return the high watermark of ``partition``, from its leader: one request once the leader is known."""
        if self._led_by.get(partition, -1) < 0:
            self._led_by[partition] = await self.leader(partition)
        return (await self._offsets(self._led_by[partition], [partition], LATEST))[partition]

    async def begins_of(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """Return where each of ``partitions`` begins, from its leader: one request to each once they are known."""
        if unknown := {topic for topic, p in partitions if self._led_by.get((topic, p), -1) < 0}:
            await self.leaders(sorted(unknown), [])
        by_leader: dict[int, list[Partition]] = {}
        for where in partitions:
            by_leader.setdefault(self._led_by.get(where, -1), []).append(where)
        for where in by_leader.get(-1, ()):
            without = LeaderNotAvailableError if where in self._led_by else UnknownTopicOrPartitionError
            raise without(f"{where[0]}-{where[1]}")
        asked = [self.begin(partial(self._offsets, node, its, EARLIEST)) for node, its in by_leader.items()]
        return {where: offset for one in asked for where, offset in (await one).items()}

    async def _offsets(self, node: int, partitions: Sequence[Partition], spec: int) -> dict[Partition, int]:
        topic, by_topic = ListOffsetsRequest.ListOffsetsTopic, dict[str, list[Any]]()
        for name, index in partitions:
            one = topic.ListOffsetsPartition(partition_index=index, timestamp=spec)
            by_topic.setdefault(name, []).append(one)
        wanted = [topic(name=name, partitions=its) for name, its in by_topic.items()]
        request = ListOffsetsRequest(isolation_level=0, topics=wanted, min_version=1)  # 0: read_uncommitted
        found: dict[Partition, int] = {}
        try:
            for answer in (await self.send(request, node)).topics:
                for p in answer.partitions:
                    check(p.error_code, f"ListOffsets of {answer.name}-{p.partition_index}")
                    found[answer.name, p.partition_index] = int(p.offset)
        except KafkaError:
            for where in partitions:
                self._led_by.pop(where, None)  # it may have moved
            raise
        return found

    async def topic_configs(self, topics: Iterable[str], names: Iterable[str]) -> TopicConfigs:
        """Return these settings of ``topics``, without those that the principal may not read: one request."""
        one, kind = DescribeConfigsRequest.DescribeConfigsResource, ConfigResourceType.TOPIC.value
        wanted = [one(resource_type=kind, resource_name=topic, configuration_keys=[*names]) for topic in topics]
        found = (await self.send(DescribeConfigsRequest(resources=wanted))).results
        return {r.resource_name: {c.name: c.value for c in r.configs} for r in found if not r.error_code}

    async def _metadata(self, topics: list[str]) -> Any:
        wanted = [MetadataRequest.MetadataRequestTopic(name=t) for t in topics]
        answer = await self.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        self._see([b.node_id for b in answer.brokers])
        return answer

    @property
    def _cluster(self) -> Any:
        """The client's own memory of the cluster."""
        return self.client._manager.cluster

    # -- the cluster ----------------------------------------------------------------------------------------------

    def broker_count(self) -> int:
        """Return the number of live brokers."""
        return len(self.ask(self.brokers))

    def cluster_id(self) -> str:
        """Return the id that the cluster gave itself."""
        return str(self.ask(lambda: self._metadata([])).cluster_id)

    def topics(self) -> list[str]:
        """Return the names of all topics that the principal may describe."""
        return sorted(t["name"] for t in self._described(None) if not t["error_code"])

    def sizes(self, topics: list[str]) -> dict[str, int]:
        """Return the number of partitions of those of ``topics`` that exist and may be described."""
        return {t["name"]: len(t["partitions"]) for t in self._described(topics) if not t["error_code"]}

    def topic_partitions(self, topics: Iterable[str], operations: Collection[str] = ()) -> dict[str, int]:
        """Return the number of partitions of each topic; raise UnknownTopic when one of them does not exist, or may not
        be described, and NotAuthorized as :meth:`check_rights` does for ``operations``.
        """
        wanted = list(topics)
        described = self._described(wanted)
        found = {t["name"]: len(t["partitions"]) for t in described if not t["error_code"]}
        if denied := [t["name"] for t in described if t["error_code"] == TopicAuthorizationFailedError.errno]:
            raise NotAuthorized(
                f"this principal may not describe topic {denied[0]!r} on {self.connection.bootstrap_servers}",
                f"Grant DESCRIBE on the topic {denied[0]}; docs/reference.md lists all rights",
            )
        if missing := [t for t in wanted if t not in found]:
            way_out = "Create the topic with the number of partitions that you want, or correct its name"
            raise self._unknown(missing[0], way_out)
        for topic in described:
            _check_rights(topic, operations)
        return found

    def watermarks(self, topic: str) -> dict[int, Watermarks]:
        """Return the offsets of every partition of ``topic``; raise :class:`UnknownTopic` where there is none."""
        return {p: w for (_, p), w in self.marks([topic]).items()}

    def marks(self, topics: Iterable[str]) -> dict[Partition, Watermarks]:
        """Return the offsets of every partition of ``topics``, all asked at once; raise as :meth:`watermarks`."""
        tps = [TopicPartition(topic, p) for topic, n in self.topic_partitions(topics).items() for p in range(n)]
        if not tps:
            return {}
        low = self.list_offsets(tps, EARLIEST, "read_uncommitted")
        # in this order: what is committed in between is not taken for a reader that waits for less than nothing
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

    def longest_transaction_ms(self) -> int | None:
        """Return the brokers' transaction.max.timeout.ms; None when the principal may not know it."""
        longest = self.broker_config([_LONGEST]).get(_LONGEST)
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
                return str(answer.cluster_id or ""), _id_of(found)
        raise self._unknown(
            topic, "Start again; if the error persists, grant the rights that docs/reference.md lists under 'Rights'"
        )

    def _described(self, topics: list[str] | None) -> list[Any]:
        """Metadata of these topics, errors included; of all topics if None."""
        return self.call(lambda: self.client.describe_topics(topics))

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
    may = topic.get("authorized_operations")  # nothing from old brokers: who may do nothing sees no topic
    if may and (missing := [o for o in operations if o not in may]):
        raise lacking(missing, topic["name"])


def _id_of(topic: Any) -> str:
    """Return the id of a topic in a Metadata response; "" where the brokers have none (before 2.8)."""
    topic_id = str(getattr(topic, "topic_id", None) or "")
    return topic_id if topic_id.strip("-0") else ""
