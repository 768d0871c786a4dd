"""The file of ``--command-config``: what Kafka's own tools read is read the same way, and anything else is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactly_once.errors import InvalidOption
from exactly_once.kafka.connection import Connection
from exactly_once.ops.cli.client_properties import merge, parse, read

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
    ("text", "value"),
    [
        (r"sasl.password=a\\b", "a\\b"),
        (r"sasl.password=a\=b\:c", "a=b:c"),
        ("sasl.password=a=b:c d", "a=b:c d"),
        (r"sasl.password=\ud83d\ude00", "\U0001f600"),
        ("sasl.password = x ", "x "),
        ("sasl.password=", ""),
        ("sasl.password=old\nsasl.password=new", "new"),
        ("sasl.password=x\r\n", "x"),
        ("\tsasl.password\t=\tx", "x"),
        ("sasl.password=a\\", "a"),
        ("# no \\\nsasl.password=x", "x"),
    ],
)
def test_a_value_is_read_as_java_reads_it(text: str, value: str) -> None:
    """Outage: a password from a generator is cut or changed, and the brokers then say "authentication failed"."""
    assert parse(text, "f") == {"kafka.sasl.password": value}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a=b\n", "client.properties, line 1: a is not a setting"),
        ("\n# c\nsecurity.protocol=SSL\ns3cret\n", "client.properties, line 4: there is no '='"),
        ("ssl.engine.factory.class=s3cret\n", "line 1: ssl.engine.factory.class is not a setting"),
        ("acks=all\n", "line 1: acks is not a setting"),
        ('sasl.jaas.config=x required\n  username="u" \\\n  password="s3cret";', "line 2: username is not a setting"),
        (r"sasl.password=\u00zzs3cret", "line 1: \\u is not followed by four hexadecimal digits"),
        ("s3cret+/=x", "line 1: its key is not a setting"),
        ("s3cret\x0b=x", "line 1: its key is not a setting"),
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
    (tmp_path / "binary").write_bytes(b"\xff\xfe=\x00")
    with pytest.raises(InvalidOption, match="binary"):
        read(str(tmp_path / "binary"))


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
    jaas = {"kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": 'x required username="u" password="p";'}
    merged = Connection.from_options(merge(ENVIRONMENT, jaas, None))
    assert (merged.sasl_username, merged.sasl_password, merged.ssl_ca) == ("u", "p", "/env.pem")
    key = {"kafka.ssl.keystore.location": "/me.pem", "kafka.ssl.keystore.type": "PEM", "kafka.security.protocol": "SSL"}
    merged = Connection.from_options(merge(ENVIRONMENT, key, None))
    assert (merged.ssl_ca, merged.ssl_identity, merged.security_protocol) == (None, "/me.pem", "SSL")
