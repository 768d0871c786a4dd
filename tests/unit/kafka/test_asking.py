"""What is asked before it is needed, and what is remembered for seconds: never instead of an answer that is due."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace as NS
from typing import Any

import pytest
from kafka.errors import NotCoordinatorError

from exactly_once.deadline import Deadline
from exactly_once.errors import UnknownTopic
from exactly_once.kafka import asking
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.asking import Known

ABSENT = 3


def an_admin(run: Any = None, client: Any = None) -> Any:
    """Return an admin without a connection."""
    admin: Any = object.__new__(Admin)
    admin.deadline, admin.known, admin.client = Deadline(10), Known(), client
    admin.connection, admin._first = NS(bootstrap_servers="b:1"), admin
    if run is not None:
        admin.run = run
    return admin


def test_a_question_that_was_begun_is_asked_again_behind_an_error() -> None:
    """Mishap: a start fails where the coordinator that it asked beforehand moves meanwhile."""
    asked = []

    def run(question: Any) -> str:
        asked.append(question())
        if asked == ["begun"]:
            raise NotCoordinatorError
        return str(asked[-1])

    admin = an_admin(run)
    assert admin.ask(lambda: "anew", "begun") == "anew" and asked == ["begun", "anew"]
    assert admin.ask(lambda: "only") == "only"


def test_the_coordinator_of_a_group_is_looked_up_once_in_seconds_and_anew_once_it_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards against three requests of each start for what the first has said, and against a coordinator of before."""
    nodes = iter([1, 2, 3])

    async def find(groups: Iterable[str]) -> dict[str, int]:
        return dict.fromkeys(groups, next(nodes))

    cluster = NS(_coordinators={})
    admin = an_admin(client=NS(_find_coordinator_ids=find, _manager=NS(cluster=cluster)))

    def coordinator() -> int:
        return asyncio.run(admin.group_coordinator("g"))

    assert (coordinator(), coordinator()) == (1, 1)
    admin.forget_group_coordinator("g")
    assert coordinator() == 2
    monkeypatch.setattr(asking, "_COORDINATES_S", 0.0)
    assert coordinator() == 3


def test_an_old_answer_that_a_topic_is_absent_counts_only_for_who_says_so() -> None:
    """Guards against a claim that fences another driver, whose log was made since a start looked: it believes that the
    sink was never used.
    """
    answers = iter([ABSENT, 0])

    def describe(names: Iterable[str]) -> list[dict[str, Any]]:
        led = [{"partition_index": 0, "leader_id": 7}]
        return [{"name": name, "error_code": next(answers), "partitions": led} for name in names]

    admin = an_admin(client=NS(describe_topics=describe))
    with pytest.raises(UnknownTopic):
        admin.topic_partitions(["log"])
    with pytest.raises(UnknownTopic):
        admin.topic_partitions(["log"], old_s=5.0, absent=True)
    assert admin.topic_partitions(["log"], old_s=5.0) == {"log": 1}
    assert admin.topic_partitions(["log"], old_s=5.0) == {"log": 1}
    assert admin.known.led_by == {("log", 0): 7}
