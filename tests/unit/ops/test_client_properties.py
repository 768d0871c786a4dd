"""The file of ``--command-config``: what Kafka's own tools read is read the same way, and anything else is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactly_once.errors import InvalidOption
from exactly_once.kafka.connection import Connection
from exactly_once.properties import pairs
from exactly_once.tools.cli.client_properties import merge, parse, read
from testkit.grammars import PROPERTIES

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"

SCRAM = r"""# of the operations team
bootstrap.servers = a:9092,\
                    b:9092
! the door
security.protocol: SASL_SSL
sasl.mechanism SCRAM-SHA-512

sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
  username="alice" \
  password="s3cret";
ssl.truststore.type=PEM
ssl.truststore.location=/c\u0061.pem
"""


def refused(text: str) -> str:
    with pytest.raises(InvalidOption) as refusal:
        parse(text, "client.properties")
    assert "s3cret" not in str(refusal.value)
    return str(refusal.value)


def test_a_file_of_kafka_s_own_tools_names_the_same_cluster_and_principal() -> None:
    """Outage: the file works with kafka-topics.sh, and the command that should end the outage cannot log in."""
    assert Connection.from_options(parse(SCRAM, "f")) == Connection(
        "a:9092,b:9092", "SASL_SSL", "SCRAM-SHA-512", "alice", "s3cret", "/ca.pem"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\nsasl.mechanisms=PLAIN\n", "client.properties, line 2: sasl.mechanisms is not a setting"),
        ("sasl.pasword=s3cret\n", "line 1: sasl.pasword is not a setting"),
        ("ssl.trustore.location=/s3cret\n", "line 1: ssl.trustore.location is not a setting"),
        (r"sasl.password=\u00zzs3cret", "line 1: \\u is not followed by four hexadecimal digits"),
    ],
)
def test_a_line_that_cannot_be_followed_is_named_by_its_number_and_not_by_its_value(text: str, says: str) -> None:
    """Outage: a setting that is silently ignored, such as another cluster's trust store; and a leak of a password."""
    message = refused(text)
    assert message.startswith("EO-OPTION: ") and says in message and "What to do: " in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Outage: a mistyped path that looks like a cluster without security."""
    with pytest.raises(InvalidOption, match="missing"):
        read(str(tmp_path / "missing.properties"))
    (tmp_path / "latin").write_bytes("sasl.password=prüfung".encode("latin-1"))
    (tmp_path / "utf").write_bytes("sasl.password=prüfung".encode())
    assert read(str(tmp_path / "latin")) == read(str(tmp_path / "utf")) == {"kafka.sasl.password": "prüfung"}


@pytest.mark.parametrize(("text", "settings"), PROPERTIES.items())
def test_a_file_is_read_as_java_reads_it(text: str, settings: dict[str, str] | None) -> None:
    """Outage: a file that Kafka's own tools take is refused, or gives another password."""
    if settings is None:
        with pytest.raises(InvalidOption):
            list(pairs(text, "f"))
    else:
        assert {key: value for _, key, _, value in pairs(text, "f")} == settings


CONSOLE = r"""# Required connection configs for Kafka producer, consumer, and admin
bootstrap.servers=SASL_SSL://pkc-1.example:9092
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username='alice' password='s3cret';
sasl.mechanism=PLAIN
# Required for correctness in Apache Kafka clients prior to 2.6
client.dns.lookup=use_all_dns_ips
session.timeout.ms : 45000
acks=all
client.id=ccloud-java-client-1
schema.registry.url=https://psrc-1.example
basic.auth.credentials.source=USER_INFO
basic.auth.user.info=key:s3cret
ssl.protocol=TLSv1.3
sasl.client.callback.handler.class=com.example.s3cret
schema.registry.ssl.truststore.location=/s3cret
s3cret
s3cret+/=x
acks all
"""


def test_settings_of_other_tools_are_named_once_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """Outage: the snippet of a console, which works with every tool of Kafka's, is refused line by line."""
    connection = Connection.from_options(parse(CONSOLE, "client.properties"))
    assert connection == Connection("pkc-1.example:9092", "SASL_SSL", "PLAIN", "alice", "s3cret")
    (warning,) = caplog.messages
    names = "client.dns.lookup, session.timeout.ms, acks, client.id, schema.registry.url, basic.auth.credentials.source"
    names += ", basic.auth.user.info, ssl.protocol, sasl.client.callback.handler.class"
    names += ", schema.registry.ssl.truststore.location, line 17, line 18, line 19"
    assert warning.startswith("EO-WARN-PROPERTIES client.properties has ") and warning.endswith(f"ignores: {names}")


def test_a_login_that_is_cut_off_is_refused_and_not_a_login_without_a_password() -> None:
    """Outage: a backslash is missing, and the rest of the login is read as settings of other tools."""
    cut = f'sasl.jaas.config={MODULE} required\n  username="u" \\\n  password="s3cret";\nsasl.mechanism=PLAIN\n'
    settings = parse(f"bootstrap.servers=h:1\nsecurity.protocol=SASL_SSL\n{cut}", "f")
    with pytest.raises(InvalidOption, match="has no ';' at its end"):
        Connection.from_options(settings)


ENVIRONMENT = {
    "kafka.bootstrap.servers": "env:1",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "env",
    "kafka.sasl.password": "env",
    "kafka.ssl.truststore.location": "/env.pem",
    "kafka.ssl.truststore.type": "PEM",
}


def test_the_flag_wins_over_the_file_and_the_file_over_the_environment() -> None:
    """Loss: an abort that ends transactions on another cluster than the one that its user named."""
    file = {"kafka.bootstrap.servers": "file:1"}
    assert merge(ENVIRONMENT, file, "flag:1") == {**ENVIRONMENT, "kafka.bootstrap.servers": "flag:1"}
    assert merge(ENVIRONMENT, file, None) == {**ENVIRONMENT, "kafka.bootstrap.servers": "file:1"}
    assert merge(ENVIRONMENT, {}, None) == ENVIRONMENT


def test_a_login_is_taken_whole_from_one_place() -> None:
    """Outage: the user name of one principal with the password of another, which locks an account."""
    jaas = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": f'{MODULE} required username="u" password="p";'}
    merged = Connection.from_options(merge(ENVIRONMENT, jaas, None))
    assert (merged.sasl_username, merged.sasl_password, merged.ssl_ca) == ("u", "p", "/env.pem")
    key = {"kafka.ssl.keystore.location": "/me.pem", "kafka.ssl.keystore.type": "PEM", "kafka.security.protocol": "SSL"}
    merged = Connection.from_options(merge(ENVIRONMENT, key, None))
    assert (merged.ssl_ca, merged.ssl_identity, merged.security_protocol) == (None, "/me.pem", "SSL")
