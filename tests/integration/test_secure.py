"""The sink on brokers behind TLS, by every way to log in."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from exactly_once.coordinator.start import check
from exactly_once.errors import BrokerUnreachable, InvalidOption, NotAuthorized
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.listeners import check_listeners
from exactly_once.protocol.names import commit_log_topic
from exactly_once.protocol.outcomes import Outcome
from exactly_once.txn.coordinators import end_one
from testkit import oracle
from testkit.broker import create_topic, fresh_name
from testkit.fixtures import KafkaInput, StartDriver, make_bench
from testkit.kafka_part import PartTransaction
from testkit.planted import WRONG, planted_in
from testkit.secure import (
    CERTIFICATE,
    JAVAS,
    PASSWORD,
    PLAIN,
    SCRAM,
    STORE_FORMATS,
    TEXTS,
    USER,
    WAYS,
    Authority,
    SecureBroker,
)
from testkit.stream import Refused, SparkDriver

#: More than a connection buffers: what is sent must be cut into TLS records and written on.
ROWS, SIZE = 20_000, 200


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    broker = SecureBroker(tmp_path_factory.mktemp("secure"))
    try:
        yield broker.start()
    finally:
        broker.kill()
        broker.stop()


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_records_pass_through_tls_whole(secure: SecureBroker, way: str) -> None:
    """Guards against a data path that works on open listeners only: megabytes in one request, cut where TLS cuts."""
    connection, topic = secure.connection(way), create_topic(secure.bootstrap_servers, partitions=3)
    values = [b"%06d" % n + b"x" * SIZE for n in range(ROWS)]
    with Admin(connection) as admin:
        transaction = PartTransaction(connection, {}, f"eo:{fresh_name()}:1:0:0.0", 60_000, admin)
        for value in values:
            transaction.send(topic, None, value)
        handle = transaction.prepare(0, 60)
        outcome = end_one(admin, handle.transactional_id, handle.producer_id, handle.epoch, True, 5)
    assert outcome is Outcome.DONE
    assert sorted(m.value or "" for m in oracle.read(connection, [topic])) == [v.decode() for v in values]


@pytest.mark.long
def test_a_broker_whose_certificate_nobody_trusts_is_named_so(secure: SecureBroker, tmp_path: Path) -> None:
    """Mishap: an engineer who looks for a network that is fine."""
    stranger = replace(secure.connection(SCRAM), ssl_ca=str(Authority(tmp_path).certificate))
    with pytest.raises(BrokerUnreachable, match="certificate verify failed"):
        Admin(stranger, 3)


@pytest.mark.parametrize("way", [PLAIN, SCRAM])
def test_a_wrong_password_is_named_at_the_start(secure: SecureBroker, way: str) -> None:
    """Mishap: a start that tries again until its budget is spent, and then blames the network."""
    with pytest.raises(NotAuthorized) as refused:
        Admin(secure.connection(way, "wrong"), 3)
    assert "wrong" not in str(refused.value) and PASSWORD not in str(refused.value)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL", "SASL_PLAINTEXT"])
def test_another_protocol_than_the_plain_listener_s_is_refused_at_once(secure: SecureBroker, protocol: str) -> None:
    """Mishap: eleven seconds, and then "start again, unchanged, once the brokers answer"."""
    refuse_at_once(replace(secure.connection(PLAIN), bootstrap_servers=secure.bootstrap_servers), protocol, "PLAINTEXT")


@pytest.mark.parametrize("way", WAYS)
def test_a_client_without_tls_is_refused_at_once_by_a_listener_with_it(secure: SecureBroker, way: str) -> None:
    """Mishap: the client waits for an answer, and the broker for a TLS handshake."""
    check_listeners(secure.connection(way))
    refuse_at_once(secure.connection(way), "PLAINTEXT", "SSL or SASL_SSL")


def refuse_at_once(connection: Connection, protocol: str, spoken: str) -> None:
    """What a user calls before a start names the option."""
    given = replace(connection, security_protocol=protocol, sasl_mechanism=connection.sasl_mechanism or "PLAIN")
    options = {"sink.id": fresh_name("sink"), "topic": "any", "checkpointLocation": "/nowhere", **given.spark()}
    began = time.monotonic()
    with pytest.raises(InvalidOption, match=f"security.protocol={protocol}, but the listener at .* speaks {spoken}\\."):
        check(options)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("way", [SCRAM, *(pytest.param(way, marks=pytest.mark.long) for way in (PLAIN, CERTIFICATE))])
def test_a_stream_is_written_exactly_once_through_tls(
    secure: SecureBroker, way: str, warm: SparkDriver, tmp_path: Path
) -> None:
    """All clients at once: Java's producer in tasks, librdkafka for the commit log, kafka-python on the driver."""
    connection = secure.connection(way)
    plain = make_bench(Connection(secure.bootstrap_servers), tmp_path)
    job = replace(plain.job, options={**plain.job.options, **connection.spark()})
    bench = replace(plain, connection=connection, job=job)
    for _ in range(2):
        bench.input.add()
    bench.complete_exactly_once(warm, batches=0)


@pytest.mark.long
@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_login_in_the_words_of_a_console_writes(
    secure: SecureBroker, quote: str, warm: SparkDriver, tmp_path: Path
) -> None:
    """Outage: "user name or password is missing" of a text that has both, and that Spark's own sink takes; and an octal
    escape that is sent as it is written, so that the brokers say "authentication failed"."""
    escaped = "".join(c if c.isalnum() else f"\\{ord(c):03o}" for c in PASSWORD)
    login = (
        f"org.apache.kafka.common.security.plain.PlainLoginModule required /* the console's */\n"
        f"  username={USER}\n  password = {quote}{escaped}{quote} ; // the end"
    )
    connection = secure.connection(PLAIN)
    options = connection.spark() | {
        "kafka.sasl.jaas.config": login,
        "kafka.bootstrap.servers": f"SASL_SSL://{connection.bootstrap_servers}",
    }
    bench = make_bench(Connection(secure.bootstrap_servers), tmp_path)
    bench.input.add()
    job = replace(bench.job, options={**bench.job.options, **options})
    warm.ask("check", job=vars(job))
    bench.complete_exactly_once(warm, job, batches=0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "several"),
    [
        (JAVAS, False),
        *(pytest.param(form, False, marks=pytest.mark.long) for form in STORE_FORMATS if form != JAVAS),
        *(pytest.param(form, True, marks=pytest.mark.long) for form in (JAVAS, TEXTS)),
    ],
)
def test_a_stream_takes_the_stores_that_its_source_takes(
    secure: SecureBroker, form: str, several: bool, warm: SparkDriver, tmp_path: Path
) -> None:
    """Outage: the first start of everybody who comes from Spark's sink with a JKS trust store, a PKCS12 key store and
    mutual TLS. The client's certificate has one between it and the root that brokers trust: all clients must send it.
    ``several``: in foreach_batch, the tasks are Python's, which starts a Java for the stores. A query needs none.
    """
    plain, options = Connection(secure.bootstrap_servers), secure.mutual(form)
    bench = make_bench(plain, tmp_path)
    incoming = KafkaInput(plain, create_topic(secure.bootstrap_servers, partitions=4), [])
    incoming.fill(2, 40)
    source = incoming.source(per_batch=100)
    job = replace(
        bench.job.having(**options),
        source={**source, "options": {**source["options"], **options}},
        select=["CAST(key AS STRING) key", "CAST(value AS STRING) value"],
        participants=[] if several else None,
    )
    with nullcontext() if several else no_java(warm):
        warm.complete(job)
    bench.assert_exactly(incoming.sent)


@contextmanager
def no_java(driver: SparkDriver) -> Iterator[None]:
    """Let the driver's Python find no Java, beside the one that runs Spark."""
    home = driver.ask("evaluate", code="import os", result="os.environ.get('JAVA_HOME')")
    driver.ask("evaluate", code="os.environ['JAVA_HOME'] = '/nowhere'", result="None")
    try:
        yield
    finally:
        code = "del os.environ['JAVA_HOME']" if home is None else f"os.environ['JAVA_HOME'] = {home!r}"
        driver.ask("evaluate", code=code, result="None")


@pytest.mark.long
def test_a_child_of_the_jvm_gets_what_its_stores_hold(
    secure: SecureBroker, driver: StartDriver, tmp_path: Path
) -> None:
    """Outage: Spark Connect's server, and Scala, whose driver has no Python but a child that finds no Java."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nJAVA_HOME=/nowhere exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    bench = make_bench(Connection(secure.bootstrap_servers), tmp_path / "bench")
    bench.input.add()
    jvm = driver(environment={"EXACTLY_ONCE_PYTHON": str(python)})
    stream = bench.job.having(**secure.mutual(JAVAS))
    bench.complete_exactly_once(jvm, replace(stream, register=False), batches=0)
    write = stream.having(checkpointLocation=None, write_id="w", sink_id=fresh_name("sink"))
    jvm.send_batch(write.options, register=False)()
    assert len(bench.visible()) == len(bench.input.expected()) + 40


def test_a_key_store_that_cannot_be_read_is_refused_before_anything_is_written(
    secure: SecureBroker, warm: SparkDriver, tmp_path: Path
) -> None:
    """Mishap: a claim fences the stream that works, and then the first task fails."""
    bench = make_bench(Connection(secure.bootstrap_servers), tmp_path)
    bench.input.add()
    wrong = {**secure.mutual(JAVAS), "kafka.ssl.keystore.password": WRONG}
    with pytest.raises(Refused, match=r"EO-OPTION: kafka\.ssl\.keystore\.password is not") as refused:
        warm.start(bench.job.having(**wrong))
    assert planted_in(str(refused.value)) == []
    with Admin(bench.connection) as admin:
        assert commit_log_topic(bench.sink_id) not in admin.topics()
