"""Managed clusters, as far as their public documents tell what they refuse: a table of profiles, each of which makes a
real broker refuse the same by Kafka's own policies (KIP-108, KIP-133). ``docs/managed-kafka.md`` names the sources.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import NamedTuple

from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.broker import FAST_TIME_OUTS, kafka_classpath
from testkit.java import ROOT, compiled, kafka_client

Rules = Mapping[str, str]


class Profile(NamedTuple):
    """What a cluster refuses.

    Attributes
    ----------
    rules : mapping
        Of ``tests/java/managed/Policy.java``.
    left_out : tuple of str
        What the sink's commit log is created without.
    nodes : int
        How many brokers it takes to tell.
    settings : mapping
        Of the brokers.
    """

    rules: Rules
    left_out: tuple[str, ...] = ()
    nodes: int = 1
    settings: Mapping[str, str] = {}


#: By the name of the service, as the page has it.
PROFILES = {
    "Confluent Cloud": Profile(
        {
            "settings": "cleanup.policy,delete.retention.ms,max.compaction.lag.ms,max.message.bytes,"
            "min.compaction.lag.ms,message.timestamp.difference.max.ms,message.timestamp.type,min.insync.replicas,retention.bytes,"
            "retention.ms,segment.bytes,segment.ms",
            "least.segment.bytes": "52428800",
            "most.max.message.bytes": "8388608",
            "replicas.least": "3",
        },
        ("segment.bytes", "min.cleanable.dirty.ratio"),
        nodes=3,
    ),
    "MSK provisioned": Profile({}, nodes=3, settings={"default.replication.factor": "3", "min.insync.replicas": "2"}),
    "MSK express": Profile(
        {"refused": "min.insync.replicas", "replicas.least": "3"},
        ("min.insync.replicas",),
        nodes=3,
        settings={"default.replication.factor": "3", "min.insync.replicas": "2"},
    ),
    "MSK serverless": Profile(
        {
            "settings": "cleanup.policy,compression.type,max.message.bytes,message.timestamp.difference.max.ms,"
            "message.timestamp.type,retention.bytes,retention.ms",
            "most.max.message.bytes": "8388608",
        },
        ("min.insync.replicas", "segment.bytes", "min.cleanable.dirty.ratio"),
    ),
    "Aiven": Profile({"replicas.least": "2"}, nodes=3),
    "Redpanda serverless": Profile({"refused": "min.insync.replicas", "answer": "config"}, ("min.insync.replicas",)),
    "Strimzi": Profile({}),
}


class ManagedCluster(NamedTuple):
    """A cluster with a policy that can be changed while it runs."""

    connection: Connection
    file: Path

    def refuse(self, rules: Rules) -> None:
        """Refuse this, and nothing else, from now on."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text("".join(f"{name}={value}\n" for name, value in rules.items()))
        fresh.rename(self.file)


@contextmanager
def managed_cluster(folder: Path, profile: Profile) -> Iterator[ManagedCluster]:
    """Yield a cluster that refuses what ``profile`` says, started."""
    folder.mkdir(parents=True, exist_ok=True)
    rules = folder / "rules.properties"
    properties = {
        **FAST_TIME_OUTS,
        "create.topic.policy.class.name": "managed.Policy$Create",
        "alter.config.policy.class.name": "managed.Policy$Alter",
        "auto.create.topics.enable": "false",
        "managed.rules": str(rules),
        **profile.settings,
    }
    path = os.pathsep.join([kafka_classpath(), str(_policy())])
    broker = EmbeddedBroker(folder / "broker", nodes=profile.nodes, properties=properties, classpath=path)
    rules.write_text("")
    with broker:
        try:
            cluster = ManagedCluster(Connection(broker.bootstrap_servers), rules)
            cluster.refuse(profile.rules)
            yield cluster
        finally:
            broker.kill()


@cache
def _policy() -> Path:
    """Return the folder of the compiled policies; once for each process."""
    classes = Path(mkdtemp(prefix="managed-policy-"))
    return compiled(ROOT / "tests" / "java" / "managed" / "Policy.java", classes, kafka_client("3.9.2"))
