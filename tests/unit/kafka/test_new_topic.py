"""Which request for a topic the brokers get, and in which order, when they refuse one. Pure: the brokers are a rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from kafka import errors as python

from exactly_once.errors import BrokerRefused, NotAuthorized
from exactly_once.kafka import new_topic
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.new_topic import CLUSTERS_DEFAULT, NewTopic

NEEDED = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
WISHED = {
    "min.insync.replicas": "2",
    "max.message.bytes": "8",
    "segment.bytes": "8",
    "min.cleanable.dirty.ratio": "0.1",
}
TOPIC = NewTopic("t", "the topic t", 1, 3, NEEDED, WISHED)

#: replicas, settings, validate_only -> whether they refuse
Rule = Callable[[int, Mapping[str, str], bool], bool]


class Brokers:
    """Brokers with a rule, and what they were asked for."""

    def __init__(self, refuses: Rule, error: Exception | None = None, config: Mapping[str, str] | None = None):
        self.created: tuple[int, Mapping[str, str]] | None = None
        self.asked = self.tried = 0
        self._refuses, self._error, self._config = refuses, error or python.PolicyViolationError("no"), config or {}

    def create_topic(
        self, name: str, partitions: int, replication: int, configs: Mapping[str, str], validate_only: bool = False
    ) -> None:
        self.asked, self.tried = self.asked + validate_only, self.tried + (not validate_only)
        if self._refuses(replication, configs, validate_only):
            raise BrokerRefused("no", "ask") from self._error
        if not validate_only:
            self.created = replication, configs

    def broker_config(self) -> Mapping[str, str]:
        return self._config

    @property
    def admin(self) -> Admin:
        return cast(Admin, self)


def test_brokers_that_refuse_nothing_are_asked_once() -> None:
    """Guards against a round of questions at each first start."""
    brokers = Brokers(lambda *_: False)
    assert new_topic.create(brokers.admin, TOPIC) == [] and (brokers.asked, brokers.tried) == (0, 1)
    assert brokers.created == (3, {**NEEDED, **WISHED})


def test_where_the_cluster_decides_on_replicas_it_decides_how_many_must_be_in_sync() -> None:
    """Mishap: one address in front of three brokers; min.insync.replicas=1 in the place of the cluster's 2."""
    brokers = Brokers(lambda replication, *_: replication != CLUSTERS_DEFAULT)
    assert new_topic.create(brokers.admin, TOPIC) == ["replication.factor=3", "min.insync.replicas"]
    assert brokers.created is not None
    replication, settings = brokers.created
    assert replication == CLUSTERS_DEFAULT and settings == {
        n: v for n, v in (NEEDED | WISHED).items() if "sync" not in n
    }


def test_the_number_of_replicas_goes_after_every_setting() -> None:
    """Mishap: a topic with one replica, on a cluster that refuses small segments and whose default is one."""
    brokers = Brokers(lambda _, settings, __: bool(settings.keys() & WISHED.keys()))
    assert new_topic.create(brokers.admin, TOPIC) == list(WISHED)
    assert brokers.created == (3, NEEDED)


def test_brokers_that_know_no_validate_only_get_what_is_needed_alone() -> None:
    """Mishap: a service that refuses the question, and would take the topic."""

    def rule(_: int, settings: Mapping[str, str], validate_only: bool) -> bool:
        return validate_only or bool(settings.keys() & WISHED.keys())

    brokers = Brokers(rule, python.UnsupportedVersionError("CreateTopics v7"))
    assert new_topic.create(brokers.admin, TOPIC) == list(WISHED) and brokers.created == (3, NEEDED)


@pytest.mark.parametrize(
    "error", [python.UnsupportedVersionError, python.InvalidRequestError, python.IncompatibleBrokerVersion]
)
def test_what_brokers_do_not_understand_is_no_refusal_before_the_start(error: type[Exception]) -> None:
    """Mishap: check refuses a stream that would start."""
    assert new_topic.create(Brokers(lambda *_: True, error("?")).admin, TOPIC, validate_only=True) == []


def test_a_setting_that_they_do_not_understand_is_left_out() -> None:
    """MSK express answers INVALID_REQUEST to a setting that it does not allow."""
    brokers = Brokers(lambda _, settings, __: "segment.bytes" in settings, python.InvalidRequestError("?"))
    for validate_only in (True, False):
        assert new_topic.create(brokers.admin, TOPIC, validate_only) == ["segment.bytes"]


def test_a_policy_that_refuses_everything_ends_in_its_sentence_after_few_requests() -> None:
    """Guards against a round that takes as long as the budget of a start: twenty milliseconds each in a cloud."""
    brokers = Brokers(lambda *_: True)
    for validate_only in (True, False):
        with pytest.raises(BrokerRefused, match="no"):
            new_topic.create(brokers.admin, TOPIC, validate_only)
    assert brokers.asked == brokers.tried == 24


def test_a_setting_that_is_needed_and_that_the_brokers_have_need_not_be_named() -> None:
    """A policy may forbid a setting that the cluster has for every topic."""
    brokers = Brokers(
        lambda _, settings, __: "message.timestamp.type" in settings,
        config={"log.message.timestamp.type": "LogAppendTime", "log.cleanup.policy": "delete"},
    )
    assert new_topic.create(brokers.admin, TOPIC) == []
    assert brokers.created == (3, {"cleanup.policy": "compact", **WISHED})


def test_a_missing_right_is_no_refusal_of_a_setting() -> None:
    """Guards against twenty requests that are denied, and advice on settings."""

    def denied(*_: Any) -> bool:
        raise NotAuthorized("this principal may not", "Grant CREATE")

    for validate_only in (True, False):
        brokers = Brokers(denied)
        with pytest.raises(NotAuthorized):
            new_topic.create(brokers.admin, TOPIC, validate_only)
        assert brokers.asked + brokers.tried == 1
