"""Before a person ends what hangs: whose word it takes. On a real broker: tests/integration/test_hanging.py."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Self

import pytest
from kafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    TopicAuthorizationFailedError,
    UnknownBrokerIdError,
    UnknownTopicOrPartitionError,
)

from exactly_once.errors import NotAuthorized
from exactly_once.kafka.connection import Connection
from exactly_once.txn import leaders
from exactly_once.txn.coordinators import Description
from exactly_once.txn.hanging import was_aborted
from exactly_once.txn.leaders import Hanging, Trail, _hangs, end_by_marker, trail_of
from testkit.doubles import ask_the_double

OPEN = Hanging("t", 0, 7, 3, 0, 100, 0)
NAME = "eo:job:1:0:0.0"


def described(state: str, epoch: int, partitions: tuple[tuple[str, int], ...] = ()) -> Description:
    return Description(NAME, state, 7, epoch, 60_000, 0, partitions, 1)


class Cluster:
    """A transaction that is open on t-0, and one listing after the other of the ids that coordinators know."""

    def __init__(self, listings: list[dict[int, str]], partitions: tuple[tuple[str, int], ...]):
        self.listings, self.partitions = listings, partitions
        self.aborted: list[Hanging] = []
        self.all_seen = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def renew(self, budget_s: float) -> Self:
        return self

    def check_all_seen(self) -> None:
        if not self.all_seen:
            raise NotAuthorized("this principal may not see all transactional ids", "Grant DESCRIBE")

    def _open(self, topics: list[str]) -> list[Hanging]:
        return [OPEN]

    def ids_of(self, producer_ids: set[int]) -> dict[int, str]:
        return self.listings.pop(0)

    def describe(self, transactional_ids: Iterable[str]) -> dict[str, Description]:
        return {i: described("Ongoing", 3, self.partitions) for i in transactional_ids}

    def write_marker(self, h: Hanging, commit: bool) -> None:
        assert not commit
        self.aborted.append(h)


@pytest.mark.parametrize(
    ("known", "young", "old"),
    [
        pytest.param(None, False, True, id="nobody knows its producer"),
        pytest.param(described("Ongoing", 3, (("t", 0),)), False, False, id="its coordinator names it"),
        pytest.param(described("Ongoing", 3, (("t", 1),)), False, True, id="its coordinator may be about to"),
        pytest.param(described("Ongoing", 4, (("t", 1),)), True, True, id="the next one of its id is open"),
        pytest.param(described("CompleteAbort", 4), True, True, id="it timed out"),
        pytest.param(described("CompleteCommit", 3), True, True, id="it is committed"),
        pytest.param(described("PrepareAbort", 4), True, True, id="it is being ended, and nobody will here"),
    ],
)
def test_no_age_is_needed_where_a_coordinator_says_that_it_is_past_a_transaction(
    known: Description | None, young: bool, old: bool
) -> None:
    """Guards against fifteen minutes in which nothing is found; and against one that has just begun and looks alike."""
    assert (_hangs(OPEN, known, -1), _hangs(OPEN, known, 0)) == (young, old)


@pytest.mark.parametrize(
    ("state", "epoch", "version", "aborted"),
    [
        ("CompleteAbort", 3, 5, True),
        ("CompleteAbort", 4, 5, True),
        ("CompleteAbort", 3, 4, True),
        ("CompleteAbort", 4, 4, False),  # or the next one of this id
        ("CompleteAbort", 5, 5, False),
        ("CompleteCommit", 4, 5, False),
        ("Empty", 4, 5, False),
        ("PrepareAbort", 4, 5, False),
    ],
)
def test_a_coordinator_speaks_of_the_very_transaction_or_of_none(
    state: str, epoch: int, version: int, aborted: bool
) -> None:
    """Guards against the abort of what was committed: its coordinator may speak of a later one of the same id."""
    assert was_aborted(OPEN, described(state, epoch), version) is aborted
    assert not was_aborted(OPEN._replace(producer_id=8), described(state, epoch), version)


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The double says whether every id is seen."""
    ask_the_double(monkeypatch, leaders, "check_all_seen")


@pytest.mark.parametrize(
    ("listings", "partitions", "aborted"),
    [
        pytest.param([{}, {7: NAME}], (("t", 0),), False, id="its coordinator was dead at the first look"),
        pytest.param([{7: NAME}], (("t", 0),), False, id="its coordinator knows it"),
        pytest.param([{}, {}], (), True, id="nobody knows its producer, twice"),
        pytest.param([{7: NAME}], (("t", 1),), True, id="its coordinator knows the id, and not this partition"),
    ],
)
def test_a_transaction_is_ended_by_hand_only_when_no_coordinator_will_end_it(
    listings: list[dict[int, str]],
    partitions: tuple[tuple[str, int], ...],
    aborted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards against a torn transaction: an abort marker on one partition of a live one, whose coordinator has just
    died and whose successor has not loaded it yet. Its rows there are lost while the rest commits."""
    cluster = Cluster(listings, partitions)
    monkeypatch.setattr(leaders, "Admin", lambda connection, budget_s: cluster)
    monkeypatch.setattr(leaders, "_ASK_AGAIN_S", 0.0)
    ask_the_double(monkeypatch, leaders, "_open", "ids_of", "describe", "write_marker")
    assert end_by_marker(Connection("h:1"), OPEN) is aborted
    assert bool(cluster.aborted) is aborted and cluster.listings == []


def test_a_transaction_whose_coordinator_may_be_hidden_is_not_ended_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a torn transaction: the brokers leave the ids that a principal may not see out of every list, so
    to it a living transaction has no coordinator."""
    cluster = Cluster([{}], ())
    cluster.all_seen = False
    monkeypatch.setattr(leaders, "Admin", lambda connection, budget_s: cluster)
    ask_the_double(monkeypatch, leaders, "_open", "ids_of", "describe")
    with pytest.raises(NotAuthorized):
        end_by_marker(Connection("h:1"), OPEN)
    assert cluster.aborted == []


def test_a_leader_that_does_not_tell_who_wrote_is_not_taken_for_one_that_knows_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Silence over a transaction in a topic that could not be searched; or a report that names a topic that is gone."""

    def answer(topic: str, *producers: int, failure: KafkaError | None = None) -> leaders._Answer:
        return leaders._Answer(topic, 0, failure, [], frozenset(producers))

    async def answers(*_: Any) -> list[leaders._Answer]:
        return [
            answer("ours", 7, 8),
            answer("theirs", 9),
            answer("secret", failure=TopicAuthorizationFailedError()),
            answer("gone", failure=UnknownTopicOrPartitionError()),
            answer("half", 7),
            answer("half", failure=LeaderNotAvailableError()),
        ]

    monkeypatch.setattr(leaders, "_describe_producers", answers)
    admin: Any = SimpleNamespace(ask=lambda question: asyncio.run(question()))
    ours, secret, half = frozenset({"ours", "half"}), frozenset({"secret"}), frozenset({"half"})
    assert trail_of(admin, [7], ["ours", "theirs", "secret", "gone", "half"]) == Trail(ours, secret, half)


class Moved:
    """A cluster whose partition t-0 broker 1 has led before, and ``leader`` leads now. It answers for itself."""

    def __init__(self, leader: int, denied: tuple[str, ...] = ()):
        self._leader, self._denied = leader, denied
        self.asked: list[int] = []
        self.left: set[int] = set()

    def led_before(self, topics: Iterable[str]) -> dict[int, list[tuple[str, int]]]:
        return {1: [("t", 0)]}

    async def leaders(
        self, topics: list[str], leaderless: Any, ids: dict[str, str] | None, denied: dict[str, KafkaError]
    ) -> dict[int, list[tuple[str, int]]]:
        denied |= {topic: TopicAuthorizationFailedError() for topic in self._denied}
        if ids is not None:
            ids |= {topic: f"id of {topic}" for topic in topics if topic not in denied}
        return {self._leader: [("t", 0), ("input", 0)]}

    def send(self, request: Any, node: int) -> Any:
        if node in self.left:
            raise UnknownBrokerIdError(node)
        self.asked.append(node)
        answered = asyncio.get_running_loop().create_future()
        answered.set_result(node)
        return answered

    def run(self, question: Any) -> Any:
        async def awaited() -> Any:
            return await question()

        return asyncio.run(awaited())

    def begin(self, question: Any) -> Any:
        return question()


@pytest.mark.parametrize(
    ("leader", "left", "asked"),
    [
        pytest.param(1, (), [1], id="it leads"),
        pytest.param(2, (), [1, 2], id="another one leads"),
        pytest.param(2, (1,), [2], id="it has left the cluster"),
    ],
)
def test_a_leader_is_asked_before_it_is_known_to_lead_and_believed_if_it_did(
    leader: int, left: tuple[int, ...], asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loss: a broker that has been deposed says what it had, and a transaction that its successor lost is decided. And
    an outage: a broker that is gone for good is asked by every sweep, which fails.
    """

    def answers(node: int) -> list[leaders._Answer]:
        return [leaders._Answer("t", 0, None, [OPEN._replace(records=node)])]

    monkeypatch.setattr(leaders, "_answers", answers)
    monkeypatch.setattr(leaders, "_pairs", lambda handles: [("t", 0)])
    cluster: Any = Moved(leader, denied=("input",))
    cluster.left |= set(left)
    heard = leaders.end_asking(cluster, leaders.begin_asking(cluster, [], ["t", "input"]))
    assert heard is not None
    assert heard.open == {("t", 0): {(7, 3): leaders.OffsetRange(100, leader)}}
    assert heard.ids == {"t": "id of t"}, "whoever may not describe its input looks at its output all the same"
    assert sorted(cluster.asked) == asked


def test_leaders_of_a_topic_that_may_not_be_described_are_not_asked_at_once() -> None:
    """Guards against a right that is missing and looks like a transaction that is not there."""
    cluster: Any = Moved(1, denied=("t",))
    handles: Any = [SimpleNamespace(written={("t", 0): None})]
    assert leaders.end_asking(cluster, leaders.begin_asking(cluster, handles, ["t"])) is None
