"""Logging in with tokens, on a real broker, with every client: by an endpoint, and by a function of the user."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer

from exactly_once.commitlog.commit_log import CommitLog, read_log
from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable, NotAuthorized
from exactly_once.kafka.admin import Admin
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import Claim
from exactly_once.sparkenv.jars import connector_jars
from exactly_once.sparkenv.java import find_java
from exactly_once.txn.coordinators import end_one
from testkit import oracle, tokens
from testkit.broker import create_topic, fresh_name
from testkit.kafka_part import PartTransaction
from testkit.tokens import ENDPOINT, FUNCTION, SOURCES, TokenBroker, TokenEndpoint


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    with TokenBroker(tmp_path_factory.mktemp("tokens")) as running:
        yield running
        running.kill()


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with TokenEndpoint() as running:
        yield running


@pytest.mark.long
@pytest.mark.parametrize("source", SOURCES)
def test_each_client_writes_and_reads_a_record(broker: TokenBroker, endpoint: TokenEndpoint, source: str) -> None:
    """Outage: the commit log's client logs in and the tasks' client does not, so every batch fails in its tasks."""
    connection, topic = broker.connection(source, endpoint), create_topic(broker.bootstrap_servers)
    producer = Producer({**connection.librdkafka(), "log_level": 0})
    producer.produce(topic, b"by librdkafka")
    assert producer.flush(20) == 0
    with Admin(connection) as admin:
        transaction = PartTransaction(connection, {}, f"eo:{fresh_name()}:1:0:0.0", 60_000, admin)
        transaction.send(topic, None, b"by a task")
        handle = transaction.prepare(0, 60)
        assert end_one(admin, handle.transactional_id, handle.producer_id, handle.epoch, True, 5) is Outcome.DONE
    written = ["by librdkafka", "by a task"]
    assert [m.value for m in oracle.read(connection, [topic])] == written
    settings = {"group.id": fresh_name(), "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer({**connection.librdkafka(), **settings})
    consumer.subscribe([topic])
    assert [m.value().decode() for m in consumer.consume(2, timeout=20)] == written
    consumer.close()
    python = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=5_000, **connection.kafka_python())
    assert [next(python).value.decode() for _ in written] == written
    python.close()


#: Makes a client from a file of settings: it fetches a token and looks at it before it connects.
JAVA = """
import java.io.FileReader;
import java.util.Properties;
import org.apache.kafka.clients.admin.Admin;

public class LogIn {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.load(new FileReader(arguments[0]));
        Admin.create(settings).close(java.time.Duration.ZERO);
        System.out.println("there is a token");
    }
}
"""


def properties(options: dict[str, str]) -> str:
    """The settings of a Java client, as a file has them."""
    escaped = {k.removeprefix("kafka."): v.replace("\\", "\\\\") for k, v in options.items()}
    return "".join(f"{k}={v}\n" for k, v in escaped.items())


@pytest.mark.long
def test_spark_s_java_client_gets_its_token_with_the_same_options(
    broker: TokenBroker, endpoint: TokenEndpoint, tmp_path: Path
) -> None:
    """Outage: the sink can log in, and the source that it reads from cannot."""
    java = find_java().executable
    if "jdk.compiler" not in subprocess.run([java, "--list-modules"], capture_output=True, text=True).stdout:
        pytest.skip("this Java cannot run a source file")
    (tmp_path / "LogIn.java").write_text(JAVA)
    settings = tmp_path / "client.properties"
    settings.write_text(properties(broker.connection(ENDPOINT, endpoint).spark()))
    jars = os.pathsep.join([*connector_jars(), str(Path(pyspark.__file__).parent / "jars" / "*")])
    command = [java, "-cp", jars, str(tmp_path / "LogIn.java"), str(settings)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "there is a token" in ended.stdout, ended.stderr[-3_000:]
    assert [form["scope"] for form in endpoint.asked] == [["kafka"]]


@pytest.mark.long
@pytest.mark.parametrize("source", SOURCES)
def test_a_commit_log_is_claimed_and_read(broker: TokenBroker, endpoint: TokenEndpoint, source: str) -> None:
    """Outage: a stream whose tasks write and whose driver cannot decide."""
    connection, sink_id = broker.connection(source, endpoint), fresh_name("sink")
    log = CommitLog(connection, sink_id)
    claim = Claim(1, "q", 1_000, "stream", "host", 1)
    log.claim(lambda state: claim, Deadline(30))
    log.close()
    assert read_log(connection, sink_id).owner == claim


@pytest.mark.long
def test_one_token_serves_all_clients_of_a_process(broker: TokenBroker, endpoint: TokenEndpoint) -> None:
    """Outage: an identity provider that throttles a driver with hundreds of tasks."""
    connection = broker.connection(FUNCTION, endpoint)
    with Admin(connection) as admin:
        admin.topics()
    before = len(tokens.given)
    for _ in range(3):
        with Admin(connection) as admin:
            admin.topics()
        Producer({**connection.librdkafka(), "log_level": 0}).list_topics(timeout=10)
    assert len(tokens.given) == before <= 2


@pytest.mark.long
def test_a_wrong_secret_is_named_at_once_and_shown_nowhere(
    broker: TokenBroker, endpoint: TokenEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """Outage: a start that tries until its budget is spent, and then blames the brokers."""
    began = time.monotonic()
    with caplog.at_level("DEBUG"), pytest.raises(NotAuthorized, match="invalid_client") as refused:
        Admin(broker.connection(ENDPOINT, endpoint, "wr0ng"), 10)
    assert time.monotonic() - began < 3
    assert "wr0ng" not in f"{refused.value}{caplog.text}"


@pytest.mark.long
def test_an_endpoint_that_fails_for_a_while_is_a_restart_and_not_the_end(
    broker: TokenBroker, endpoint: TokenEndpoint
) -> None:
    """Outage: the sensors leave a stream down for good after a restart of the identity provider."""
    endpoint.status = 503
    with pytest.raises(BrokerUnreachable, match="HTTP 503") as failure:
        read_log(broker.connection(ENDPOINT, endpoint), "s", 3)
    assert failure.value.restart_heals
    endpoint.status = 200
    with Admin(broker.connection(ENDPOINT, endpoint)) as admin:
        assert admin.broker_count() == 1


@pytest.mark.long
def test_a_connection_outlives_its_token(
    broker: TokenBroker, endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outage: a stream that runs for an hour and then cannot commit."""
    monkeypatch.setattr(tokens, "TTL_S", 4.0)
    short = broker.connection(ENDPOINT, endpoint)
    topic = create_topic(broker.bootstrap_servers)
    producer = Producer({**short.librdkafka(), "log_level": 0})
    with Admin(short) as admin:
        ends = time.monotonic() + 10
        while time.monotonic() < ends:
            assert topic in admin.renew(5).topics()
            producer.produce(topic, b"x")
            assert producer.flush(5) == 0
            time.sleep(0.5)
    assert len(endpoint.asked) > 3
