"""Java key stores that the JDK's own keytool made, read by a JVM for the clients in Python (KeyStores.java)."""

from __future__ import annotations

from pathlib import Path

import pytest

from exactly_once.errors import InvalidOption
from exactly_once.kafka.connection import Connection
from testkit.key_stores import key_store, trust_store
from testkit.planted import KEY_LINE, WRONG, planted_in
from testkit.secure import KEY, PASSPHRASE, STORE_PASSWORD, Authority

SSL = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.security.protocol": "SSL"}
CHAIN_BEGINS = "-----BEGIN CERTIFICATE-----"


class Made:
    """Stores of one client, whose certificate an authority below the root has signed."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.authority = Authority(folder / "root")
        self.below = Authority(folder / "below", self.authority)
        self.identity = self.below.identity("planted", key=KEY)
        self.key, chain = self.identity.read_text().split(CHAIN_BEGINS, 1)
        self.chain = CHAIN_BEGINS + chain

    def trust(self, kind: str) -> dict[str, str]:
        """Return the options of a trust store of this ``kind`` (JKS: as without a type)."""
        store = self.folder / f"trust.{kind}"
        if not store.exists():
            trust_store(self.authority.certificate, store, kind, STORE_PASSWORD)
        given = {"kafka.ssl.truststore.location": str(store), "kafka.ssl.truststore.password": STORE_PASSWORD}
        return given if kind == "JKS" else {**given, "kafka.ssl.truststore.type": kind}

    def client(self, kind: str, key_password: str = "") -> dict[str, str]:
        """Return the options of a key store."""
        store = self.folder / f"client.{kind}{'-with-two-passwords' if key_password else ''}"
        if not store.exists():
            key_store(self.identity, store, kind, STORE_PASSWORD, key_password)
        given = {
            "kafka.ssl.keystore.location": str(store),
            "kafka.ssl.keystore.type": kind,
            "kafka.ssl.keystore.password": STORE_PASSWORD,
        }
        return {**given, "kafka.ssl.key.password": key_password} if key_password else given


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("stores"))


@pytest.mark.parametrize(
    ("trust", "client", "key_password"),
    [
        ("JKS", "PKCS12", ""),
        pytest.param("PKCS12", "JKS", PASSPHRASE, marks=pytest.mark.long),
        pytest.param("JKS", "jks", "", marks=pytest.mark.long),
    ],
)
def test_a_store_is_read_as_the_certificates_and_the_key_that_are_in_it(
    trust: str, client: str, key_password: str, made: Made
) -> None:
    """Guards against a client that trusts others than Java's, sends half of its chain, or proves another key."""
    found = Connection.from_options({**SSL, **made.trust(trust), **made.client(client, key_password)})
    assert found.stores.trust == made.authority.certificate.read_text()
    assert (found.stores.chain, found.stores.key) == (made.chain, made.key)
    found.check_login()
    assert KEY_LINE in found.stores.key, "the tests that search for secrets know it"


@pytest.mark.long
def test_a_file_without_a_type_may_be_of_either_type(made: Made) -> None:
    """Java's type JKS reads PKCS12 as well, which every keytool since Java 9 makes where nobody names a type."""
    options = {name: value for name, value in made.trust("PKCS12").items() if not name.endswith(".type")}
    assert Connection.from_options({**SSL, **options}).stores.trust == made.authority.certificate.read_text()


@pytest.mark.long
def test_a_trust_store_is_read_without_its_password_as_java_reads_it(made: Made) -> None:
    """Guards against a refusal of what works with Spark's own sink."""
    options = {name: value for name, value in made.trust("JKS").items() if not name.endswith(".password")}
    assert Connection.from_options({**SSL, **options}).stores.trust == made.authority.certificate.read_text()


def refusal(options: dict[str, str]) -> InvalidOption:
    with pytest.raises(InvalidOption) as refused:
        Connection.from_options({**SSL, **options})
    assert planted_in(str(refused.value)) == []
    return refused.value


def test_a_wrong_password_is_named_with_its_option(made: Made) -> None:
    """Mishap: Java says "keystore was tampered with", and somebody looks for the burglar."""
    trust = made.trust("JKS")
    refused = refusal({**trust, "kafka.ssl.truststore.password": WRONG})
    assert refused.what.startswith("kafka.ssl.truststore.password is not ")
    assert f" of {trust['kafka.ssl.truststore.location']}" in refused.what
    assert refused.way_out == "Correct kafka.ssl.truststore.password"


FAULTS: dict[str, tuple[dict[str, str], str, str]] = {
    "another file": (
        {"kafka.ssl.keystore.location": "/nowhere/client.p12"},
        "kafka.ssl.keystore.location=/nowhere/client.p12 is not there",
        "put the file there",
    ),
    "another type": (
        {"kafka.ssl.keystore.type": "PKCS13"},
        "kafka.ssl.keystore.type=PKCS13 is not a type of key store that this Java knows",
        "JKS, PKCS12 or PEM",
    ),
    "another password": (
        {"kafka.ssl.keystore.password": WRONG},
        "kafka.ssl.keystore.password is not the password of ",
        "Correct kafka.ssl.keystore.password",
    ),
    "another password of the key": (
        {"kafka.ssl.key.password": WRONG},
        "kafka.ssl.key.password is not the password of the private key in ",
        "Correct kafka.ssl.key.password",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("changed", "what", "way_out"), FAULTS.values(), ids=FAULTS)
def test_a_key_store_that_cannot_be_read_is_named_with_what_is_wrong(
    changed: dict[str, str], what: str, way_out: str, made: Made
) -> None:
    """Each of these is a Java exception with another word in it, or the same."""
    refused = refusal({**made.client("PKCS12"), **changed})
    assert what in refused.what and way_out in refused.way_out and refused.safe == "Nothing was written"


@pytest.mark.long
def test_a_key_store_without_a_password_of_its_own_or_of_its_key_says_which_one_is_missing(made: Made) -> None:
    """A JKS store may have a password for the key beside its own, and then needs both."""
    store = made.client("JKS", PASSPHRASE)
    whole = {name: value for name, value in store.items() if name != "kafka.ssl.keystore.password"}
    assert refusal(whole).what.startswith("kafka.ssl.keystore.password is missing")
    key = {name: value for name, value in store.items() if name != "kafka.ssl.key.password"}
    assert refusal(key).way_out == "Correct kafka.ssl.keystore.password, or set kafka.ssl.key.password"


@pytest.mark.long
def test_a_pem_file_that_is_not_declared_as_one_is_answered_with_its_type(made: Made) -> None:
    """Without a type, Java's client reads JKS: the commonest mistake with a PEM file."""
    refused = refusal({"kafka.ssl.truststore.location": str(made.authority.certificate)})
    assert "be read as JKS" in refused.what and "kafka.ssl.truststore.type" in refused.way_out


@pytest.mark.long
def test_a_store_without_a_key_or_with_two_is_refused(made: Made, tmp_path: Path) -> None:
    """Java's client would log in without a certificate; or with the key that the brokers trust, which OpenSSL cannot
    choose.
    """
    none = made.trust("PKCS12")["kafka.ssl.truststore.location"]
    assert "holds no private key" in refusal({**made.client("PKCS12"), "kafka.ssl.keystore.location": none}).what
    two = tmp_path / "two.p12"
    for name in ("one", "other"):
        key_store(made.below.identity(name), two, "PKCS12", STORE_PASSWORD)
    refused = refusal({**made.client("PKCS12"), "kafka.ssl.keystore.location": str(two)})
    assert "holds several private keys (one, other)" in refused.what and "-srcalias one" in refused.way_out
