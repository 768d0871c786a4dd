"""One login by Kerberos, in the words of Java: what each client is told, what is refused, what brokers are told."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError
from kafka.net.sasl import get_sasl_mechanism

from exactly_once.errors import BrokerUnreachable, ExactlyOnceError, ExtraMissing, InvalidOption, NotAuthorized
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.kerberos import Kerberos

MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
KEYTAB = 'useKeyTab=true storeKey=true keyTab="FILE:/k.keytab" principal="writer@X"'
TICKETS = 'useTicketCache=true ticketCache="/tickets"'


def options(login: str | None, **others: str) -> dict[str, str]:
    """Options of a connection; ``others`` have ``_`` for ``.``."""
    return {
        "kafka.bootstrap.servers": "h:1",
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "gssapi",
        "kafka.sasl.kerberos.service.name": "kafka",
        **({} if login is None else {"kafka.sasl.jaas.config": login}),
        **{name.replace("_", "."): value for name, value in others.items()},
    }


@pytest.mark.parametrize(
    ("login", "service", "wanted"),
    [
        (KEYTAB, "kafka", ("kafka", "writer@X", "/k.keytab", "")),
        (TICKETS, "kafka", ("kafka", "", "", "/tickets")),
        ("useTicketCache=True", "kafka", ("kafka", "", "", "")),
        (f"{KEYTAB} useTicketCache=true", "kafka", ("kafka", "writer@X", "/k.keytab", "")),
        (f"{TICKETS} serviceName=bus", "", ("bus", "", "", "/tickets")),
        (f"{TICKETS} serviceName=bus principal='w@X'", "bus", ("bus", "w@X", "", "/tickets")),
    ],
)
def test_every_client_logs_in_as_the_text_says(login: str, service: str, wanted: tuple[str, ...]) -> None:
    """Outage: the source logs in as one principal, and the driver as another one, or not at all."""
    given = options(f"{MODULE} {login};", kafka_sasl_kerberos_service_name=service)
    connection = Connection.from_options(given)
    kerberos = connection.kerberos
    assert kerberos and (kerberos.service, kerberos.principal, kerberos.keytab, kerberos.cache) == wanted
    assert connection.kafka_python() == {
        "bootstrap_servers": "h:1",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "GSSAPI",
        "sasl_kerberos_name": kerberos,
        "ssl_check_hostname": True,
    }
    java = connection.java()
    assert (java["sasl.mechanism"], java["sasl.kerberos.service.name"]) == ("GSSAPI", wanted[0])
    assert Connection.from_options(connection.spark()) == connection == pickle.loads(pickle.dumps(connection))
    assert (connection.sasl_username, connection.sasl_password) == (None, None)


@pytest.mark.parametrize(
    ("login", "service", "says"),
    [
        (None, "kafka", "kafka.sasl.jaas.config is missing"),
        (
            "org.apache.kafka.common.security.plain.PlainLoginModule required username=u password=s3cret;",
            "kafka",
            "names plain.PlainLoginModule",
        ),
        (f"{MODULE} {KEYTAB};", "", "kafka.sasl.kerberos.service.name is missing"),
        (f"{MODULE} {TICKETS} serviceName=bus;", "kafka", "differs from serviceName"),
        (f"{MODULE} useKeyTab=true principal=s3cret;", "kafka", "has no keyTab; it has: useKeyTab, principal"),
        (f"{MODULE} useKeyTab=true keyTab='/s3cret';", "kafka", "has no principal; it has: useKeyTab, keyTab"),
        (f"{MODULE} principal=s3cret;", "kafka", "neither useKeyTab=true nor useTicketCache=true; it has: principal"),
    ],
)
def test_a_login_that_not_all_clients_can_follow_is_refused(login: str | None, service: str, says: str) -> None:
    """Outage: the source reads, the claim waits until its budget is spent, and the brokers are blamed."""
    with pytest.raises(InvalidOption) as refused:
        Connection.from_options(options(login, kafka_sasl_kerberos_service_name=service))
    assert says in refused.value.what and "s3cret" not in str(refused.value)


def test_a_producer_of_confluent_kafka_is_refused() -> None:
    """Outage: "No provider for SASL mechanism GSSAPI: recompile librdkafka", from a wheel."""
    with pytest.raises(InvalidOption, match="built without GSSAPI"):
        Connection.from_options(options(f"{MODULE} {KEYTAB};")).librdkafka()


def test_the_package_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outage: "GSSAPI lib not found!", in the log of a thread, and a start that tries until its budget is spent."""
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(ExtraMissing, match=r"pyspark-kafka-exactly-once\[kerberos\]"):
        Connection.from_options(options(f"{MODULE} {KEYTAB};")).check_login()


class GSSError(Exception):
    """The error of a library of Kerberos."""

    def __init__(self, code: int, sentence: str):
        super().__init__(f"Major (851968): Unspecified GSS failure, Minor ({code % 2**32}): {sentence}")
        self.min_code = code % 2**32


class Expired(GSSError):
    """The error for a ticket that was valid."""


class Library:
    """The package gssapi with one client and one broker, which says ``failure`` where that is set."""

    NameType = SimpleNamespace(kerberos_principal="principal", hostbased_service="service")
    MechType = SimpleNamespace(kerberos="kerberos")
    exceptions = SimpleNamespace(GSSError=GSSError, ExpiredCredentialsError=Expired)

    def __init__(self) -> None:
        self.stores: list[Any] = []
        self.failure: GSSError | None = None
        self.refusal: GSSError | None = None

    def Name(self, name: str, kind: str) -> tuple[str, str]:
        return kind, name

    def Credentials(self, name: Any, usage: str, store: Any) -> Any:
        if self.failure:
            raise self.failure
        self.stores.append((name, store))
        return SimpleNamespace(lifetime=60)

    def SecurityContext(self, name: Any, creds: Any, mech: str, usage: str) -> Any:
        context = SimpleNamespace(complete=False, initiator_name="writer@X", unwrap=lambda sent: sent)

        def step(answer: bytes | None) -> bytes | None:
            if self.refusal:
                raise self.refusal
            context.complete = answer is not None
            return b"ticket for " + name[1].encode() if answer is None else None

        context.step = step
        context.wrap = lambda message, encrypt: SimpleNamespace(message=b"sealed " + message)
        return context


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    monkeypatch.setitem(sys.modules, "gssapi", made)
    return made


@pytest.fixture
def keytab(tmp_path: Path) -> Path:
    path = tmp_path / "k.keytab"
    path.touch()
    return path


def test_a_login_is_said_to_the_broker_that_the_client_connects_to(library: Library, keytab: Path) -> None:
    """Outage: a ticket for another broker than the one that answers, or a login that never ends."""
    kerberos = Kerberos("kafka", "writer@X", str(keytab))
    config = kerberos.kafka_python()
    login = get_sasl_mechanism("GSSAPI")(host="b2", sasl_mechanism="GSSAPI", **config)
    assert login.auth_bytes() == b"ticket for kafka@b2" and not login.is_done()
    login.receive(b"the broker's ticket")
    assert login.auth_bytes() == b"" and not login.is_done() and not login.is_authenticated()
    login.receive(b"\x01\x00\x10\x00")  # the layers that it offers, and the longest message
    assert login.auth_bytes() == b"sealed \x01\x00\x00\x00" and login.is_done() and login.is_authenticated()
    login.receive(b"")
    assert login.auth_details() == "writer@X logged in to kafka@b2 by Kerberos"
    store = {"client_keytab": str(keytab), "ccache": f"MEMORY:writer@X {keytab}"}
    assert library.stores == [(("principal", "writer@X"), store)]


def test_tickets_are_those_of_the_cache_that_is_named_or_of_the_system(library: Library) -> None:
    for cache in ("/tickets", ""):
        Kerberos("kafka", cache=cache).check()
    assert library.stores == [(None, {"ccache": "/tickets"}), (None, None)]


@pytest.mark.parametrize(
    ("failure", "kind", "says"),
    [
        (GSSError(-1765328228, "Cannot contact any KDC"), BrokerUnreachable, "no KDC gives a ticket for writer@X"),
        (GSSError(-1765328378, "Client not found"), NotAuthorized, "with the keytab .*: Client not found.*klist -k"),
        (Expired(100001, "Success"), NotAuthorized, "the ticket has expired"),
    ],
)
def test_what_kerberos_says_becomes_an_error_of_the_sink(
    library: Library, keytab: Path, failure: GSSError, kind: type[ExactlyOnceError], says: str
) -> None:
    """Outage: a KDC that restarts ends a stream; a wrong principal is tried again for hours."""
    library.failure = failure
    kerberos = Kerberos("kafka", "writer@X", str(keytab))
    with pytest.raises(kind, match=says):
        kerberos.check()
    with pytest.raises(KafkaConnectionError):  # what kafka-python tries again, while the sink asks for the cause
        get_sasl_mechanism("GSSAPI")(host="b2", **kerberos.kafka_python())


@pytest.mark.parametrize(
    ("code", "kind"), [(-1765328228, KafkaConnectionError), (-1765328377, SaslAuthenticationFailedError)]
)
def test_a_broker_without_a_ticket_is_refused_unless_the_kdc_is_away(
    library: Library, keytab: Path, code: int, kind: type[Exception]
) -> None:
    library.refusal = GSSError(code, "why")
    with pytest.raises(kind, match="Kerberos gives no ticket for kafka@b2: why"):
        get_sasl_mechanism("GSSAPI")(host="b2", **Kerberos("kafka", "writer@X", str(keytab)).kafka_python())


def test_a_keytab_that_is_not_there_is_named(library: Library) -> None:
    """Mishap: Kerberos says "No credentials cache found" then, of a login that has none."""
    with pytest.raises(NotAuthorized, match="the keytab /nowhere cannot be read on this host"):
        Kerberos("kafka", "writer@X", "/nowhere").check()


def test_the_variables_say_who_logs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outage: the command line, which reads nothing else, cannot log in where the stream can."""
    given = options(f"{MODULE} {KEYTAB};")
    for name, value in given.items():
        monkeypatch.setenv(name.upper().replace(".", "_"), value)
    assert Connection.from_environment() == Connection.from_options(given)
