"""A broker behind TLS: certificates of a test's own authority, one listener for each way to log in."""

from __future__ import annotations

import ipaddress
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

USER, PASSWORD = "writer", "s3cret-\"quoted\"-'one'"

#: Of the private key of :meth:`SecureBroker.connection`.
PASSPHRASE = "opens-the-key-5e"

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
    """Signs certificates for this machine; everything is a PEM file in ``folder``."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the tests' authority")])
        self.certificate = folder / "authority.pem"
        made = self._build(self._name, self._key, authority=True)
        self.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def identity(self, name: str, passphrase: str = "", lasts: timedelta | None = None) -> Path:
        """Return a private key and the certificate of ``name``, valid for this machine's loopback address.

        With ``lasts`` new ones, in place of the old ones.
        """
        path = self._folder / f"{name}.pem"
        if lasts is not None or not path.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
            made = self._build(subject, key, authority=False, lasts=lasts or _DAY)
            plain = serialization.NoEncryption()
            private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
            if passphrase:  # in the one way that Java reads, too: not PBES2, which is what cryptography makes
                command = ["openssl", "pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES", "-passout", f"pass:{passphrase}"]
                private = subprocess.run(command, input=private, capture_output=True, check=True).stdout
            path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
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
