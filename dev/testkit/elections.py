"""An unclean leader election on a cluster of three whose brokers are controllers too: two of them always live."""

from __future__ import annotations

import contextlib
import os
import signal

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.processes import until

#: The node that has the newest records and goes for good; the one that was away, and becomes leader without them.
LEADER, BEHIND = 1, 2

#: What makes a broker without the newest records a leader.
UNSAFE = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}

#: A session of 3 s, a quorum of two, a start of a JVM, on a busy machine.
ELECTION_S = 60.0


def create_topic_on_two(servers: str, topic: str, partitions: int = 1, config: dict[str, str] | None = None) -> None:
    """Create a topic that lives on :data:`LEADER` and :data:`BEHIND` alone, with :data:`UNSAFE`; every broker knows it
    afterwards.
    """
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    places = [[LEADER, BEHIND]] * partitions
    new = NewTopic(topic, partitions, replica_assignment=places, config={**UNSAFE, **(config or {})})
    admin.create_topics([new], operation_timeout=30, request_timeout=30)[topic].result(30)
    until("a topic that all know", lambda: all(_knows(server, topic) for server in servers.split(",")), ELECTION_S, 0.2)


def _knows(server: str, topic: str) -> bool:
    found = AdminClient({"bootstrap.servers": server, "log_level": 0}).list_topics(topic, timeout=10).topics[topic]
    return found.error is None and bool(found.partitions)


def leave_behind(broker: EmbeddedBroker, topic: str) -> None:
    """Stop :data:`BEHIND`; from then on only :data:`LEADER` has what is written to the topic."""
    os.kill(broker.pids[BEHIND], signal.SIGTERM)
    until("the end of a broker", lambda: BEHIND not in broker.pids, ELECTION_S)
    until("one replica in sync", lambda: _states(broker, topic) == {(LEADER, (LEADER,))}, ELECTION_S, 0.2)


def elect_uncleanly(broker: EmbeddedBroker, topic: str) -> None:
    """Kill :data:`LEADER` with ``kill -9`` for good, and start :data:`BEHIND`.

    That becomes the leader of all partitions.
    """
    broker.kill(LEADER)
    broker.restart(BEHIND)
    until("the unclean election", lambda: _states(broker, topic) == {(BEHIND, (BEHIND,))}, ELECTION_S, 0.2)


def _states(broker: EmbeddedBroker, topic: str) -> set[tuple[int, tuple[int, ...]]]:
    """Leader and replicas in sync of the topic's partitions; empty when nobody answers."""
    client = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
    with contextlib.suppress(KafkaException):
        found = client.list_topics(topic, timeout=2).topics[topic].partitions.values()
        return {(p.leader, tuple(sorted(p.isrs))) for p in found}
    return set()
