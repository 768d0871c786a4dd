"""Logging in with Kerberos, on a real KDC and a real broker, with the clients of the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from exactly_once.errors import BrokerUnreachable, NotAuthorized
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from testkit import kerberos
from testkit.broker import create_topic
from testkit.fixtures import KafkaInput, StartDriver, make_bench
from testkit.kerberos import Kdc, KerberosBroker

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(kerberos.missing()), reason=f"this machine lacks {kerberos.missing()}"),
]

KEYTAB, TICKETS = "a keytab", "a ticket cache"


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    with Kdc(tmp_path_factory.mktemp("kdc")) as running:
        yield running


@pytest.fixture(scope="module")
def broker(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosBroker]:
    with KerberosBroker(tmp_path_factory.mktemp("kerberos"), kdc) as running:
        yield running
        running.kill()


@pytest.fixture(autouse=True)
def known(kdc: Kdc, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, and those that it starts, know the KDC."""
    for name, value in kdc.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("way", [KEYTAB, TICKETS])
def test_a_stream_reads_and_writes_exactly_once_with_one_login(
    kdc: Kdc, broker: KerberosBroker, way: str, driver: StartDriver, tmp_path: Path
) -> None:
    """Outage: the source and the tasks log in, as Java's clients do, and the driver's Python cannot decide. One text
    serves all: Spark's source, the producers in the tasks, and the commit log.
    """
    login = kdc.by_keytab() if way == KEYTAB else kdc.by_tickets(kdc.tickets("stream"))
    options, plain = broker.options(login), Connection(broker.bootstrap_servers)
    incoming = KafkaInput(plain, create_topic(broker.bootstrap_servers, partitions=4), [])
    incoming.fill(2, 40)
    source = incoming.source(per_batch=100)
    bench = make_bench(plain, tmp_path)
    job = replace(
        bench.job.having(**options, **{"kafka.sasl.kerberos.min.time.before.relogin": "30000"}),  # Java's alone
        source={**source, "options": {**source["options"], **options}},
        select=["CAST(key AS STRING) key", "CAST(value AS STRING) value"],
    )
    driver(environment=kdc.environment).complete(job)
    bench.assert_exactly(incoming.sent)


def test_each_client_of_a_process_logs_in_with_its_own_ticket(
    kdc: Kdc, broker: KerberosBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outage: a keytab in the environment of the process, which every other library of the driver then logs in with."""
    topic = create_topic(broker.bootstrap_servers)
    with Admin(Connection.from_options(broker.options(kdc.by_keytab()))) as admin:
        assert topic in admin.topics()
    own = {"bootstrap_servers": broker.options("")["kafka.bootstrap.servers"], "security_protocol": "SASL_PLAINTEXT"}
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{kdc.tickets('own')}")
    client = KafkaAdminClient(**own, sasl_mechanism="GSSAPI", sasl_kerberos_service_name=kerberos.SERVICE)
    assert topic in client.list_topics()
    client.close()
    monkeypatch.setenv("KRB5CCNAME", "FILE:/nowhere")
    with pytest.raises(NotAuthorized, match="Kerberos gives no ticket for other@"):
        Admin(Connection.from_options(broker.options(kdc.by_keytab(f"other@{kerberos.REALM}"))), 3)


def test_tickets_of_a_keytab_are_renewed(kdc: Kdc, broker: KerberosBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outage: a stream that cannot connect again once the first ticket, of ten hours, has expired."""
    lasts_s = 3
    expired = kdc.tickets("short", lasts_s)
    monkeypatch.setenv("KRB5_CONFIG", str(kdc.configured("short.conf", lasts_s)))
    # another text for the same file: a ticket of the tests above lives on
    keytab = kdc.keytab().parent / ".." / kdc.keytab().parent.name / kdc.keytab().name
    connection = Connection.from_options(broker.options(kdc.by_keytab(keytab=keytab)))
    connection.check_login()
    time.sleep(lasts_s + 1)
    with Admin(connection) as admin:
        admin.topics()
    with pytest.raises(NotAuthorized, match=r"for the ticket cache: the ticket has expired.*kinit"):
        Admin(Connection.from_options(broker.options(kdc.by_tickets(expired))), 3)


def test_a_service_that_the_kdc_does_not_know_is_named(kdc: Kdc, broker: KerberosBroker) -> None:
    """Mishap: sasl.kerberos.service.name of another company's brokers, and a start that blames the network."""
    options = broker.options(kdc.by_keytab()) | {"kafka.sasl.kerberos.service.name": "kafkas"}
    with pytest.raises(NotAuthorized, match=r"no ticket for kafkas@.*not found in Kerberos database"):
        Admin(Connection.from_options(options), 3)


def test_a_kdc_that_is_away_is_a_restart_and_not_the_end(
    kdc: Kdc, broker: KerberosBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outage: an update of the KDC ends every stream that starts meanwhile, as if its principal were wrong."""
    connection = Connection.from_options(broker.options(kdc.by_keytab(kerberos.USER)))  # no ticket of its name yet
    kdc.stop()
    try:
        with pytest.raises(BrokerUnreachable, match=r"no KDC gives a ticket for writer .*Cannot contact any KDC"):
            Admin(connection, 3)
    finally:
        kdc.start()
    with Admin(connection) as admin:
        admin.topics()
