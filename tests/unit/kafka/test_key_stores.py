"""Trust and key stores that are no PEM files: the same for all three clients, and no secret in what is said."""

from __future__ import annotations

import os
import pickle
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from cryptography.hazmat.primitives.asymmetric import ec

from exactly_once.errors import InvalidOption
from exactly_once.kafka import connection as connections
from exactly_once.kafka import key_stores
from exactly_once.kafka.connection import Connection
from testkit.planted import KEY_LINE, planted_in
from testkit.secure import KEY, PASSPHRASE, STORE_PASSWORD, Authority, pem_of

SSL = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.security.protocol": "SSL"}
PEM = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.keystore.type": "PEM"}
TRUST = {"kafka.ssl.truststore.location": "/t.jks", "kafka.ssl.truststore.password": STORE_PASSWORD}
IDENTITY = {
    "kafka.ssl.keystore.location": "/k.p12",
    "kafka.ssl.keystore.type": "PKCS12",
    "kafka.ssl.keystore.password": STORE_PASSWORD,
    "kafka.ssl.key.password": PASSPHRASE,
}

CHAIN_BEGINS = "-----BEGIN CERTIFICATE-----"

#: A private key that no certificate here is for.
OTHER = pem_of(ec.generate_private_key(ec.SECP256R1())).decode()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The options of a client whose certificates and key are texts."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    below = Authority(tmp_path_factory.mktemp("below"), authority)
    key, chain = below.identity("planted", key=KEY).read_text().split(CHAIN_BEGINS, 1)
    return {
        **PEM,
        "kafka.ssl.truststore.certificates": authority.certificate.read_text(),
        "kafka.ssl.keystore.certificate.chain": CHAIN_BEGINS + chain,
        "kafka.ssl.keystore.key": key,
    }


@pytest.fixture
def held(texts: dict[str, str]) -> dict[str, str]:
    """What Spark's JVM says of Java's key stores with the same certificates and key."""
    trust, chain, key = (texts[f"kafka.{o}"] for o in (key_stores.CERTIFICATES, key_stores.CHAIN, key_stores.KEY))
    return {"trust": trust, "chain": chain, "key": key}


def assert_all_three_have(connection: Connection, held: dict[str, str]) -> None:
    """Both clients in Python get these texts, and their own OpenSSL takes them."""
    config = connection.librdkafka()
    assert [config[f"ssl.{what}.pem"] for what in ("ca", "certificate", "key")] == list(held.values())
    Producer({**config, "log_level": 0})
    python = connection.kafka_python()
    assert python["ssl_context"].cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 1}
    assert not {"ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password"} & python.keys()
    assert "ssl.key.password" not in config


def test_pem_as_text_is_the_same_to_all_three_clients(texts: dict[str, str], held: dict[str, str]) -> None:
    """A client without them reaches no broker: the claim would work, and the first task fail."""
    connection = Connection.from_options({**SSL, **texts})
    assert_all_three_have(connection, held)
    assert connection.spark() == {**SSL, **texts}
    assert Connection.from_options(connection.spark()) == connection
    assert pickle.loads(pickle.dumps(connection)) == connection


def test_java_key_stores_go_to_java_as_they_are_and_as_pem_to_the_clients_in_python(held: dict[str, str]) -> None:
    """A password of the store is none of the key that Java has taken out of it."""
    options = {**SSL, **TRUST, **IDENTITY}
    connection = Connection.from_options(options, pem=held)
    assert_all_three_have(connection, held)
    assert connection.spark() == options
    assert connection.java() == {name.removeprefix("kafka."): value for name, value in options.items()}
    assert Connection.from_options(connection.spark(), pem=held) == connection


def test_a_java_trust_store_goes_with_a_pem_file(held: dict[str, str], tmp_path: Path) -> None:
    """Guards against a client without a certificate where only one of the two stores is Java's."""
    file = tmp_path / "me.pem"
    file.write_text(held["key"] + held["chain"])
    pem = {"kafka.ssl.keystore.location": str(file), "kafka.ssl.keystore.type": "PEM"}
    connection = Connection.from_options({**SSL, **TRUST, **pem}, pem={"trust": held["trust"]})
    config = connection.librdkafka()
    assert config["ssl.ca.pem"] == held["trust"] and config["ssl.certificate.location"] == str(file)
    assert connection.kafka_python()["ssl_context"].cert_store_stats()["x509_ca"] == 1
    assert connection.spark() == {**SSL, **TRUST, **pem}


def test_pem_whose_lines_were_joined_is_taken_as_java_takes_it(texts: dict[str, str], held: dict[str, str]) -> None:
    """Mishap: a text that went through a variable or a YAML file works in Spark's source and not in the sink."""
    joined = {name: " ".join(value.split("\n")) + " " for name, value in texts.items()}
    assert_all_three_have(Connection.from_options({**SSL, **joined, **PEM}), held)


def test_a_key_is_in_a_file_once_that_nobody_else_can_read(
    texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leak: OpenSSL takes a key from a file only. It is gone when the key is loaded, also when that fails."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    real, written = key_stores.as_file, list[str]()

    @contextmanager
    def watched(text: str) -> Iterator[str]:
        written.append(text)
        with real(text) as name:
            assert Path(name).read_text() == text and stat.S_IMODE(os.stat(name).st_mode) == 0o600
            yield name

    monkeypatch.setattr(key_stores, "as_file", watched)
    connections._kept_context.cache_clear()
    connection = Connection.from_options({**SSL, **texts})
    for _ in range(3):  # clients of this process
        connection.check_login()
        assert connection.kafka_python()["ssl_context"]
    assert len(written) == 1
    with pytest.raises(InvalidOption):
        Connection.from_options({**SSL, **texts, "kafka.ssl.keystore.key": OTHER}).check_login()
    assert len(written) == 2 and list(tmp_path.iterdir()) == []


def test_without_tls_no_store_is_read() -> None:
    """Guards against a stream that stops for a file which no client opens: Java leaves these options alone then."""
    options = {**SSL, **TRUST, **IDENTITY, "kafka.security.protocol": "PLAINTEXT"}
    connection = Connection.from_options(options)
    assert connection.spark() == options and not connection.stores.trust


REFUSED: dict[str, tuple[dict[str, str], str, str]] = {
    "a text without its type": (
        {"kafka.ssl.truststore.certificates": "x"},
        "kafka.ssl.truststore.certificates is PEM, but kafka.ssl.truststore.type is JKS",
        "Set kafka.ssl.truststore.type=PEM",
    ),
    "a text that is no PEM": (
        {**PEM, "kafka.ssl.truststore.certificates": "x"},
        "kafka.ssl.truststore.certificates holds no certificate in PEM",
        "-----BEGIN CERTIFICATE-----",
    ),
    "a key that Java cannot read": (
        {
            **PEM,
            "kafka.ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----",
            "kafka.ssl.keystore.key": f"-----BEGIN EC PRIVATE KEY-----\n{KEY_LINE}\n-----END EC PRIVATE KEY-----",
        },
        "kafka.ssl.keystore.key holds no private key in PEM",
        "openssl pkcs8 -topk8",
    ),
    "a text and a file": (
        {**PEM, "kafka.ssl.truststore.certificates": "x", "kafka.ssl.truststore.location": "/t"},
        "kafka.ssl.truststore.certificates and kafka.ssl.truststore.location are both set",
        "Remove one of the two",
    ),
    "a key without certificates": (
        {**PEM, "kafka.ssl.keystore.key": KEY_LINE},
        "kafka.ssl.keystore.certificate.chain is missing beside kafka.ssl.keystore.key",
        "Set kafka.ssl.keystore.certificate.chain",
    ),
    "a password of a PEM file": (
        {**PEM, "kafka.ssl.keystore.location": "/k", "kafka.ssl.keystore.password": STORE_PASSWORD},
        "kafka.ssl.keystore.password cannot be combined with kafka.ssl.keystore.type=PEM",
        "kafka.ssl.key.password",
    ),
    "a password of nothing": (
        {"kafka.ssl.truststore.password": STORE_PASSWORD},
        "kafka.ssl.truststore.password is set, but kafka.ssl.truststore.location is not",
        "Set kafka.ssl.truststore.location",
    ),
}


@pytest.mark.parametrize(("options", "what", "way_out"), REFUSED.values(), ids=REFUSED)
def test_options_that_contradict_each_other_are_refused_before_anything_connects(
    options: dict[str, str], what: str, way_out: str
) -> None:
    """Java's client would refuse them in an executor, with a trace."""
    with pytest.raises(InvalidOption) as refusal:
        Connection.from_options({**SSL, **options})
    assert what in refusal.value.what and way_out in refusal.value.way_out
    assert refusal.value.safe == "Nothing was written" and planted_in(str(refusal.value)) == []


def test_no_secret_of_a_store_is_in_the_text_of_a_connection(texts: dict[str, str], held: dict[str, str]) -> None:
    """It is put into log lines and error messages, of tasks too."""
    for connection in (
        Connection.from_options({**SSL, **texts}),
        Connection.from_options({**SSL, **TRUST, **IDENTITY}, pem=held),
    ):
        assert planted_in(f"{connection!r} {connection} {pickle.loads(pickle.dumps(connection))}") == []
        assert any(KEY_LINE in (secret or "") for secret in connection.secrets)


def test_what_openssl_refuses_is_named_by_its_option(texts: dict[str, str], held: dict[str, str]) -> None:
    """Mishap: Java takes the store, Python's OpenSSL does not, and the error names neither."""
    with pytest.raises(InvalidOption, match=r"kafka\.ssl\.keystore\.key cannot be used \(") as refusal:
        Connection.from_options({**SSL, **texts, "kafka.ssl.keystore.key": OTHER}).check_login()
    with pytest.raises(InvalidOption, match=r"kafka\.ssl\.keystore\.location=/k\.p12 holds what OpenSSL refuses"):
        Connection.from_options({**SSL, **TRUST, **IDENTITY}, pem={**held, "key": OTHER}).check_login()
    assert "kafka.ssl.key.password" in refusal.value.way_out


# -- a Java of our own -------------------------------------------------------------------------------------------------


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a program in the place of Java that notes its arguments and its input, and then does what it is told."""

    def put(does: str) -> Path:
        said, program = tmp_path / "said", tmp_path / "home" / "bin" / "java"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\necho "$@" >>{said}.arguments\ncat >>{said}.input\n{does}\n')
        program.chmod(0o700)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        return said

    return put


def test_what_java_cannot_read_is_refused_in_its_words(java: Callable[[str], Path]) -> None:
    """The words are those of KeyStores.java, which tests/integration/test_key_stores.py reads with a real Java."""
    java("echo what d3Jvbmc=; echo way_out cmlnaHQ=")
    with pytest.raises(InvalidOption) as refusal:
        Connection.from_options({**SSL, **TRUST})
    assert (refusal.value.what, refusal.value.way_out) == ("wrong", "right")


def test_java_is_asked_once_for_a_store_until_its_file_changes(
    java: Callable[[str], Path], tmp_path: Path, held: dict[str, str]
) -> None:
    """A JVM takes half a second, and a start reads its options several times; a renewed store is read anew."""
    said, store = java("echo trust eA=="), tmp_path / "t.jks"
    store.write_text("old")
    options = {**SSL, **TRUST, "kafka.ssl.truststore.location": str(store)}
    assert [Connection.from_options(options).stores.trust for _ in range(2)] == ["x", "x"]
    store.write_text("renewed")
    Connection.from_options(options)
    arguments = Path(f"{said}.arguments").read_text()
    assert len(arguments.splitlines()) == 2
    assert planted_in(arguments) == [], "everybody on the host sees a command line"
    assert "kafka.ssl.truststore.password " in Path(f"{said}.input").read_text()


def test_where_no_java_reads_a_store_the_refusal_says_how_to_convert_it(
    java: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod of Dagster's or of a command has no Java. What a JVM prints first may be a variable with a password."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InvalidOption, match=r"/t\.jks .*Java key store.*no Java here") as refusal:
        Connection.from_options({**SSL, **TRUST})
    assert "keytool -list -rfc -keystore /t.jks" in refusal.value.way_out
    with pytest.raises(InvalidOption, match=r"openssl pkcs12 -in store\.p12 -nodes"):
        Connection.from_options({**SSL, **IDENTITY})
    java(f"echo 'Picked up JAVA_TOOL_OPTIONS: {STORE_PASSWORD}' >&2; echo 'compiled by a more recent' >&2; exit 1")
    with pytest.raises(InvalidOption, match=r"ended with 1 \(compiled by .*recent\)") as refusal:
        Connection.from_options({**SSL, **TRUST})
    assert planted_in(str(refusal.value)) == [] and "Java 17" in refusal.value.way_out
