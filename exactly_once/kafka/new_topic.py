"""A topic of the sink's own, made with all settings that are wanted, or with as many as the brokers accept.

A managed cluster refuses some of them, by a policy (KIP-108, KIP-133). What only saves time must not keep the sink from
what the protocol needs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import NamedTuple

from kafka.errors import IncompatibleBrokerVersion, InvalidRequestError, UnsupportedVersionError

from exactly_once.errors import BrokerRefused, NotAuthorized
from exactly_once.kafka.admin import Admin

log = logging.getLogger(__name__)

#: Replication factor of a topic with as many replicas as the cluster gives by default (KIP-464).
CLUSTERS_DEFAULT = -1

#: Errors of brokers that do not know a request as it is asked. Some answer so to a setting that they refuse.
_NOT_UNDERSTOOD = (IncompatibleBrokerVersion, InvalidRequestError, UnsupportedVersionError)

#: The brokers' settings that a topic has where it has none of its own.
_OF_BROKERS = {"cleanup.policy": "log.cleanup.policy", "message.timestamp.type": "log.message.timestamp.type"}

MIN_IN_SYNC = "min.insync.replicas"


class NewTopic(NamedTuple):
    """A topic that is wanted.

    Attributes
    ----------
    called : str
        What an error calls it, such as "the topic t".
    replication : int
        :data:`CLUSTERS_DEFAULT` where the cluster decides.
    needed : mapping
        Settings without which the topic is of no use.
    wished : mapping
        Settings that are left out where the brokers refuse them; the first is the last to go.
    """

    name: str
    called: str
    partitions: int
    replication: int
    needed: Mapping[str, str]
    wished: Mapping[str, str]


class TopicRequest(NamedTuple):
    """The number of replicas and the settings that the brokers are asked for."""

    replication: int
    settings: Mapping[str, str]


def create(admin: Admin, topic: NewTopic, validate_only: bool = False) -> list[str]:
    """Create a topic; a no-op when it is there. With ``validate_only`` the brokers only say whether they would; those
    that do not know the question are taken to refuse nothing.

    Returns
    -------
    list of str
        What the brokers refuse, and the topic is created without: names of settings, or "replication.factor=3".

    Raises
    ------
    BrokerRefused
        When they refuse what is needed, with their sentence about the smallest request.
    NotAuthorized, BrokerUnreachable
    """
    count = f"{topic.partitions} partition{'s' * (topic.partitions > 1)}"
    by_hand = ", ".join([f"with {count}", *(f"{name}={value}" for name, value in topic.needed.items())])
    refusal: BrokerRefused | None = None
    for request in _requests(admin, topic):
        try:
            admin.create_topic(topic.name, topic.partitions, *request, validate_only=validate_only)
            return _left_out(topic, request)
        except BrokerRefused as e:
            refusal = e
        except NotAuthorized as e:
            raise NotAuthorized(
                f"{topic.called} does not exist, and this principal may not create it",
                f"Grant CREATE on the topic {topic.name}, or create it {by_hand}",
            ) from e
    assert refusal is not None
    if validate_only and isinstance(refusal.__cause__, _NOT_UNDERSTOOD):
        return []
    raise BrokerRefused(
        refusal.what.replace(f"the topic {topic.name}", topic.called, 1),
        f"Create the topic {topic.name} {by_hand}, or have the cluster's policy changed",
    ) from refusal


def warn_left_out(topic: str, refused: Sequence[str]) -> None:
    """Say what the brokers refuse of a new topic, if anything."""
    if refused:
        log.warning("EO-WARN-LOG %s", what_is_left_out(topic, refused))


def what_is_left_out(topic: str, refused: Sequence[str]) -> str:
    """Return the sentence on a new topic without what the brokers refuse."""
    return (
        f"the brokers refuse {', '.join(refused)} for the topic {topic}: it is created without, and gets the cluster's "
        "own values"
    )


def _requests(admin: Admin, topic: NewTopic) -> Iterator[TopicRequest]:
    """Yield smaller and smaller requests: at most 24 for four settings, and again as many where the brokers' own
    settings are those that are needed.
    """
    counts = dict.fromkeys((topic.replication, CLUSTERS_DEFAULT))
    for needed in chain([topic.needed], _beyond_the_brokers(admin, topic.needed)):
        for replication in counts:
            # with the cluster's own number of replicas goes its own number of those that must be in sync
            wished = [n for n in topic.wished if replication != CLUSTERS_DEFAULT or n != MIN_IN_SYNC]
            for count in range(len(wished), -1, -1):
                for names in combinations(wished, count):
                    yield TopicRequest(replication, {**needed, **{name: topic.wished[name] for name in names}})


def _beyond_the_brokers(admin: Admin, needed: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
    """Yield those settings that the brokers do not give to a topic by themselves, if there are fewer of them."""
    brokers = admin.broker_config()
    rest = {name: value for name, value in needed.items() if brokers.get(_OF_BROKERS.get(name, "")) != value}
    if len(rest) < len(needed):
        yield rest


def _left_out(topic: NewTopic, request: TopicRequest) -> list[str]:
    missing = [name for name in topic.wished if name not in request.settings]
    if request.replication == topic.replication:
        return missing
    return [f"replication.factor={topic.replication}", *missing]
