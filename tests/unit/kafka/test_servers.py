"""The text of bootstrap.servers: read as Kafka's Java clients read it, and given to all three clients alike."""

from __future__ import annotations

import pytest

from exactly_once.errors import InvalidOption
from exactly_once.kafka import servers
from exactly_once.kafka.connection import Connection
from testkit.grammars import SERVERS


@pytest.mark.parametrize(("text", "hosts"), SERVERS.items())
def test_addresses_are_read_as_kafkas_clients_read_them(text: str, hosts: list[tuple[str, int]] | None) -> None:
    """Outage: the stream writes, and check says that no broker listens there."""
    if hosts is None:
        with pytest.raises(InvalidOption, match=r"kafka\.bootstrap\.servers"):
            servers.read(text)
    else:
        assert [(a.host, a.port) for a in servers.read(text)] == hosts
        assert servers.read(servers.plain(text)) == [servers.Address(*one) for one in hosts]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("SASL_SSL://h:9092 , ,g:1,", "h:9092,g:1"),
        ("::1:9092", "[::1]:9092"),
        ("PLAINTEXT://[::1]:9092", "[::1]:9092"),
        ("h:1,PLAINTEXT://h:1", "h:1"),
    ],
)
def test_every_client_gets_hosts_and_ports_alone(text: str, plain: str) -> None:
    """Outage: an address that one of the three clients reads in another way than the others."""
    assert servers.plain(text) == servers.shown(text) == plain
    assert servers.shown("h") == "h"
    protocol = {"kafka.security.protocol": "SSL" if text.startswith("SSL") else "PLAINTEXT"}
    options = {"kafka.bootstrap.servers": text.replace("SASL_SSL://", ""), **protocol}
    connection = Connection.from_options(options)
    assert connection.librdkafka()["bootstrap.servers"] == plain
    assert connection.kafka_python()["bootstrap_servers"] == plain
    assert connection.java()["bootstrap.servers"] == plain


@pytest.mark.parametrize(
    ("text", "protocol", "other"),
    [
        ("SASL_SSL://h:1", None, "SASL_SSL"),
        ("PLAINTEXT://h:1", "SSL", "PLAINTEXT"),
        ("ssl://g:1,sasl_ssl://h:1", "ssl", "SASL_SSL"),
    ],
)
def test_a_protocol_that_contradicts_the_other_option_is_refused(text: str, protocol: str | None, other: str) -> None:
    """Outage: Java's client ignores the protocol of the address, and waits for an answer in another one."""
    options = {"kafka.bootstrap.servers": text, **({"kafka.security.protocol": protocol} if protocol else {})}
    with pytest.raises(InvalidOption, match=f"{other}://, but kafka.security.protocol is") as refused:
        Connection.from_options(options)
    assert f"kafka.security.protocol={other}" in refused.value.way_out


def test_a_listeners_name_in_front_says_nothing_of_the_protocol() -> None:
    """Outage: EXTERNAL://h:1 of a broker's advertised.listeners refused, which every Java client takes."""
    assert Connection.from_options({"kafka.bootstrap.servers": "EXTERNAL://h:1"}) == Connection("h:1")
