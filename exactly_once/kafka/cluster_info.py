"""Questions about the brokers, a topic's replicas and a principal's rights, over an
:class:`~exactly_once.kafka.admin.Admin`, whose budget and errors each has. They change nothing.

Sources: KIP-430 (authorized operations), KIP-584 (features), KIP-836 (the quorum's time stamps).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import kafka
from kafka.admin import ACLOperation
from kafka.errors import KafkaError, TopicAuthorizationFailedError
from kafka.protocol.admin.cluster import DescribeClusterRequest
from kafka.protocol.admin.transactions import DescribeTransactionsRequest
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest
from kafka.protocol.producer.transaction import EndTxnRequest

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.errors import check

#: Setting with which a broker without a topic's newest records may become their leader: they are gone then.
UNCLEAN_ELECTION = "unclean.leader.election.enable"


class Member(NamedTuple):
    """A broker that is alive, and the address that it gives to clients."""

    node: int
    host: str
    port: int


class Level(NamedTuple):
    """The release that the brokers' requests are those of, their finalized features, the highest EndTxn that client and
    brokers know (-1 without one), and whether they know DescribeTransactions.
    """

    version: tuple[int, ...]
    features: Mapping[str, int]
    end_txn: int
    describes: bool


@dataclass(frozen=True)
class Topic:
    """A topic as the brokers describe it to this principal: ``hidden`` if it may not, ``replicas`` and ``in_sync`` the
    smallest of all partitions, ``leaderless`` those without a leader, ``rights`` (READ, WRITE, ...) None when the
    brokers do not tell, ``config`` empty when the principal may not read it.
    """

    name: str
    exists: bool = True
    hidden: bool = False
    partitions: int = 1
    replicas: int = 1
    in_sync: int = 1
    leaderless: int = 0
    rights: Collection[str] | None = None
    config: Mapping[str, str] = field(default_factory=dict)


def members(admin: Admin) -> tuple[list[Member], Collection[str] | None]:
    """Return the brokers that are alive, and the principal's rights on the cluster (None: the brokers do not tell)."""

    async def question() -> Any:
        # The client's own describe_cluster() fails on the answer of Kafka 2.8 to 3.6, which lacks a field.
        answer = await admin.send(DescribeClusterRequest(include_cluster_authorized_operations=True))
        check(answer.error_code, "DescribeCluster")
        return answer

    found = admin.ask(question)
    granted = found.authorized_operations
    rights = None if granted is None else frozenset(o.name for o in ACLOperation if o.value in granted)
    return sorted(Member(b.broker_id, b.host, b.port) for b in found.brokers), rights


def answer_ms(admin: Admin, node: int, timeout_ms: int) -> float | str:
    """Return how long a broker takes to answer over a connection that is open, or why it does not answer."""
    request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
    took_ms = 0.0
    for _ in range(2):  # the first includes the connection and the log-in
        began = time.monotonic()
        try:
            admin.run(lambda: admin.send(request, node, timeout_ms))
        except KafkaError as e:
            return str(e)
        took_ms = (time.monotonic() - began) * 1000
    return took_ms


async def finalized_features(admin: Admin) -> dict[str, int]:
    """Return the level of each feature that the cluster has finalized, as one broker knows it."""
    client = {
        "client_software_name": "kafka-python",
        "client_software_version": kafka.__version__,
    }  # KIP-511: not empty
    answer = await admin.send(ApiVersionsRequest(**client, min_version=3))
    check(answer.error_code, "ApiVersions")
    return {feature.name: int(feature.max_version_level) for feature in answer.finalized_features or ()}


def level(admin: Admin) -> Level:
    """Return what the brokers can do."""
    features = admin.ask(lambda: finalized_features(admin))
    [node, *_] = admin.ask(admin.brokers)
    version = admin.call(lambda: admin.client.get_broker_version_data(node)).broker_version
    return Level(
        tuple(version),
        features,
        admin.api_version(EndTxnRequest()),
        admin.api_version(DescribeTransactionsRequest()) >= 0,
    )


def controllers_clock(admin: Admin) -> int | None:
    """Return the active controller's time in ms; None when these brokers do not tell it. The quorum's description says
    when each voter had caught up with the leader, by its clock: the leader itself has at the moment of the answer.
    """
    for topic in admin.call(admin.client.describe_metadata_quorum)["topics"]:
        for partition in topic["partitions"]:
            for voter in partition["current_voters"]:
                if voter["replica_id"] == partition["leader_id"] and voter.get("last_caught_up_timestamp", -1) > 0:
                    return int(voter["last_caught_up_timestamp"])
    return None


def topics(admin: Admin, names: list[str]) -> list[Topic]:
    """Return what the brokers tell of these topics, those included that do not exist."""
    return [_topic(admin, found) for found in admin.call(lambda: admin.client.describe_topics(names))]


def may_elect_uncleanly(config: Mapping[str, str]) -> bool:
    """Return whether a topic of this configuration may lose records that its brokers have acknowledged."""
    return config.get(UNCLEAN_ELECTION, "false") == "true"


def _topic(admin: Admin, found: Mapping[str, Any]) -> Topic:
    name, partitions, rights = str(found["name"]), found["partitions"], found.get("authorized_operations")
    if found["error_code"]:
        return Topic(name, exists=False, hidden=found["error_code"] == TopicAuthorizationFailedError.errno)
    return Topic(
        name,
        partitions=len(partitions),
        replicas=min(len(p["replica_nodes"]) for p in partitions),
        in_sync=min(len(p["isr_nodes"]) for p in partitions),
        leaderless=sum(1 for p in partitions if p["leader_id"] < 0),
        rights=None if rights is None else frozenset(rights),
        config=admin.topic_config(name),
    )
