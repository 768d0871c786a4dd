"""What a driver knows of its claim, and how many claims it makes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exactly_once.coordinator import micro_batch, without_transactions
from exactly_once.coordinator.driver_state import DriverState
from exactly_once.coordinator.micro_batch import Coordinator
from exactly_once.coordinator.without_transactions import DeliveryCoordinator
from exactly_once.errors import ProtocolViolation
from exactly_once.options import SinkOptions
from exactly_once.protocol.planning import Batch, Plan
from exactly_once.protocol.records import Decision

LAST = Decision("q", 41, 7, (), "ab" * 32, 5, 0)
STATE = DriverState(7, Batch("q", 41, "ab"), 5, 900_000, -12, LAST, "e1", True, 1_700_000_000_000)
OPTIONS = SinkOptions.parse({"sink.id": "job", "checkpointLocation": "/c", "kafka.bootstrap.servers": "127.0.0.1:1"})


def test_a_planned_execution_is_unfinished_until_somebody_says_so() -> None:
    """What did not go through makes the next batch begin with a claim: its tasks may still be alive."""
    planned = STATE.planned("e2", Batch("q", 42, "cd"), 1_700_000_001_000, {"in": {0: 7, 1: 9}})
    assert (planned.execution, planned.finished) == ("e2", False)
    assert (planned.batch, planned.planned_ms) == (Batch("q", 42, "cd"), 1_700_000_001_000)
    assert planned.input_offsets == {"in": {0: 7, 1: 9}}
    before = {"execution": "e1", "batch": STATE.batch, "planned_ms": 0, "finished": True, "input_offsets": {}}
    assert replace(planned, **before) == STATE, "nothing else changes"


@pytest.fixture
def claims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of the claims that are made; batch 42 is in flight."""
    made: list[int] = []

    def claim(*_: Any) -> DriverState:
        made.append(len(made) + 1)
        return replace(STATE, token=made[-1], log_end=9)

    for module in (micro_batch, without_transactions):
        monkeypatch.setattr(module, "batch_in_flight", lambda *where: Batch("q", 42, "cd" * 32))
    monkeypatch.setattr(micro_batch, "claim_for_stream", claim)
    monkeypatch.setattr(without_transactions, "_settled", claim)
    return made


@pytest.mark.parametrize("kind", [Coordinator, DeliveryCoordinator])
def test_each_start_of_a_query_has_a_claim_of_its_own(
    kind: type[Coordinator | DeliveryCoordinator], claims: list[int]
) -> None:
    """Under the claim of the run before, its tasks that are still alive have the same ids, and whoever asks who owns
    the sink hears of a run that is over.
    """
    for start in (1, 2):
        coordinator = kind(OPTIONS)
        assert coordinator.plan().token == start and claims[-1] == start


def test_an_execution_that_did_not_finish_is_followed_by_a_claim(claims: list[int]) -> None:
    """Its tasks may still be alive, and would write under the ids of those that follow."""
    coordinator = Coordinator(OPTIONS)
    assert [coordinator.plan().token, coordinator.plan().token] == [1, 2]


def test_a_batch_that_went_through_is_followed_by_none(claims: list[int]) -> None:
    """A claim for each batch would fence, read and sweep each time."""
    coordinator = Coordinator(OPTIONS)
    first = coordinator.plan()
    coordinator._state = replace(coordinator._state, finished=True)  # type: ignore[type-var]
    second = coordinator.plan()
    assert claims == [1] and first.plan is second.plan is Plan.WRITE and first.execution != second.execution


def test_a_batch_that_is_refused_disturbs_no_other_driver(claims: list[int]) -> None:
    """A query with another one's checkpoint in its options would fence the driver that works."""

    def refuse(batch: Batch) -> None:
        raise ProtocolViolation(f"not {batch.batch_id}", "Do something else")

    with pytest.raises(ProtocolViolation, match="not 42"):
        Coordinator(OPTIONS).plan(refuse)
    assert claims == []


def test_a_weaker_guarantee_says_which_batch_is_written_when_it_plans_the_next_one(
    claims: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that does not know it lists the checkpoint again: on an object store that takes a batch's time."""
    known: list[Batch | None] = []
    batches = iter([Batch("q", 42, ""), Batch("q", 43, "")])

    def in_flight(location: str, sink_id: str, after: Batch | None) -> Batch:
        known.append(after)
        return next(batches)

    monkeypatch.setattr(without_transactions, "batch_in_flight", in_flight)
    coordinator = DeliveryCoordinator(OPTIONS)
    for number in (42, 43):
        coordinator.plan()
        coordinator.commit([], number)
    assert known == [None, Batch("q", 42, "")]
