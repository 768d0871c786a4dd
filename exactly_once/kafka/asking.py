"""One kafka-python admin connection, with one time budget and the project's own errors: the only file that touches what
kafka-python does not publish (tests/contract/test_kafka_python.py holds it to these names).
"""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain, repeat
from typing import Any, Self, TypeVar, cast

from kafka.admin import KafkaAdminClient
from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LeaderNotAvailableError,
    SaslAuthenticationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.net.compat import KafkaNetClient
from kafka.protocol.metadata import CoordinatorType, MetadataRequest

from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import check, may_pass, of_admin

T = TypeVar("T")

#: Time after which a request's connection is given up; a healthy broker answers in milliseconds, and the budget of a
#: step (10 s and more) must leave room for a second coordinator.
REQUEST_TIMEOUT_MS = 5_000

#: Requests of one caller that go to one broker together: the EndTxn of a batch. The broker works them off one by one,
#: so more would gain nothing.
IN_FLIGHT = 100

#: Requests of all callers that one connection takes; the client refuses those beyond, even those that it makes itself.
_MOST_IN_FLIGHT = 100 * IN_FLIGHT

#: Requests like EndTxn that go over one connection, and the most connections for more of them: a broker answers one
#: request of a connection after the other, and an EndTxn once its end is on enough replicas.
ENDS_A_CONNECTION = 50
MOST_CONNECTIONS = 8

#: Budget for making one of these connections: without it the first one takes all.
_MORE_S = 2.0

#: Ids in one request. A request is given up after a fixed time, so what it asks must not grow with a batch; a thousand
#: take a broker some tens of milliseconds.
IDS_AT_ONCE = 1_000

#: Age of an answer up to which a group's coordinator is not looked up again: a broker that dies is named for longer.
_COORDINATES_S = 5.0

#: Longest wait for a refusal, in ms: a broker refuses within milliseconds, a password after a tenth of a second.
_LOGIN_MS = 2_000

Partition = tuple[str, int]

# its debug output holds the whole configuration, passwords included
logging.getLogger("kafka.admin.client").setLevel(logging.INFO)


class _Client(KafkaAdminClient):
    """An admin client that says why it cannot connect, and leaves no thread and no socket behind then."""

    def __init__(self, **configs: Any):
        try:
            super().__init__(**configs)
        except BaseException as e:
            refusal = None
            if hasattr(self, "_net"):
                if isinstance(e, KafkaTimeoutError):  # it tries again until its time is over, and knows only that
                    refusal = self._net.run(self._refusal)
                self._client.close()
                self._net.stop()
            if refusal is None:
                raise
            raise refusal from e

    async def _refusal(self) -> Exception | None:
        """Connect twice more, and return why that fails.

        A broker that refuses a password closes the connection with its answer, which the client drops over TLS; one
        that stops closes it once, and is gone the second time.
        """
        broker, failures = self._manager.cluster.bootstrap_brokers()[0], list[Exception]()
        for _ in range(2):
            self._manager.reset_backoff(broker.node_id)
            connection: Any = self._manager.get_connection(broker.node_id, timeout_ms=_LOGIN_MS)
            try:
                await connection
                return None
            except (KafkaError, OSError) as e:
                failures.append(e)
                if not isinstance(e, KafkaConnectionError) or not connection.sasl_enabled:
                    return failures[-1]
        if connection.broker_version_data is None:  # it did not come to the login
            return failures[-1]
        refused: Exception = SaslAuthenticationFailedError(
            f"the broker closed the connection during the login ({failures[-1]})"
        )
        return refused


def _unmeasured(metrics: object, **configs: Any) -> KafkaNetClient:
    """Return the client's network without its metrics, which nobody reads: a sixth of a request's processor time."""
    return KafkaNetClient(**configs)


class Known:
    """Leaders, brokers, topics, groups' coordinators, as the newest answers to the clients of a cluster named them."""

    def __init__(self) -> None:
        self.led_by: dict[Partition, int] = {}
        self.alive: tuple[float, list[int]] = (float("-inf"), [])
        self.topics: dict[str, tuple[float, Any]] = {}
        self.answers: dict[str, tuple[float, Any]] = {}
        self.groups: dict[str, tuple[float, int]] = {}


class Asking:
    """Requests to a cluster, within ``budget_s`` seconds (renewable); a context manager that closes its connections, or
    gives them back (:mod:`exactly_once.kafka.sharing`).

    ``question`` is a function without arguments that returns an awaitable, most often a coroutine function. Only
    questions call the ``async`` methods.

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

    def __init__(self, connection: Connection, budget_s: float = 10.0, known: Known | None = None):
        self.connection = connection
        self.deadline = Deadline(budget_s)
        self.known = known or Known()
        self._beside: list[Self] = []
        self._adding = threading.Lock()
        self._give_back: Callable[[], None] | None = None
        self._first = self  # the one of which the others are copies, and which knows whether the client has failed
        self._failed = False
        self._seen_s = float("-inf")
        connection.check_login()
        try:
            self.client = _Client(
                client_id="exactly-once-control",
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                bootstrap_timeout_ms=int(budget_s * 1000),
                reconnect_backoff_max_ms=500,  # a broker that restarts must not cost the default's 30 s of silence
                max_in_flight_requests_per_connection=_MOST_IN_FLIGHT,
                kafka_client=_unmeasured,
                **connection.kafka_python(),
            )
        except (KafkaError, OSError, ValueError) as e:
            raise self.named(e) from e
        self._see([b.node_id for b in self._cluster.brokers()])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def failed(self) -> bool:
        """True once an answer did not come within its budget, the brokers refused the login, or the client broke."""
        return self._first._failed

    @property
    def silent_s(self) -> float:
        """The seconds since this client was last told which brokers there are."""
        return time.monotonic() - self._first._seen_s

    def lent(self, budget_s: float, give_back: Callable[[], None]) -> Self:
        """Return the same connections with a budget of its own, whose :meth:`close` calls ``give_back``, once."""
        same = self.within(budget_s)
        same._give_back = give_back
        return same

    def close(self) -> None:
        """Close the connections, or give them back."""
        if self._give_back is not None:
            give_back, self._give_back = self._give_back, lambda: None
            return give_back()
        for beside in self._beside:
            beside.client.close()
        self.client.close()

    def shares(self, requests: int) -> list[Self]:
        """Return this one and as many more as that many ``requests`` like EndTxn need, each with connections of its own
        and what is left of the budget; fewer where the brokers take no more connections. They are kept.
        """
        wanted = min(MOST_CONNECTIONS, -(-requests // ENDS_A_CONNECTION))
        with contextlib.suppress(ExactlyOnceError), self._adding:
            while len(self._beside) < wanted - 1:
                more = type(self)(self.connection, min(_MORE_S, max(1.0, self.deadline.left)), self.known)
                self._beside.append(more)
        return [self, *(one.within(self.deadline.left) for one in self._beside[: wanted - 1])]

    def renew(self, budget_s: float) -> Self:
        """Start a new budget for the next step over the same connections; returns self."""
        self.deadline = Deadline(budget_s)
        return self

    def within(self, budget_s: float) -> Self:
        """Return the same connections with a budget of its own, for whoever asks meanwhile; only this one is closed."""
        same = copy.copy(self)
        same._give_back = None
        return same.renew(budget_s)

    # -- asking ---------------------------------------------------------------------------------------------------

    def ask(self, question: Callable[[], Awaitable[T]], begun: Awaitable[T] | None = None) -> T:
        """Return the answer to ``question``, of which ``begun`` is what :meth:`begin` has returned, if it was begun.

        It is asked again after errors that Kafka calls retriable until the budget is spent.

        Raises BrokerUnreachable, NotAuthorized or BrokerRefused.
        """
        questions = chain([] if begun is None else [lambda: begun], repeat(question))
        return self.call(lambda: self.run(next(questions)))

    def call(self, act: Callable[[], T]) -> T:
        """Do as :meth:`ask` does, for an act that waits for its answer itself, such as the methods of ``client``."""
        failure: Exception | None = None
        for _ in self.deadline.tries():
            try:
                return act()
            except UnknownBrokerIdError as e:  # the broker joined after the client's last look at the cluster
                failure = e
                with contextlib.suppress(KafkaError):
                    self.run(self._cluster.refresh_metadata)
            except KafkaError as e:
                failure = e
                if not e.retriable:
                    break
        self._first._failed |= may_pass(failure)
        raise self.named(failure) from failure

    def remembered(self, what: str, ask: Callable[[], T], old_s: float) -> T:
        """Return the answer to a question about the cluster itself, as anybody who shares ``known`` had it ``old_s``
        seconds ago or less; or ask. An empty answer, as without a right, is not kept.
        """
        when_s, answer = self.known.answers.get(what, (float("-inf"), None))
        if time.monotonic() - when_s > old_s:
            answer = ask()
            if answer:
                self.known.answers[what] = time.monotonic(), answer
        return cast("T", answer)

    def run(self, question: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to ``question``, asked once; raise kafka-python's own errors."""
        try:
            answer: T = self.client._net.run(question)
        except KafkaError as e:
            self._first._failed |= isinstance(e, SaslAuthenticationFailedError)
            raise
        except (RuntimeError, OSError):  # the client's thread has ended
            self._first._failed = True
            raise
        return answer

    def begin(self, question: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Ask without waiting; what it returns is awaited inside of another question."""
        try:
            asked: Awaitable[T] = self.client._manager.call_soon(question)
        except (RuntimeError, OSError):  # the client's thread has ended
            self._first._failed = True
            raise
        return asked

    def named(self, e: Exception | None) -> ExactlyOnceError:
        """Return our error for a client's (:func:`exactly_once.kafka.errors.of_admin`). A client without a token only
        says that it cannot connect.
        """
        try:
            if may_pass(e):
                self.connection.check_login()
        except ExactlyOnceError as why:
            return why
        return of_admin(e, self.connection.bootstrap_servers, self.deadline.seconds)

    # -- to whom: for questions -----------------------------------------------------------------------------------

    def send(self, request: Any, node: int | None = None, timeout_ms: int | None = None) -> Any:
        """Send a request to a broker, to any when ``node`` is None; returns what its answer can be awaited from."""
        return self.client._manager.send(request, node_id=node, request_timeout_ms=timeout_ms)

    async def wait(self, answer: Any, seconds: float) -> Any:
        """Return the answer if it comes within so many seconds; else raise KafkaTimeoutError, and leave the connection
        open for those who ask over it as well.
        """
        return await self.client._manager.wait_for(answer, int(seconds * 1000))

    async def pause(self, seconds: float) -> None:
        """Let others ask for so long."""
        await self.client._net.sleep(seconds)

    def api_version(self, request: Any) -> int:
        """Return the highest version of a request that client and brokers know; -1 when they have none in common."""
        try:
            return int(self.client._manager.broker_version_data.api_version(request))
        except KafkaError:
            return -1

    async def brokers(self, old_s: float = 0.0) -> list[int]:
        """Return the live brokers, as an answer had them that is no older than ``old_s`` seconds, or by a fresh one."""
        when_s, found = self.known.alive
        if not found or time.monotonic() - when_s > old_s:
            await self._cluster.refresh_metadata()
            found = self._see([b.node_id for b in self._cluster.brokers()])
        return found

    def _see(self, alive: list[int]) -> list[int]:
        self._first._seen_s = time.monotonic()
        self.known.alive = time.monotonic(), alive
        return alive

    async def coordinators(self, transactional_ids: list[str]) -> dict[str, int]:
        """Return the coordinator of each id, from memory or by FindCoordinator (KIP-699)."""
        found: dict[str, int] = {}
        for first in range(0, len(transactional_ids), IDS_AT_ONCE):
            some = transactional_ids[first : first + IDS_AT_ONCE]
            try:
                found |= await self.client._find_coordinator_ids(some, key_type=CoordinatorType.TRANSACTION)
            except TransactionalIdAuthorizationFailedError as e:  # the client's error lacks the id
                raise type(e)(f"FindCoordinator of {some[0]}") from e
        return found

    def forget_coordinator(self, transactional_id: str) -> None:
        """Look it up again next time: it may have moved."""
        self._cluster._coordinators.pop((CoordinatorType.TRANSACTION, transactional_id), None)

    async def group_coordinator(self, group: str) -> int:
        """Return the coordinator of a consumer group, by a FindCoordinator of the last seconds."""
        when_s, node = self.known.groups.get(group, (float("-inf"), -1))
        if time.monotonic() - when_s > _COORDINATES_S:
            self._cluster._coordinators.pop((CoordinatorType.GROUP, group), None)
            node = int((await self.client._find_coordinator_ids([group]))[group])
            self.known.groups[group] = time.monotonic(), node
        return node

    def forget_group_coordinator(self, group: str) -> None:
        """Look it up again next time: it may have moved."""
        self.known.groups.pop(group, None)

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
        by_leader: dict[int, list[Partition]] = {}
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
                ids[topic.name] = id_of(topic)
            for p in topic.partitions:
                self.known.led_by[topic.name, p.partition_index] = int(p.leader_id)
                if p.leader_id >= 0:
                    by_leader.setdefault(p.leader_id, []).append((topic.name, p.partition_index))
                elif leaderless is None:
                    raise LeaderNotAvailableError(f"{topic.name}-{p.partition_index}")
                else:
                    leaderless.append((topic.name, p.partition_index))
        return by_leader

    def led_before(self, topics: Iterable[str]) -> dict[int, list[Partition]]:
        """Return the partitions of ``topics`` by the broker that led them when this was last asked for: whoever asks it
        makes sure meanwhile that it still does.
        """
        wanted, found = set(topics), dict[int, list[Partition]]()
        for partition, node in list(self.known.led_by.items()):
            if partition[0] in wanted and node >= 0:
                found.setdefault(node, []).append(partition)
        return found

    async def led_by(self, partition: Partition) -> int:
        """Return the broker that leads ``partition``, from memory or as :meth:`leader` does."""
        if self.known.led_by.get(partition, -1) < 0:
            self.known.led_by[partition] = await self.leader(partition)
        return self.known.led_by[partition]

    def forget_leader(self, *partitions: Partition) -> None:
        """Look the leaders up again next time: they may have moved."""
        for partition in partitions:
            self.known.led_by.pop(partition, None)

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

    async def _metadata(self, topics: list[str]) -> Any:
        wanted = [MetadataRequest.MetadataRequestTopic(name=t) for t in topics]
        answer = await self.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
        self._see([b.node_id for b in answer.brokers])
        return answer

    @property
    def _cluster(self) -> Any:
        """The client's own memory of the cluster."""
        return self.client._manager.cluster


def id_of(topic: Any) -> str:
    """Return the id of a topic in a Metadata response; "" where the brokers have none (before 2.8)."""
    topic_id = str(getattr(topic, "topic_id", None) or "")
    return topic_id if topic_id.strip("-0") else ""
