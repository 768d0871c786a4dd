"""A broker behind TLS: certificates of a test's own authority, one listener for each way to log in."""

from __future__ import annotations

import ipaddress
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.ports import HOST, free_port
from testkit.broker import FAST_TIME_OUTS
from testkit.key_stores import key_store, trust_store

USER, PASSWORD = "writer", "s3cret-\"quoted\"-'one'"

#: Of the private key of :meth:`SecureBroker.connection`.
PASSPHRASE = "opens-the-key-5e"

#: Of the Java key stores of :meth:`SecureBroker.stores`.
STORE_PASSWORD = "opens-the-store-7c"

#: Of the client of :meth:`SecureBroker.stores`: always the same one, so that a search can find it.
KEY = ec.derive_private_key(int.from_bytes(b"the planted private key of 256 b"), ec.SECP256R1())

#: The formats of trust and key stores.
FILES, TEXTS, JAVAS = "PEM files", "PEM as text", "Java key stores"
STORE_FORMATS = (FILES, TEXTS, JAVAS)

#: The ways to log in: TLS with a user and a password, with a salted challenge, with a certificate.
PLAIN, SCRAM, CERTIFICATE = "SASL_SSL with PLAIN", "SASL_SSL with SCRAM-SHA-512", "mutual TLS"
WAYS = (PLAIN, SCRAM, CERTIFICATE)

_LISTENERS = {PLAIN: "PASSWORDS", SCRAM: "SCRAMS", CERTIFICATE: "CERTIFICATES"}

_DAY = timedelta(days=1)


class SecureBroker(EmbeddedBroker):
    """One node with a listener for each of :data:`WAYS` beside the plain one, over which the cluster is set up."""

    def __init__(self, data_dir: Path):
        super().__init__(data_dir, properties=FAST_TIME_OUTS)
        self._authority = Authority(data_dir / "certificates")
        self._below = Authority(data_dir / "below", self._authority)
        self._secure: dict[str, int] = {}

    def start(self) -> SecureBroker:
        """Start it, and make the user."""
        super().start()
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        credentials = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        user = UserScramCredentialUpsertion(USER, credentials, PASSWORD.encode())
        for made in admin.alter_user_scram_credentials([user]).values():
            made.result(30)
        return self

    def connection(self, way: str, password: str = PASSWORD, passphrase: str = "") -> Connection:
        """Return the options of a client that comes in by ``way``.

        With a ``passphrase``, with a certificate besides, whose key it opens.
        """
        options = {
            "kafka.bootstrap.servers": f"{HOST}:{self._secure[way]}",
            "kafka.ssl.truststore.location": str(self._authority.certificate),
            "kafka.ssl.truststore.type": "PEM",
        }
        if way == CERTIFICATE:
            identity = {
                "kafka.ssl.keystore.location": str(self._authority.identity("client")),
                "kafka.ssl.keystore.type": "PEM",
            }
            return Connection.from_options({**options, **identity, "kafka.security.protocol": "SSL"})
        login = {"kafka.sasl.username": USER, "kafka.sasl.password": password}
        mechanism = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": way.rpartition(" ")[2]}
        key = {
            "kafka.ssl.keystore.location": str(self._authority.identity("locked", PASSPHRASE)),
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.key.password": passphrase,
        }
        return Connection.from_options({**options, **login, **mechanism, **(key if passphrase else {})})

    def mutual(self, form: str) -> dict[str, str]:
        """Return the options of a client that comes in by :data:`CERTIFICATE`, with its stores in this ``form``."""
        servers = {"kafka.bootstrap.servers": f"{HOST}:{self._secure[CERTIFICATE]}", "kafka.security.protocol": "SSL"}
        return {**servers, **self.stores(form)}

    def stores(self, form: str) -> dict[str, str]:
        """Return the options of trust and key store alone. An authority below the one that brokers know has signed the
        client's certificate: they must get the whole chain.
        """
        identity, ca = self._below.identity("planted", key=KEY), self._authority.certificate
        if form == JAVAS:
            return {
                "kafka.ssl.truststore.location": str(self._store("trust.jks", ca)),  # JKS, as without a type
                "kafka.ssl.truststore.password": STORE_PASSWORD,
                "kafka.ssl.keystore.location": str(self._store("identity.p12", identity)),
                "kafka.ssl.keystore.type": "PKCS12",
                "kafka.ssl.keystore.password": STORE_PASSWORD,
            }
        pem = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.keystore.type": "PEM"}
        if form == FILES:
            return {
                **pem,
                "kafka.ssl.truststore.location": str(ca),
                "kafka.ssl.keystore.location": str(identity),
            }
        key, chain = identity.read_text().split("-----BEGIN CERTIFICATE-----", 1)
        return {
            **pem,
            "kafka.ssl.truststore.certificates": ca.read_text(),
            "kafka.ssl.keystore.certificate.chain": f"-----BEGIN CERTIFICATE-----{chain}",
            "kafka.ssl.keystore.key": key,
        }

    def _store(self, name: str, pem: Path) -> Path:
        store = self._authority.certificate.with_name(name)
        if store.exists():
            return store
        if name.endswith(".jks"):
            return trust_store(pem, store, "JKS", STORE_PASSWORD)
        return key_store(pem, store, "PKCS12", STORE_PASSWORD)

    def renew_certificate(self, lasts: timedelta = _DAY) -> datetime:
        """Give the client of :data:`CERTIFICATE` a new certificate, in the file that it has; returns when it ends."""
        self._authority.identity("client", lasts=lasts)
        return datetime.now(UTC) + lasts

    def _settings(self, number: int) -> dict[str, str]:
        settings = super()._settings(number)
        taken = {port for pair in self._ports.values() for port in pair}
        for way in WAYS:
            if way not in self._secure:
                self._secure[way] = free_port(taken | set(self._secure.values()))
        names = [(_LISTENERS[way], port) for way, port in self._secure.items()]
        listeners = "".join(f",{name}://{HOST}:{port}" for name, port in names)
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")
        return settings | {
            "listeners": settings["listeners"] + listeners,
            "listener.security.protocol.map": settings["listener.security.protocol.map"]
            + ",PASSWORDS:SASL_SSL,SCRAMS:SASL_SSL,CERTIFICATES:SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._authority.identity("broker")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._authority.certificate),
            "listener.name.certificates.ssl.client.auth": "required",
            "listener.name.passwords.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.passwords.plain.sasl.jaas.config": f'{plain} user_{USER}="{escaped}";',
            "listener.name.scrams.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.scrams.scram-sha-512.sasl.jaas.config": scram,
        }


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, without a password."""
    plain = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)


#: What an authority's certificate must say that it is for.
_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Signs certificates for this machine; everything is a PEM file in ``folder``. Its own certificate is signed by
    ``above``, or by itself.
    """

    def __init__(self, folder: Path, above: Authority | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"the tests' authority in {folder.name}")])
        self.certificate = folder / "authority.pem"
        made = (above or self)._build(self._name, self._key, authority=True)
        self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        self._chain = b"" if above is None else self.certificate.read_bytes()

    def identity(
        self,
        name: str,
        passphrase: str = "",
        lasts: timedelta | None = None,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> Path:
        """Return a private key and the certificates of ``name``, valid for this machine's loopback address.

        With ``lasts`` new ones, in place of the old ones.
        """
        path = self._folder / f"{name}.pem"
        if lasts is not None or not path.exists():
            key = key or ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
            made = self._build(subject, key, authority=False, lasts=lasts or _DAY)
            private = pem_of(key)
            if passphrase:  # in the one way that Java reads, too: not PBES2, which is what cryptography makes
                command = ["openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passout", "env:PASSPHRASE"]
                said = {**os.environ, "PASSPHRASE": passphrase}  # another test may watch all command lines
                private = subprocess.run(command, input=private, env=said, capture_output=True, check=True).stdout
            path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM) + self._chain)
        return path

    def _build(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, authority: bool, lasts: timedelta = _DAY
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + lasts)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            # both are asked for by Python 3.13's default context, which is strict about RFC 5280
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if authority:
            builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
        else:
            address = x509.IPAddress(ipaddress.ip_address(HOST))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return builder.sign(self._key, hashes.SHA256())
