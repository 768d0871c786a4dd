"""The Produce requests of one producer, against brokers that answer as the test tells them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import (
    DuplicateSequenceNumberError,
    InvalidProducerEpochError,
    KafkaConnectionError,
    MessageSizeTooLargeError,
    NotLeaderForPartitionError,
    OutOfOrderSequenceNumberError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from exactly_once.errors import InvalidRecord, NotAuthorized, PrepareFailed
from exactly_once.kafka.produce import outbox as module
from exactly_once.kafka.produce.outbox import Limits, Outbox, Sealed
from exactly_once.kafka.produce.requests import Producer
from tests.support.processes import until

LIMITS = Limits(request_bytes=100, waiting_bytes=60, request_ms=5_000, delivery_s=5.0)
PRODUCER = Producer("eo:s:1:0:0.0", 7, 3, implicit=True)

Answer = Callable[[tuple[str, int]], Any]


class Brokers:
    """An admin client whose brokers answer by the test's rules, on a thread of its own.

    Attributes
    ----------
    requests : list
        (leader, {partition: data}) of each Produce request, in order.
    led : dict of int to list
        Who leads which partitions, when somebody asks.
    answer : callable
        Of (partition): an error class, an exception to raise, or the offset.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[int, dict[tuple[str, int], bytes]]] = []
        self.added: list[list[tuple[str, int]]] = []
        self.led: dict[int, list[tuple[str, int]]] = {1: [("t", 0), ("t", 1)], 2: [("t", 2)]}
        self.answer: Answer = lambda partition: 0
        self.open = threading.Event()
        self.open.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def begin(self, question: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(question(), self._loop)

    async def send(self, request: Any, node: int, timeout_ms: int | None = None) -> Any:
        if hasattr(request, "v3_and_below_topics"):
            some = [(t.name, p) for t in request.v3_and_below_topics for p in t.partitions]
            self.added.append(some)
            return SimpleNamespace(results_by_topic_v3_and_below=[])
        data = {(t.name, p.index): p.records for t in request.topic_data for p in t.partition_data}
        self.requests.append((node, data))
        while not self.open.is_set():
            await asyncio.sleep(0.01)
        return SimpleNamespace(responses=[self._row(partition) for partition in data])

    def _row(self, partition: tuple[str, int]) -> Any:
        answer = self.answer(partition)
        if isinstance(answer, Exception):
            raise answer
        code, offset = (0, answer) if isinstance(answer, int) else (answer.errno, -1)
        row = SimpleNamespace(
            index=partition[1], error_code=code, base_offset=offset, record_errors=[], error_message=None
        )
        return SimpleNamespace(name=partition[0], partition_responses=[row])

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(0.001)

    async def brokers(self) -> list[int]:
        return list(self.led)

    async def leaders(self, topics: list[str]) -> dict[int, list[tuple[str, int]]]:
        return self.led

    async def coordinators(self, ids: list[str]) -> dict[str, int]:
        return dict.fromkeys(ids, 9)

    def forget_coordinator(self, transactional_id: str) -> None:
        pass


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    made = Brokers()
    yield made
    made.close()


def outbox(brokers: Brokers, producer: Producer = PRODUCER, limits: Limits = LIMITS) -> Outbox:
    return Outbox(brokers, producer, limits, "part 0")  # type: ignore[arg-type]


def batch(text: str, size: int = 10) -> Sealed:
    return Sealed(text.encode(), size, lambda index: (b"the key", 99))


def in_turn(*answers: Any) -> Answer:
    """These answers one after the other, then success."""
    left = list(answers)
    return lambda partition: left.pop(0) if left else 0


def sent_to(brokers: Brokers, partition: tuple[str, int]) -> list[bytes]:
    return [data[partition] for _, data in brokers.requests if partition in data]


def test_the_batches_of_a_partition_go_out_one_after_the_other(brokers: Brokers) -> None:
    """Guards against two batches of a partition on their way at once: a retry of the first would come out of order."""
    brokers.open.clear()
    box = outbox(brokers, limits=Limits(100, 1_000, 5_000, 5.0))
    for text in "abc":
        box.put(("t", 0), 1, batch(text))
    box.start()
    until("the first request", lambda: brokers.requests)
    assert sent_to(brokers, ("t", 0)) == [b"a"]
    brokers.open.set()
    box.flush(5)
    assert sent_to(brokers, ("t", 0)) == [b"a", b"b", b"c"]


def test_one_request_carries_a_batch_of_each_partition_of_its_leader_up_to_its_size(brokers: Brokers) -> None:
    """Guards against a round trip for each partition, and against a request above max.request.size."""
    brokers.open.clear()
    box = outbox(brokers, limits=Limits(10, 1_000, 5_000, 5.0))
    box.put(("t", 0), 1, batch("x" * 4))
    box.start()
    until("the first request", lambda: brokers.requests)
    for partition, text in ((0, "a" * 6), (1, "b" * 6), (2, "c" * 4), (3, "d" * 30)):
        box.put(("t", partition), 1, batch(text))
    brokers.open.set()
    box.flush(5)
    assert [sorted(p for _, p in data) for _, data in brokers.requests] == [[0], [0], [1, 2], [3]]


def test_what_is_queued_together_leaves_in_one_request(brokers: Brokers) -> None:
    """Guards against two round trips, and two requests to add partitions, for the few rows of a small part."""
    box = outbox(brokers)
    for partition in range(4):
        box.put(("t", partition), 1, batch("a"))
    assert not brokers.requests
    box.flush(5)
    assert [sorted(p for _, p in data) for _, data in brokers.requests] == [[0, 1, 2, 3]]


def test_what_is_queued_leaves_when_there_is_no_room_for_more(brokers: Brokers) -> None:
    """Guards against a task that waits for room which nothing will make."""
    box = outbox(brokers, limits=Limits(100, 20, 5_000, 5.0))
    for text in "abc":
        box.put(("t", 0), 1, batch(text, size=10))
    box.flush(5)
    assert sent_to(brokers, ("t", 0)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("passing", [NotLeaderForPartitionError, KafkaConnectionError("gone")], ids=str)
def test_what_may_pass_is_sent_again_unchanged_and_in_order(passing: Any, brokers: Brokers) -> None:
    """Guards against a batch lost with a broker, and one sent under another sequence number, which would be there
    twice."""
    brokers.answer = in_turn(passing, passing)
    box = outbox(brokers)
    box.put(("t", 0), 1, batch("a"))
    box.put(("t", 0), 1, batch("b"))
    box.flush(5)
    assert sent_to(brokers, ("t", 0)) == [b"a", b"a", b"a", b"b"]


def test_a_partition_that_has_moved_is_sent_to_its_new_leader(brokers: Brokers) -> None:
    """Guards against a task that asks a deposed leader until its time is over."""
    brokers.answer = in_turn(NotLeaderForPartitionError)
    brokers.led = {2: [("t", 0)]}
    box = outbox(brokers)
    box.put(("t", 0), 1, batch("a"))
    box.flush(5)
    assert [node for node, _ in brokers.requests] == [1, 2]


def test_a_batch_that_the_broker_has_already_is_acknowledged(brokers: Brokers) -> None:
    """Guards against a failure for an answer that got lost: the batch is there once."""
    brokers.answer = in_turn(KafkaConnectionError("no answer"), DuplicateSequenceNumberError, 12)
    box = outbox(brokers)
    box.put(("t", 0), 1, batch("a"))
    box.put(("t", 1), 1, batch("b"))
    box.flush(5)
    assert set(box.offsets.values()) <= {-1, 0, 12}, "an offset that no answer told is not made up"


@pytest.mark.parametrize(
    ("refusal", "kind", "said"),
    [
        (MessageSizeTooLargeError, InvalidRecord, "the key b'the key' and a value of 99 bytes"),
        (TopicAuthorizationFailedError, NotAuthorized, "part 0"),
        (InvalidProducerEpochError, PrepareFailed, "part 0"),
        (OutOfOrderSequenceNumberError, PrepareFailed, "part 0"),
        (RuntimeError("a bug"), PrepareFailed, "a bug"),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_what_will_not_pass_ends_the_part_with_its_name(
    refusal: Any, kind: type[Exception], said: str, brokers: Brokers
) -> None:
    """Guards against a part that is prepared although a batch of it was refused."""
    brokers.answer = lambda partition: refusal
    box = outbox(brokers)
    box.put(("t", 0), 1, batch("a"))
    with pytest.raises(kind, match=said):
        box.flush(5)
    with pytest.raises(kind):
        box.put(("t", 0), 1, batch("b"))
    assert len(brokers.requests) == 1


def test_a_topic_that_stays_away_is_named_when_its_time_is_over(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against two minutes of waiting for a topic that was deleted, and no word about which."""
    monkeypatch.setattr(module, "PROPAGATION_S", 0.05)
    brokers.answer = lambda partition: UnknownTopicOrPartitionError
    box = outbox(brokers)
    box.put(("t", 0), 1, batch("a"))
    with pytest.raises(InvalidRecord, match=r"does not exist .*t-0"):
        box.flush(5)


def test_a_batch_that_nobody_takes_ends_at_the_delivery_timeout(brokers: Brokers) -> None:
    """Guards against a task that waits for ever."""
    brokers.answer = lambda partition: NotLeaderForPartitionError
    box = outbox(brokers, limits=Limits(100, 100, 1_000, 0.2))
    box.put(("t", 0), 1, batch("a"))
    began = time.monotonic()
    with pytest.raises(PrepareFailed, match=r"not acknowledged within 0\.2 s.*delivery\.timeout\.ms"):
        box.flush(30)
    assert time.monotonic() - began < 5


def test_no_more_waits_in_memory_than_allowed(brokers: Brokers) -> None:
    """Guards against a part of any size in the memory of a worker when brokers are slow."""
    brokers.open.clear()
    box = outbox(brokers)
    for _ in range(6):
        box.put(("t", 0), 1, batch("a"))
    late = threading.Thread(target=lambda: box.put(("t", 0), 1, batch("late")), daemon=True)
    late.start()
    late.join(0.2)
    assert late.is_alive(), "60 of 60 bytes are unacknowledged"
    brokers.open.set()
    late.join(5)
    assert not late.is_alive()
    box.flush(5)
    assert len(brokers.requests) == 7


def test_after_close_nothing_is_sent_and_the_answer_on_its_way_was_awaited(brokers: Brokers) -> None:
    """Guards against a batch that arrives behind the abort of its transaction, and opens another one."""
    brokers.open.clear()
    box = outbox(brokers)
    box.put(("t", 0), 1, batch("a"))
    box.put(("t", 0), 1, batch("b"))
    box.start()
    until("the first request", lambda: brokers.requests)
    threading.Timer(0.2, brokers.open.set).start()
    box.close(5)
    assert brokers.open.is_set(), "closed before the answer"
    assert sent_to(brokers, ("t", 0)) == [b"a"]


def test_partitions_are_added_once_before_their_first_batch_where_produce_does_not_do_it(brokers: Brokers) -> None:
    """Guards against records outside the transaction of a broker before transaction.version 2."""
    box = outbox(brokers, PRODUCER._replace(implicit=False))
    for partition in (("t", 0), ("t", 0), ("t", 2)):
        box.put(partition, 1 if partition[1] == 0 else 2, batch("a"))
    box.flush(5)
    assert sorted(p for some in brokers.added for p in some) == [("t", 0), ("t", 2)]


def test_a_producer_without_transactions_adds_nothing(brokers: Brokers) -> None:
    """Guards at_least_once against a request that names no transactional id."""
    box = outbox(brokers, Producer(None, 7, 0))
    box.put(("t", 0), 1, batch("a"))
    box.flush(5)
    assert brokers.added == [] and box.offsets == {("t", 0): 0}


def test_many_partitions_and_leaders_arrive_complete(brokers: Brokers) -> None:
    """Guards against a wake-up that is lost between two leaders when both fail and move at once."""
    partitions = [("t", n) for n in range(20)]
    brokers.led = {n % 3: [p for p in partitions if p[1] % 3 == n % 3] for n in range(3)}
    failing = iter([NotLeaderForPartitionError, 0, KafkaConnectionError("gone"), 0, 0] * 40)
    brokers.answer = lambda partition: next(failing, 0)
    box = outbox(brokers, limits=Limits(1_000, 100_000, 5_000, 20.0))
    for n in range(10):
        for partition in partitions:
            box.put(partition, partition[1] % 2, batch(f"{n}"))
    box.flush(20)
    for partition in partitions:
        assert list(dict.fromkeys(sent_to(brokers, partition))) == [b"%d" % n for n in range(10)]
