"""The completed mark, which a thread writes while Spark writes commits/N."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exactly_once.coordinator import micro_batch
from exactly_once.coordinator.driver_state import DriverState
from exactly_once.coordinator.micro_batch import Coordinator
from exactly_once.errors import Fenced
from exactly_once.options import SinkOptions
from exactly_once.protocol.planning import Batch

OPTIONS = {
    "sink.id": "orders",
    "kafka.bootstrap.servers": "nobody:9092",
    "topic": "orders_out",
    "checkpointLocation": "/nowhere",
}

STATE = DriverState(1, Batch("q", 4, ""), 5, 60_000, clock_ahead_ms=0, finished=True)


@pytest.fixture
def aborted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batches that a coordinator asks to be rolled back."""
    batches: list[int] = []

    def abort(session: Any, state: DriverState, batch_id: int, handles: Any, reported: bool) -> dict[str, list[str]]:
        batches.append(batch_id)
        return {}

    monkeypatch.setattr(micro_batch, "abort_execution", abort)
    return batches


def committed(marking: Any) -> Coordinator:
    """A coordinator whose batch 4 is committed, and whose mark ``marking`` writes."""
    made = Coordinator(SinkOptions.parse(OPTIONS))
    made._state = STATE
    made._marking = made._session.submit(marking)
    return made


def fenced() -> DriverState:
    raise Fenced("claim 1 of sink 'orders' is superseded", "Stop this driver")


def test_a_mark_that_is_refused_stops_the_stream_at_the_next_plan(aborted: list[int]) -> None:
    """Duplicate: a driver that another one has replaced goes on, since nobody reads the answer of a thread."""
    coordinator = committed(fenced)
    with pytest.raises(Fenced):
        coordinator.plan()


def test_behind_a_mark_that_was_refused_the_end_of_the_query_rolls_back_what_failed_attempts_left(
    aborted: list[int],
) -> None:
    """Readers that wait for an open transaction: the sweep that runs beside the mark may not have come to it."""
    committed(fenced).close()
    assert aborted == [4]


def test_behind_a_mark_that_is_written_nothing_is_rolled_back(aborted: list[int]) -> None:
    """A clean stop that claims its log again, and fences a successor, for a batch that is through."""
    coordinator = committed(lambda: STATE)
    coordinator.close()
    assert aborted == []


def test_a_driver_that_does_not_know_where_its_log_ends_claims_again(
    aborted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a query that ends with EO-FENCED by its own claim: a write of counts to the log fails behind a
    batch, and the next batch's tasks would read the log from its beginning.
    """
    claimed: list[int] = []

    def claim(session: Any, options: Any, batch: Batch) -> DriverState:
        claimed.append(batch.batch_id)
        return replace(STATE, token=2, batch=batch, log_end=7)

    monkeypatch.setattr(micro_batch, "batch_in_flight", lambda *_: Batch("q", 5, ""))
    monkeypatch.setattr(micro_batch, "claim_for_stream", claim)
    coordinator = committed(lambda: replace(STATE, log_end=0))
    assert coordinator.plan().log_end == 7
    assert claimed == [5]
