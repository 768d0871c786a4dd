"""What the production guide says of Kafka itself: share groups, and the gauge of late transactions."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JJavaError

from exactly_once.kafka.connection import Connection
from exactly_once.sparkenv.jars import broker_classpath
from exactly_once.sparkenv.java import find_java
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.ports import free_port
from testkit.broker import create_topic, fresh_name
from testkit.java import running_java
from testkit.processes import until
from testkit.releases import levels_of


def transaction(servers: str, topic: str, *values: str, timestamp_ms: int = 0) -> Producer:
    """An open transaction whose records are at the brokers."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": fresh_name("id")})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, timestamp=timestamp_ms)
    assert producer.flush(30) == 0
    return producer


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    with running_java() as running:
        yield running


# -- share groups ------------------------------------------------------------------------------------------------------


class ShareGroup:
    """A consumer of a share group with these settings of the group, made by Kafka's own tool."""

    def __init__(self, java: Any, servers: str, topic: str, settings: str, **of_consumer: str):
        self.java, self.name = java.jvm, fresh_name("share")
        tool = [find_java().executable, "-cp", broker_classpath(), "kafka.admin.ConfigCommand"]
        group = ["--entity-type", "groups", "--entity-name", self.name, "--add-config", settings]
        subprocess.run([*tool, "--bootstrap-server", servers, "--alter", *group], check=True, timeout=60)
        text = "org.apache.kafka.common.serialization.StringDeserializer"
        properties = self.java.java.util.Properties()
        given = {"bootstrap.servers": servers, "group.id": self.name, **of_consumer}
        for key, value in (given | {"key.deserializer": text, "value.deserializer": text}).items():
            properties.setProperty(key, value)
        self.consumer = self.java.org.apache.kafka.clients.consumer.KafkaShareConsumer(properties)
        self.consumer.subscribe(self.java.java.util.List.of(topic))
        self.found: list[str] = []

    def has(self, value: str) -> bool:
        """Poll; return whether it has got ``value``."""
        records = self.consumer.poll(self.java.java.time.Duration.ofMillis(200))
        self.found += [r.value() for r in records.iterator()]
        return value in self.found

    def fetches(self) -> int:
        """Return how many of its fetches the brokers have answered: with the first one it has its start."""
        found = self.consumer.metrics()
        return sum(int(found[name].metricValue()) for name in found if name.name() == "fetch-total")

    def close(self) -> None:
        self.consumer.close()


@pytest.fixture
def shared(connection: Connection) -> str:
    """A topic for share groups, if the brokers have them."""
    if levels_of(connection).get("share.version", 0) == 0:
        pytest.skip("these brokers have no share groups")
    return create_topic(connection.bootstrap_servers)


@pytest.mark.long
def test_a_share_group_refuses_isolation_level_and_reads_aborted_records_until_the_group_is_set(
    java: Any, connection: Connection, shared: str
) -> None:
    """Guards against a reader of aborted rows whose owner has read the guide: the consumer's property is none here."""
    servers, earliest = connection.bootstrap_servers, "share.auto.offset.reset=earliest"
    transaction(servers, shared, "a").commit_transaction(30)
    transaction(servers, shared, "aborted").abort_transaction(30)
    transaction(servers, shared, "z").commit_transaction(30)

    with pytest.raises(Py4JJavaError, match=r"level cannot be set .*share group"):
        ShareGroup(java, servers, shared, earliest, **{"isolation.level": "read_committed"})
    plain = ShareGroup(java, servers, shared, earliest)
    until("all records", lambda: plain.has("z"))
    assert plain.found == ["a", "aborted", "z"]
    committed = ShareGroup(java, servers, shared, f"{earliest},share.isolation.level=read_committed")
    until("committed records", lambda: committed.has("z"))
    assert committed.found == ["a", "z"]
    for group in (plain, committed):
        group.close()


@pytest.mark.long
def test_a_share_group_at_latest_never_gets_the_transaction_that_is_open_when_it_starts(
    java: Any, connection: Connection, shared: str
) -> None:
    """Guards against a batch that a new group leaves out: it begins at the high watermark, beyond what is open."""
    servers = connection.bootstrap_servers
    transaction(servers, shared, "before").commit_transaction(30)
    under_way = transaction(servers, shared, "open")
    group = ShareGroup(java, servers, shared, "share.isolation.level=read_committed")
    until("its start", lambda: group.has("open") or group.fetches() > 2)
    under_way.commit_transaction(30)
    transaction(servers, shared, "after").commit_transaction(30)
    until("what came later", lambda: group.has("after"))
    assert group.found == ["after"]
    group.close()


# -- late transactions -------------------------------------------------------------------------------------------------


@pytest.fixture
def late(own_broker: Callable[..., EmbeddedBroker], java: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Read PartitionsWithLateTransactionsCount of a broker of its own, whose address is ``late.servers``."""
    port, remote = free_port(), "com.sun.management.jmxremote"
    flags = {f"{remote}.port": port, f"{remote}.rmi.port": port, f"{remote}.authenticate": "false"}
    flags |= {f"{remote}.ssl": "false", "java.rmi.server.hostname": "127.0.0.1"}
    with monkeypatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", " ".join(f"-D{name}={value}" for name, value in flags.items()))
        broker = own_broker()
    management = java.jvm.javax.management
    url = management.remote.JMXServiceURL(f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{port}/jmxrmi")
    beans = management.remote.JMXConnectorFactory.connect(url).getMBeanServerConnection()
    gauge = management.ObjectName("kafka.server:type=ReplicaManager,name=PartitionsWithLateTransactionsCount")
    lang = java.jvm.java.lang  # the object's own class is private: its interface is asked
    types, arguments = java.new_array(lang.Class, 2), java.new_array(lang.Object, 2)
    types[0], types[1] = gauge.getClass(), lang.Class.forName("java.lang.String")
    arguments[0], arguments[1] = gauge, "Value"
    ask = lang.Class.forName("javax.management.MBeanServerConnection").getMethod("getAttribute", types)

    def read() -> int:
        return int(ask.invoke(beans, arguments))

    read.servers = broker.bootstrap_servers  # type: ignore[attr-defined]
    return read


@pytest.mark.long
def test_the_gauge_of_late_transactions_goes_by_the_times_of_records(late: Any) -> None:
    """Guards against an alarm in each batch of a stream with event times, which the guide recommended."""
    servers, now = late.servers, int(time.time() * 1000)
    young = transaction(servers, create_topic(servers), "x", timestamp_ms=now - 18 * 60_000)
    assert late() == 0
    old = transaction(servers, create_topic(servers), "y", timestamp_ms=now - 21 * 60_000)
    assert late() == 1
    old.commit_transaction(30)
    until("its marker", lambda: late() == 0)
    young.commit_transaction(30)
