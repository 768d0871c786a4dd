"""Requests to coordinators that move: asked again where they are, never given up on the first dead one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from threading import Lock
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from kafka.errors import KafkaConnectionError, UnknownBrokerIdError
from kafka.protocol.metadata import CoordinatorType
from kafka.protocol.producer.transaction import EndTxnRequest

from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerTooOld, BrokerUnreachable
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.outcomes import Outcome
from exactly_once.txn.coordinators import End, describe, end_all, end_one, end_txn_version

DEAD, ALIVE = 1, 2


class Cluster:
    """A cluster whose coordinator of every id was broker 1, which died, and is broker 2 now; as kafka-python sees
    it."""

    def __init__(self, answer: Exception | Any):
        self.cluster = SimpleNamespace(_coordinators={(CoordinatorType.TRANSACTION, i): DEAD for i in ("a", "b")})
        self._manager = self._net = self
        self.answer = answer

    async def _find_coordinator_ids(self, ids: list[str], key_type: object) -> dict[str, int]:
        return {i: self.cluster._coordinators.get((key_type, i), ALIVE) for i in ids}

    def run(self, coroutine: Callable[[], Awaitable[Any]]) -> Any:
        try:
            coroutine().__await__().send(None)
        except StopIteration as end:
            return end.value
        raise AssertionError("something waits for a real broker")

    async def send(self, request: Any, node_id: int, request_timeout_ms: int | None = None) -> Any:
        if node_id == DEAD:
            raise KafkaConnectionError("socket disconnected")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def over(cluster: Cluster) -> Admin:
    admin = object.__new__(Admin)
    admin._beside, admin._adding, admin._first, admin._failed = [], Lock(), admin, False
    admin.connection, admin.deadline = Connection("h:1"), Deadline(0.5)
    admin.client = cluster  # type: ignore[assignment]
    return admin


def test_endtxn_finds_the_new_coordinator_of_a_decided_transaction() -> None:
    """A broker dies between the decision and the commit: the others have what it takes."""
    ends = [End("a", 7, 0), End("b", 8, 0)]
    assert end_all(over(Cluster(SimpleNamespace(error_code=0))), ends, True, 5) == {
        "a": Outcome.DONE,
        "b": Outcome.DONE,
    }


def test_describe_finds_the_new_coordinator_too() -> None:
    """It is asked before every prepared handle and every decision: one dead broker of three would stop the stream."""
    row = SimpleNamespace(
        transactional_id="a",
        error_code=0,
        transaction_state="Ongoing",
        producer_id=7,
        producer_epoch=0,
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=5,
        topics=[],
    )
    described = describe(over(Cluster(SimpleNamespace(transaction_states=[row]))), ["a"])
    assert (described["a"].state, described["a"].coordinator) == ("Ongoing", ALIVE)


class Joined(Cluster):
    """A cluster with a broker that the client has not heard of until it looks again."""

    def __init__(self) -> None:
        super().__init__(None)
        self.cluster.refresh_metadata = self.refresh
        self.heard = False

    async def refresh(self) -> None:
        self.heard = True


def test_a_broker_that_joined_since_the_last_look_is_asked_after_a_new_one() -> None:
    """A leader may move there. Taken for a refusal, the place of no transaction is recorded, and a lost one is
    EO-EXPIRED: a person in the night, for something that the next start finds out."""
    joined = Joined()

    async def ask() -> str:
        if not joined.heard:
            raise UnknownBrokerIdError(3)
        return "answer"

    assert over(joined).ask(ask) == "answer"


def test_a_broker_that_nobody_knows_is_no_refusal() -> None:
    """EO-BROKER-REFUSED is not restarted; this heals by itself."""

    async def ask() -> str:
        raise UnknownBrokerIdError(3)

    with pytest.raises(BrokerUnreachable):
        over(Joined()).ask(ask)


@pytest.mark.parametrize("code", [-1, 35, 42])
def test_an_answer_that_says_nothing_about_the_transaction_does_not_declare_it_lost(code: int) -> None:
    """UNKNOWN_SERVER_ERROR, UNSUPPORTED_VERSION, INVALID_REQUEST: the transaction may be as alive as before.
    EO-EXPIRED would ask a person to write rows again that are about to be committed: duplicates."""
    outcome = end_one(over(Cluster(SimpleNamespace(error_code=code))), "a", 7, 0, True, 5)
    assert outcome not in (Outcome.DONE, Outcome.LOST, Outcome.UNKNOWN)


def test_brokers_that_cannot_describe_transactions_are_refused_with_where_to_look() -> None:
    """Event Hubs, say: there, "use Kafka 3.0" alone is no way out."""
    admin: Any = MagicMock()
    admin.remembered.return_value = [{}]
    admin.api_version.side_effect = lambda request: 3 if isinstance(request, EndTxnRequest) else -1
    with pytest.raises(BrokerTooOld, match=r"docs/managed-kafka\.md"):
        end_txn_version(admin)
