"""The input's offsets never hold a decision up, whatever librdkafka does with its own time-out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from exactly_once.commitlog.input_offsets import InputOffsets, OffsetsRefused
from exactly_once.deadline import Deadline
from exactly_once.kafka.connection import Connection

OFFSETS = {"t": {0: 1}}


class Producer:
    """Does in send_offsets_to_transaction() what it is told to."""

    def __init__(self, does: object) -> None:
        self.does = does

    def send_offsets_to_transaction(self, positions: list[object], group: object, timeout: float) -> None:
        if isinstance(self.does, BaseException):
            raise self.does
        if isinstance(self.does, threading.Event):
            self.does.wait(30)


@pytest.fixture
def offsets() -> Iterator[InputOffsets]:
    """After a look at a coordinator that is not there; made by hand, since only send() is asked here."""
    made = InputOffsets(Connection("127.0.0.1:1"), "s")
    assert not made.may_be_sent(OFFSETS, Deadline(0.2))
    yield made
    made.close()


def test_a_client_that_does_not_come_back_holds_no_decision_up(offsets: InputOffsets) -> None:
    """Outage, found by the soak (seed 102): a broker restarts in order, and the client waits for the coordinator that
    it knew, past its time-out and for as long as no broker changes its state. The stream stood still without an error.
    """
    hangs, began = threading.Event(), time.monotonic()
    with pytest.raises(OffsetsRefused):
        offsets.send(Producer(hangs), OFFSETS, "q/1", Deadline(1.0))  # type: ignore[arg-type]
    assert time.monotonic() - began < 5
    hangs.set()


def test_a_time_out_is_tried_once_more_and_then_refused(
    offsets: InputOffsets, caplog: pytest.LogCaptureFixture
) -> None:
    """Outage: after a broker's restart the client asks a coordinator of before; a new one does not. Guards against a
    decision that tries forever, and against lag tools and a lost decision's witness that miss a minute for nothing.
    """
    late = KafkaException(KafkaError(KafkaError._TIMED_OUT))
    for again in (True, False):
        caplog.clear()
        with pytest.raises(OffsetsRefused) as refused:
            offsets.send(Producer(late), OFFSETS, "q/1", Deadline(1.0))  # type: ignore[arg-type]
        assert refused.value.again is again and caplog.text.count("EO-WARN-GROUP") == (not again)


def test_what_the_client_says_is_what_is_said(offsets: InputOffsets) -> None:
    """A thread between the two must not swallow a refusal: the transaction could not be committed."""
    refused = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(OffsetsRefused, match="GROUP_AUTHORIZATION_FAILED"):
        offsets.send(Producer(refused), OFFSETS, "q/1", Deadline(1.0))  # type: ignore[arg-type]
    offsets.send(Producer(None), OFFSETS, "q/1", Deadline(1.0))  # type: ignore[arg-type]


def test_a_coordinator_that_has_just_answered_is_not_asked_again_until_it_fails(
    offsets: InputOffsets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a round trip of each decision, and against a log that is held by a coordinator that went away."""
    answers = iter([True, False])
    monkeypatch.setattr(InputOffsets, "_answers", lambda *_: next(answers))
    offsets._not_before = 0.0
    assert [offsets.may_be_sent(OFFSETS, Deadline(1.0)) for _ in range(3)] == [True] * 3
    with pytest.raises(OffsetsRefused):
        offsets.send(Producer(KafkaException(KafkaError(KafkaError._TIMED_OUT))), OFFSETS, "q/1", Deadline(1.0))  # type: ignore[arg-type]
    assert not offsets.may_be_sent(OFFSETS, Deadline(1.0))
