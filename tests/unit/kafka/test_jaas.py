"""The text of sasl.jaas.config: read as Java's tokenizer reads it, and never shown."""

from __future__ import annotations

import pytest

from exactly_once.errors import InvalidOption
from exactly_once.kafka import jaas
from exactly_once.kafka.connection import Connection
from testkit.grammars import JAAS

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
ENDPOINT = "https://id.example/token"


@pytest.mark.parametrize(("text", "options"), JAAS.items())
def test_a_login_is_read_as_kafkas_clients_read_it(text: str, options: dict[str, str] | None) -> None:
    """Outage: Spark's own sink logs in, and this one says that the password is missing, or sends another one."""
    if options is None:
        with pytest.raises(InvalidOption, match=r"kafka\.sasl\.jaas\.config"):
            jaas.read(text)
    else:
        assert jaas.read(text).options == options


@pytest.mark.parametrize(
    "value", ["p", "", "a b", "'", '"', "\\", '\\"', "p#1;", "a\nb", "a\r\nb\t", "\\n", "ü\U0001f600", "//", "\\101"]
)
def test_what_is_written_for_java_is_read_again(value: str) -> None:
    """Outage: a password that the options hold, and that Spark's own source gets cut at its quote or at its line."""
    assert jaas.read(f"{MODULE} required password={jaas.quoted(value)};").options == {"password": value}


@pytest.mark.parametrize(
    ("text", "says", "way_out"),
    [
        (f"{MODULE} required user='alice' password='s3cret';", "has no username; it has: user, password", "username="),
        (f"{MODULE} required username=alice;", "has no password; it has: username", "password="),
        (f"{MODULE} required;", "has no username; it has: no option", "username="),
        (f"{MODULE} required username=alice password=s3cret", "has no ';' at its end", "required"),
        (f"{MODULE} required username=alice password=1s3cret;", "without a value behind username", "quotes"),
        (f"{MODULE} required username=alice password=a s3cret;", "no name=value behind password", "quotes"),
        (f"{MODULE} username=alice password=s3cret;", "has no 'required' behind", "required"),
        (f"{MODULE} required;{MODULE} required;", "names 2 login modules", "required"),
        (f"KafkaClient {{ {MODULE} required password=s3cret; }};", "has no 'required'", "required"),
        (
            "com.example.PlainLoginModule required password=s3cret;",
            "the login module com.example.PlainLoginModule, which",
            "required",
        ),
        (f"{MODULE} required username=a password=s3cret tokenauth=true;", "delegation token (tokenauth)", "SCRAM"),
        (" // s3cret", "names no login modules", "required"),
    ],
)
def test_a_login_that_cannot_be_used_is_named_by_what_it_has_without_values(text: str, says: str, way_out: str) -> None:
    """Outage: "user name or password is missing" of a text that has both; and a password in a log."""
    login = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config": text}
    with pytest.raises(InvalidOption) as refused:
        Connection.from_options({"kafka.bootstrap.servers": "h:1", **login})
    assert says in refused.value.what and way_out in refused.value.way_out
    assert "s3cret" not in str(refused.value) and "alice" not in str(refused.value)


def test_options_of_an_oauth_login_reach_every_client() -> None:
    """Outage: Confluent Cloud refuses a token without logicalCluster and identityPoolId, which stand in this text."""
    extensions = "extension_logicalCluster='lkc-1' extension_identityPoolId='pool-2'"
    text = f"{OAUTH} required clientId='c' clientSecret='s' scope='k' {extensions} oauth.refresh='60';"
    connection = Connection.from_options(
        {
            "kafka.bootstrap.servers": "h:1",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": ENDPOINT,
            "kafka.sasl.jaas.config": text,
        }
    )
    assert connection.oauth is not None
    settings = connection.oauth.librdkafka()
    assert settings["sasl.oauthbearer.client.id"] == "c" and settings["sasl.oauthbearer.client.secret"] == "s"
    assert settings["sasl.oauthbearer.extensions"] == "logicalCluster=lkc-1,identityPoolId=pool-2"
    provider = connection.oauth.kafka_python()["sasl_oauth_token_provider"]
    assert provider.extensions() == {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}
    java = jaas.read(connection.spark()["kafka.sasl.jaas.config"])
    assert java == jaas.read(text)
