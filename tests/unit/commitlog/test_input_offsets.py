"""The input's offsets never hold a decision up for long: what a refusal means for the next writes."""

from __future__ import annotations

import pytest
from kafka.errors import GroupAuthorizationFailedError, KafkaError, RequestTimedOutError

from exactly_once.commitlog.input_offsets import InputOffsets
from exactly_once.commitlog.log_writer import OffsetsFailed
from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.admin import Admin

OFFSETS = {"t": {0: 1}}


def nobody(_: float) -> Admin:
    raise BrokerUnreachable("no broker", "wait")


def after(error: KafkaError) -> OffsetsFailed:
    failed = OffsetsFailed(str(error))
    failed.__cause__ = error
    return failed


def test_a_time_out_is_tried_once_more_and_then_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Outage: after a broker's restart the coordinator of before is asked; a new writer does not know it. Guards
    against a decision that tries forever, and against lag tools and a lost decision's witness that miss a minute for
    nothing.
    """
    offsets = InputOffsets(nobody, "s")
    late = after(RequestTimedOutError())
    assert offsets.again_after(late) and "EO-WARN-GROUP" not in caplog.text
    assert not offsets.again_after(late) and caplog.text.count("EO-WARN-GROUP") == 1
    assert not offsets.may_be_sent(OFFSETS, Deadline(1.0)) and caplog.text.count("EO-WARN-GROUP") == 1


def test_a_right_that_is_missing_is_asked_for_once(caplog: pytest.LogCaptureFixture) -> None:
    """Guards against a decision that waits for the same refusal each minute."""
    offsets = InputOffsets(nobody, "s")
    assert not offsets.again_after(after(GroupAuthorizationFailedError()))
    assert offsets._not_before == float("inf") and "GroupAuthorizationFailed" in caplog.text


def test_a_coordinator_that_has_just_answered_is_not_asked_again_until_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards against a round trip of each decision, and against a log that is held by a coordinator that went away."""
    offsets, answers = InputOffsets(nobody, "s"), iter([True, False])
    monkeypatch.setattr(InputOffsets, "_answers", lambda *_: next(answers))
    assert not offsets.has_answered
    assert [offsets.may_be_sent(OFFSETS, Deadline(1.0)) for _ in range(3)] == [True] * 3
    assert offsets.has_answered
    offsets.again_after(after(RequestTimedOutError()))
    assert not offsets.has_answered and not offsets.may_be_sent(OFFSETS, Deadline(1.0))


def test_an_answer_that_would_be_too_old_at_the_decision_is_asked_for_with_the_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards against two waits more in one batch of five: the answer runs out between the plan and the decision."""
    offsets, asked = InputOffsets(nobody, "s"), list[int]()
    monkeypatch.setattr(InputOffsets, "_answers", lambda *_: asked.append(1) or True)
    for _ in range(2):
        offsets.refresh(OFFSETS, Deadline(1.0))
    assert len(asked) == 1
    offsets._answered -= 3.0
    assert offsets.has_answered
    offsets.refresh(OFFSETS, Deadline(1.0))
    assert len(asked) == 2 and offsets.has_answered
