"""One description of the connection, three dialects: the same servers, principal and trust in each of them."""

from __future__ import annotations

import logging
import pickle
import threading

import pytest
from confluent_kafka import Producer
from kafka.admin import KafkaAdminClient

from exactly_once.errors import BrokerUnreachable, InvalidOption
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.oauth import OAuth, tokens_of

SERVERS = {"kafka.bootstrap.servers": "a:9092,b:9092"}
PEM = {"kafka.ssl.truststore.location": "/ca.pem", "kafka.ssl.truststore.type": "PEM"}
JAAS = 'org.apache.kafka.common.security.{module} required\n  username="alice" password="s3cret";'
PLAIN, SCRAM = "plain.PlainLoginModule", "scram.ScramLoginModule"

JAVA = "org.apache.kafka.common.security.oauthbearer"
ENDPOINT = "https://id.example/oauth2/token"
FUNCTION = OAuth(provider="time:time", java_handler="com.example.Handler")

CASES: dict[str, tuple[dict[str, str], dict[str, object], dict[str, object], dict[str, str]]] = {
    # what: (options, librdkafka, kafka-python, Spark)
    "PLAINTEXT": (
        SERVERS,
        {"bootstrap.servers": "a:9092,b:9092", "security.protocol": "plaintext"},
        {"bootstrap_servers": "a:9092,b:9092", "security_protocol": "PLAINTEXT", "ssl_check_hostname": True},
        {"kafka.bootstrap.servers": "a:9092,b:9092", "kafka.security.protocol": "PLAINTEXT"},
    ),
    "SASL_SSL with PLAIN": (
        {
            **SERVERS,
            **PEM,
            "kafka.security.protocol": "sasl_ssl",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": JAAS.format(module=PLAIN),
        },
        {
            "bootstrap.servers": "a:9092,b:9092",
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "s3cret",
            "ssl.ca.location": "/ca.pem",
        },
        {
            "bootstrap_servers": "a:9092,b:9092",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "alice",
            "sasl_plain_password": "s3cret",
            "ssl_cafile": "/ca.pem",
            "ssl_check_hostname": True,
        },
        {
            "kafka.bootstrap.servers": "a:9092,b:9092",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.jaas.config": JAAS.format(module=PLAIN).replace("\n  ", " "),
            "kafka.ssl.truststore.location": "/ca.pem",
            "kafka.ssl.truststore.type": "PEM",
        },
    ),
    "SCRAM without TLS": (
        {
            **SERVERS,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "scram-sha-256",
            "kafka.sasl.username": "alice",
            "kafka.sasl.password": "s3cret",
        },
        {
            "bootstrap.servers": "a:9092,b:9092",
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": "s3cret",
        },
        {
            "bootstrap_servers": "a:9092,b:9092",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "alice",
            "sasl_plain_password": "s3cret",
            "ssl_check_hostname": True,
        },
        {
            "kafka.bootstrap.servers": "a:9092,b:9092",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "SCRAM-SHA-256",
            "kafka.sasl.jaas.config": JAAS.format(module=SCRAM).replace("\n  ", " "),
        },
    ),
    "mTLS, host name not checked": (
        {
            **SERVERS,
            **PEM,
            "kafka.security.protocol": "SSL",
            "kafka.ssl.keystore.location": "/me.pem",
            "kafka.ssl.keystore.type": "pem",
            "kafka.ssl.key.password": "s3cret",
            "kafka.ssl.endpoint.identification.algorithm": "",
        },
        {
            "bootstrap.servers": "a:9092,b:9092",
            "security.protocol": "ssl",
            "ssl.ca.location": "/ca.pem",
            "ssl.certificate.location": "/me.pem",
            "ssl.key.location": "/me.pem",
            "ssl.key.password": "s3cret",
            "ssl.endpoint.identification.algorithm": "none",
        },
        {
            "bootstrap_servers": "a:9092,b:9092",
            "security_protocol": "SSL",
            "ssl_cafile": "/ca.pem",
            "ssl_certfile": "/me.pem",
            "ssl_keyfile": "/me.pem",
            "ssl_password": "s3cret",
            "ssl_check_hostname": False,
        },
        {
            "kafka.bootstrap.servers": "a:9092,b:9092",
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.location": "/ca.pem",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.keystore.location": "/me.pem",
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.key.password": "s3cret",
            "kafka.ssl.endpoint.identification.algorithm": "",
        },
    ),
}
CASES |= {
    "OAUTHBEARER with a token endpoint": (
        {
            **SERVERS,
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "oauthbearer",
            "kafka.sasl.oauthbearer.token.endpoint.url": ENDPOINT,
            "kafka.sasl.oauthbearer.client.id": "alice",
            "kafka.sasl.oauthbearer.client.secret": 's3cret"',
            "kafka.sasl.oauthbearer.scope": "kafka",
        },
        {
            "bootstrap.servers": "a:9092,b:9092",
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": ENDPOINT,
            "sasl.oauthbearer.client.id": "alice",
            "sasl.oauthbearer.client.secret": 's3cret"',
            "sasl.oauthbearer.scope": "kafka",
        },
        {
            "bootstrap_servers": "a:9092,b:9092",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": tokens_of(OAuth(ENDPOINT, "alice", 's3cret"', "kafka")),
            "ssl_check_hostname": True,
        },
        {
            "kafka.bootstrap.servers": "a:9092,b:9092",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.endpoint.url": ENDPOINT,
            "kafka.sasl.login.callback.handler.class": f"{JAVA}.OAuthBearerLoginCallbackHandler",
            "kafka.sasl.jaas.config": f"{JAVA}.OAuthBearerLoginModule required "
            'clientId="alice" clientSecret="s3cret\\"" scope="kafka";',
        },
    ),
    "OAUTHBEARER with a function": (
        {
            **SERVERS,
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.provider": "time:time",
            "kafka.sasl.login.callback.handler.class": "com.example.Handler",
        },
        {
            "bootstrap.servers": "a:9092,b:9092",
            "security.protocol": "sasl_plaintext",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": tokens_of(FUNCTION).refresh,
        },
        {
            "bootstrap_servers": "a:9092,b:9092",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": tokens_of(FUNCTION),
            "ssl_check_hostname": True,
        },
        {
            "kafka.bootstrap.servers": "a:9092,b:9092",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.oauthbearer.token.provider": "time:time",
            "kafka.sasl.login.callback.handler.class": "com.example.Handler",
            "kafka.sasl.jaas.config": f"{JAVA}.OAuthBearerLoginModule required;",
        },
    ),
}
EACH = pytest.mark.parametrize(("options", "librdkafka", "python", "spark"), CASES.values(), ids=CASES)


@pytest.fixture(autouse=True)
def logged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token is asked for here."""
    monkeypatch.setattr(Connection, "check_login", lambda connection: None)


@EACH
def test_the_three_dialects_say_the_same(
    options: dict[str, str], librdkafka: dict[str, object], python: dict[str, object], spark: dict[str, str]
) -> None:
    """A client that is configured otherwise reaches another cluster, or trusts whom the others do not."""
    connection = Connection.from_options(options)
    assert connection.librdkafka() == {**librdkafka, "allow.auto.create.topics": False}
    assert connection.kafka_python() == python
    assert connection.spark() == spark


@EACH
def test_the_spark_dialect_is_read_back_as_the_same_connection(
    options: dict[str, str], librdkafka: object, python: object, spark: object
) -> None:
    """A job hands conn.spark() to the sink and to Spark's source: both must mean what was said once."""
    connection = Connection.from_options(options)
    assert Connection.from_options(connection.spark()) == connection


NASTY = ['a"b', "a\\b", 'a\\"; x="', "a b;c=d", "ä€", "'", "$1"]


@pytest.mark.parametrize("password", NASTY)
def test_any_password_survives_the_way_through_jaas(password: str) -> None:
    """A password from a generator has quotes and backslashes; Kafka then answers "authentication failed", which sends
    people looking for the wrong cause, and a quote would let it write JAAS options of its own."""
    scram = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "SCRAM-SHA-512", "kafka.sasl.username": "u"}
    connection = Connection.from_options({**SERVERS, **scram, "kafka.sasl.password": password})
    assert connection.sasl_password == password
    escaped = password.replace("\\", "\\\\").replace('"', '\\"')
    assert connection.spark()["kafka.sasl.jaas.config"].endswith(f'username="u" password="{escaped}";')
    assert Connection.from_options(connection.spark()).sasl_password == password


@EACH
def test_the_names_are_known_to_kafka_python(
    options: dict[str, str], librdkafka: object, python: object, spark: object
) -> None:
    """A name that it does not know stops the first claim."""
    assert Connection.from_options(options).kafka_python().keys() <= KafkaAdminClient.DEFAULT_CONFIG.keys()


@pytest.mark.parametrize("case", ["PLAINTEXT", "SCRAM without TLS"])
def test_the_names_are_known_to_librdkafka(case: str) -> None:
    """A name that it does not know stops the first task. (With TLS it would open the files at once.)"""
    config = Connection.from_options({**CASES[case][0], "kafka.bootstrap.servers": "127.0.0.1:1"}).librdkafka()
    Producer({**config, "log_level": 0})


@EACH
def test_no_secret_is_in_the_text_of_a_connection(
    options: dict[str, str], librdkafka: object, python: object, spark: object
) -> None:
    """It is put into log lines and error messages, of tasks too: pickling must not undo it."""
    connection = pickle.loads(pickle.dumps(Connection.from_options(options)))
    assert "s3cret" not in f"{connection!r} {connection}"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kafka.security.protocol": "SASL_SSL"}, "kafka.sasl.mechanism"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "PLAIN"}, "password is missing"),
        ({"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "DIGEST-MD5"}, "OAUTHBEARER, GSSAPI"),
    ],
)
def test_what_not_all_three_clients_can_follow_is_refused(options: dict[str, str], says: str) -> None:
    """Else the source works, the claim works, and the first task fails."""
    with pytest.raises(InvalidOption) as refusal:
        Connection.from_options({**SERVERS, **options})
    assert says in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


def test_blanks_around_a_value_are_javas_to_take_away() -> None:
    """Outage: a blank at the end of a line of client.properties, which Kafka's own tools do not see."""
    login = {"kafka.security.protocol": " SASL_SSL\t", "kafka.sasl.mechanism": "PLAIN ", **PEM}
    login |= {"kafka.ssl.truststore.location": " /ca.pem ", "kafka.ssl.truststore.type": "PEM\n"}
    found = Connection.from_options({**SERVERS, **login, "kafka.sasl.username": "u ", "kafka.sasl.password": " p"})
    assert found == Connection("a:9092,b:9092", "SASL_SSL", "PLAIN", "u ", " p", "/ca.pem")


OAUTH = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
OIDC = {
    "kafka.sasl.oauthbearer.token.endpoint.url": ENDPOINT,
    "kafka.sasl.oauthbearer.client.id": "alice",
    "kafka.sasl.oauthbearer.client.secret": "s3cret",
}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs exactly one source of tokens, but there is none"),
        ({**OIDC, "kafka.sasl.oauthbearer.token.provider": "time:time"}, "there are two"),
        ({**OIDC, "kafka.sasl.oauthbearer.client.id": ""}, "the client id or the client secret"),
        ({**OIDC, "kafka.sasl.oauthbearer.client.secret": ""}, "the client id or the client secret"),
        ({**OIDC, "kafka.sasl.oauthbearer.token.endpoint.url": "id.example/token"}, "not the URL of a token endpoint"),
        ({**OIDC, "kafka.sasl.oauthbearer.token.endpoint.url": "https://u:s3cret@h/t"}, "not the URL"),
        ({**OIDC, "kafka.sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd"}, "not the URL"),
        ({"kafka.sasl.oauthbearer.token.provider": "time.time"}, "does not name a function"),
        ({"kafka.sasl.oauthbearer.token.provider": "no_such_module:token"}, "cannot be imported"),
        ({"kafka.sasl.oauthbearer.token.provider": "time:token"}, "cannot be imported"),
        ({"kafka.sasl.oauthbearer.token.provider": "time:timezone"}, "is not a function"),
    ],
)
def test_a_source_of_tokens_that_cannot_work_is_refused_before_anything_connects(
    options: dict[str, str], says: str
) -> None:
    """Outage: a start that tries to log in until its budget is spent, and then blames the brokers."""
    with pytest.raises(InvalidOption) as refusal:
        Connection.from_options({**SERVERS, **OAUTH, **options})
    assert says in str(refusal.value) and "What to do: " in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


def test_the_names_that_java_gives_the_credentials_from_4_1_on_are_the_same_credentials() -> None:
    """Outage: the source logs in with options of Kafka's new client, and the sink refuses them."""
    named = {name.replace(".client.", ".client.credentials.client."): value for name, value in OIDC.items()}
    assert "kafka.sasl.oauthbearer.client.credentials.client.secret" in named
    assert Connection.from_options({**SERVERS, **OAUTH, **named}) == Connection.from_options(
        {**SERVERS, **OAUTH, **OIDC}
    )


def test_a_secret_that_changed_is_another_connection() -> None:
    """Outage: a worker process that is reused keeps the secret that was rotated."""
    one = Connection.from_options({**SERVERS, **OAUTH, **OIDC})
    other = Connection.from_options({**SERVERS, **OAUTH, **OIDC, "kafka.sasl.oauthbearer.client.secret": "new"})
    assert one != other and one.secrets != other.secrets and repr(one) == repr(other)


def test_the_environment_says_where_tokens_come_from(clean: pytest.MonkeyPatch) -> None:
    """Outage: the command line, which reads nothing else, cannot log in where the stream can."""
    for name, value in {
        "KAFKA_BOOTSTRAP_SERVERS": "a:9092",
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_SASL_MECHANISM": "OAUTHBEARER",
        "KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": ENDPOINT,
        "KAFKA_SASL_OAUTHBEARER_CLIENT_ID": "alice",
        "KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET": "s3cret",
        "KAFKA_SASL_OAUTHBEARER_SCOPE": "kafka",
        "KAFKA_SASL_LOGIN_CALLBACK_HANDLER_CLASS": "com.example.Handler",
    }.items():
        clean.setenv(name, value)
    found = Connection.from_environment()
    assert found.oauth == OAuth(ENDPOINT, "alice", "s3cret", "kafka", "", "com.example.Handler")
    assert (found.sasl_username, found.sasl_password) == (None, None)


ENVIRONMENT = {
    "KAFKA_BOOTSTRAP_SERVERS": "a:9092",
    "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
    "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
    "KAFKA_SASL_USERNAME": "alice",
    "KAFKA_SASL_PASSWORD": "s3cret",
    "KAFKA_SSL_CA_LOCATION": "/ca.pem",
    "KAFKA_SSL_IDENTITY_LOCATION": "/me.pem",
    "KAFKA_SSL_KEY_PASSWORD": "t0p",
}


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_the_environment_says_all_of_it(clean: pytest.MonkeyPatch) -> None:
    """So that no secret has to stand in a file of the project."""
    for name, value in ENVIRONMENT.items():
        clean.setenv(name, value)
    assert Connection.from_environment() == Connection(
        "a:9092", "SASL_SSL", "SCRAM-SHA-512", "alice", "s3cret", "/ca.pem", "/me.pem", "t0p"
    )


def test_the_environment_wins_over_the_embedded_broker(clean: pytest.MonkeyPatch) -> None:
    """A user's cluster that is silently not used is a job that writes to the wrong place."""
    assert Connection.from_environment("localhost:1").bootstrap_servers == "localhost:1"
    clean.setenv("KAFKA_BOOTSTRAP_SERVERS", "")
    assert Connection.from_environment("localhost:1").bootstrap_servers == "localhost:1"
    clean.setenv("KAFKA_BOOTSTRAP_SERVERS", "a:9092")
    assert Connection.from_environment("localhost:1").bootstrap_servers == "a:9092"


def test_no_servers_anywhere_is_an_error_and_no_default(clean: pytest.MonkeyPatch) -> None:
    """localhost would be somebody's broker."""
    with pytest.raises(InvalidOption, match=r"kafka\.bootstrap\.servers is missing"):
        Connection.from_environment()


def test_a_connection_that_fails_leaves_no_thread_behind() -> None:
    """A sensor asks every minute, also while the brokers are away: a thread and four file descriptors each time end the
    Dagster daemon within hours."""
    before = threading.active_count()
    for _ in range(2):
        with pytest.raises(BrokerUnreachable):
            Admin(Connection("127.0.0.1:1"), 0.1)
    assert threading.active_count() == before


def test_a_connection_that_fails_logs_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    """kafka-python logs its whole configuration at DEBUG, which a user turns on when a connection fails."""
    scram = CASES["SCRAM without TLS"][0] | {"kafka.bootstrap.servers": "127.0.0.1:1"}
    with caplog.at_level(logging.DEBUG), pytest.raises(BrokerUnreachable):
        Admin(Connection.from_options(scram), 0.2)
    assert "s3cret" not in caplog.text
