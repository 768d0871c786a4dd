"""A transactional id that is initialised together with a look at the commit log."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError

from exactly_once.errors import Fenced
from exactly_once.kafka import open_transaction
from exactly_once.kafka.open_transaction import Opening


class Admin:
    """Answers what was asked early as the test says, and later questions by themselves."""

    def __init__(self, early: Any):
        self.early = early

    def begin(self, question: Any) -> Future[Any]:
        return Future()

    def renew(self, budget_s: float) -> Admin:
        return self

    def run(self, question: Any) -> Any:
        if isinstance(self.early, Exception):
            raise self.early
        return self.early

    def high_watermark(self, topic: str, partition: int) -> int:
        return 9


class Late(SimpleNamespace):
    """A look at the commit log, which ends at ``limit`` for this task."""

    topic = "eo.s.commit-log"

    def judge(self, high: int) -> None:
        if high > self.limit:
            raise Fenced("late", "stop")


def opening(early: Any, limit: int = 100) -> Opening:
    return Opening(Admin(early), "eo:s:1:0:0.0", 60_000, Late(limit=limit))  # type: ignore[arg-type]


def test_the_id_is_initialised_once() -> None:
    """Guards against a second InitProducerId, which would fence the first."""
    assert opening(((7, 3), 5)).wait(10) == (7, 3)


def test_an_early_question_that_failed_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a task that fails because a coordinator moved."""
    monkeypatch.setattr(open_transaction, "initialise", lambda *_: (8, 0))
    assert opening(KafkaConnectionError("gone")).wait(10) == (8, 0)


@pytest.mark.parametrize("early", [((7, 3), 5), KafkaConnectionError("gone")], ids=["answered", "asked again"])
def test_a_task_that_is_too_late_begins_nothing(early: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a transaction that is opened behind the sweep which ended its execution."""
    monkeypatch.setattr(open_transaction, "initialise", lambda *_: (8, 0))
    with pytest.raises(Fenced):
        opening(early, limit=4).wait(10)
