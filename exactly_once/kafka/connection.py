"""Connection settings of a cluster, given once and rendered for kafka-python, Spark's Java client and librdkafka (the
Dagster half's producers).

The user writes Kafka's own (Java) option names behind ``kafka.``, as with Spark's sink. What one of the engine's two
clients cannot do with them is refused here, before anything connects.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exactly_once.errors import InvalidOption
from exactly_once.kafka import jaas, kerberos, key_stores, servers
from exactly_once.kafka import oauth as oauthbearer
from exactly_once.kafka.jaas import Login
from exactly_once.kafka.kerberos import Kerberos
from exactly_once.kafka.key_stores import IDENTITY, KEY_PASSWORD, NO_STORES, TRUST, Stores
from exactly_once.kafka.oauth import OAuth

#: Values of ``security.protocol``.
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", kerberos.MECHANISM)

#: Option names (without ``kafka.``) that describe the connection; all others are the producer's.
OPTIONS = frozenset(
    {
        "bootstrap.servers",
        "security.protocol",
        "sasl.mechanism",
        "sasl.jaas.config",
        "sasl.username",
        "sasl.password",
        kerberos.SERVICE,
        "ssl.endpoint.identification.algorithm",
        *key_stores.OPTIONS,
        *oauthbearer.OPTIONS,
    }
)

#: Options of the connection that hold a secret.
SECRETS = ("sasl.password", "sasl.jaas.config", *key_stores.SECRETS, *oauthbearer.SECRETS)

#: Options whose values are taken as they are; around all others, Java's client takes the blanks away
#: (``ConfigDef.parseType``).
_EXACT = {"sasl.username", *SECRETS, "ssl.truststore.certificates", "ssl.keystore.certificate.chain"}

#: Options by environment variable.
VARIABLES = {
    "KAFKA_BOOTSTRAP_SERVERS": "bootstrap.servers",
    "KAFKA_SECURITY_PROTOCOL": "security.protocol",
    "KAFKA_SASL_MECHANISM": "sasl.mechanism",
    "KAFKA_SASL_USERNAME": "sasl.username",
    "KAFKA_SASL_PASSWORD": "sasl.password",
    "KAFKA_SASL_JAAS_CONFIG": "sasl.jaas.config",
    "KAFKA_SASL_KERBEROS_SERVICE_NAME": kerberos.SERVICE,
    "KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": oauthbearer.URL,
    "KAFKA_SASL_OAUTHBEARER_CLIENT_ID": oauthbearer.CLIENT_ID,
    "KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET": oauthbearer.SECRET,
    "KAFKA_SASL_OAUTHBEARER_SCOPE": oauthbearer.SCOPE,
    "KAFKA_SASL_OAUTHBEARER_TOKEN_PROVIDER": oauthbearer.PROVIDER,
    "KAFKA_SASL_LOGIN_CALLBACK_HANDLER_CLASS": oauthbearer.HANDLER,
    "KAFKA_SSL_CA_LOCATION": "ssl.truststore.location",
    "KAFKA_SSL_IDENTITY_LOCATION": "ssl.keystore.location",
    "KAFKA_SSL_KEY_PASSWORD": "ssl.key.password",
}


@dataclass(frozen=True)
class Connection:
    """Servers and security of one cluster.

    ``bootstrap_servers`` is what :func:`exactly_once.kafka.servers.plain` makes of the option of that name.
    ``ssl_ca`` is a PEM file of trusted certificates; ``ssl_identity`` a PEM file with the client's certificate chain
    and its private key; ``stores`` has what is in no such file. ``oauth`` stands in for user and password with
    OAUTHBEARER, and ``kerberos`` with GSSAPI. Secrets never appear in ``repr``.
    """

    bootstrap_servers: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    ssl_ca: str | None = None
    ssl_identity: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    check_hostname: bool = True
    oauth: OAuth | None = None
    stores: Stores = NO_STORES
    kerberos: Kerberos | None = None

    @classmethod
    def to(cls, cluster: Connection | Mapping[str, str] | str) -> Connection:
        """Return the connection to a cluster: as it is, by the options of a query (:meth:`from_options`), or without
        security by its brokers, ``host:port`` separated by commas.
        """
        if isinstance(cluster, Connection):
            return cluster
        return cls.from_options({"kafka.bootstrap.servers": cluster} if isinstance(cluster, str) else cluster)

    @classmethod
    def from_options(cls, options: Mapping[str, str], pem: Mapping[str, str] | None = None) -> Connection:
        """Read the ``kafka.*`` options of a Spark query (other keys are ignored).

        Parameters
        ----------
        pem : mapping, optional
            What Spark's JVM said of Java's key stores. Without it, a ``java`` is started for them.

        Raises
        ------
        InvalidOption
            When ``kafka.bootstrap.servers`` is missing, a setting is one that not all three clients can follow, or a
            key store cannot be read.
        """
        o = {k.lower()[6:]: v for k, v in options.items() if k.lower().startswith("kafka.")}
        o = {k: v if k in _EXACT else v.strip(servers.BLANKS) for k, v in o.items()}
        addresses = servers.read(o.get("bootstrap.servers", ""))
        protocol = o.get("security.protocol", "PLAINTEXT").upper()
        _one_of("kafka.security.protocol", protocol, PROTOCOLS)
        servers.check_protocol(addresses, protocol, PROTOCOLS)
        mechanism = user = password = oauth = ticket = None
        if protocol.startswith("SASL"):
            mechanism = o.get("sasl.mechanism", "").upper()
            _one_of("kafka.sasl.mechanism", mechanism, _MECHANISMS)
            login = jaas.read(o["sasl.jaas.config"]) if o.get("sasl.jaas.config") else None
            if mechanism == "OAUTHBEARER":
                oauth = OAuth.parse(o, login.options if login else {})
            elif mechanism == kerberos.MECHANISM:
                ticket = Kerberos.parse(o, login)
            else:
                user, password = _user(o, login)
        return cls(
            bootstrap_servers=",".join(map(str, addresses)),
            security_protocol=protocol,
            sasl_mechanism=mechanism,
            sasl_username=user,
            sasl_password=password,
            ssl_ca=key_stores.file_of(TRUST, o),
            ssl_identity=key_stores.file_of(IDENTITY, o),
            # a key that Java hands out is no longer encrypted
            ssl_key_password=None if key_stores.is_javas(IDENTITY, o) else o.get(KEY_PASSWORD),
            check_hostname=o.get("ssl.endpoint.identification.algorithm", "https") != "",
            oauth=oauth,
            stores=key_stores.parse(o, protocol.endswith("SSL"), pem),
            kerberos=ticket,
        )

    @classmethod
    def from_environment(cls, default_servers: str | None = None) -> Connection:
        """Read the variables of :func:`environment_options`; ``default_servers`` stand in for missing servers."""
        return cls.from_options({servers.OPTION: default_servers or "", **environment_options()})

    @property
    def secrets(self) -> tuple[str | None, ...]:
        """The values that ``repr`` leaves out."""
        of_stores = (value for name, value in self.stores.options if name in key_stores.SECRETS)
        of_oauth = self.oauth.secrets if self.oauth else ()
        return self.sasl_password, self.ssl_key_password, *of_oauth, self.stores.key, *of_stores

    def check_login(self) -> None:
        """Make sure that there is a token or a ticket, where clients log in with one, and that certificates and key can
        be read: no client says why they cannot.

        Raises BrokerUnreachable, NotAuthorized, InvalidOption, or ExtraMissing without the package for Kerberos.
        """
        if self.oauth is not None:
            oauthbearer.tokens_of(self.oauth).current()
        if self.kerberos is not None:
            self.kerberos.check()
        if self.security_protocol.endswith("SSL"):
            self._context()

    def _context(self) -> ssl.SSLContext:
        """Return what kafka-python makes of files, from texts too; raise InvalidOption for what cannot be read."""
        # a file may have been renewed, but a text stays as it is: its key is written to a file once
        return _kept_context(self) if self.stores.key and not (self.ssl_ca or self.ssl_identity) else self._read()

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        store, password = TRUST, self.ssl_key_password or ""  # without one, OpenSSL would ask the terminal for it
        try:
            if self.stores.trust:
                context.load_verify_locations(cadata=self.stores.trust)
            elif self.ssl_ca:
                context.load_verify_locations(self.ssl_ca)
            else:
                context.load_default_certs()
            store = IDENTITY
            if self.stores.key:
                with key_stores.as_file(self.stores.chain + self.stores.key) as file:
                    context.load_cert_chain(file, password=password)
            elif self.ssl_identity:
                context.load_cert_chain(self.ssl_identity, password=password)
        except OSError as e:  # an error of OpenSSL is one too
            raise key_stores.unusable(store, dict(self.stores.options), e) from None
        return context

    def librdkafka(self) -> dict[str, Any]:
        """Return the connection for confluent-kafka clients.

        None of them makes a topic by naming it, as a producer does by default where the brokers allow it: a topic that
        was deleted would come back empty, with the brokers' number of partitions.

        Raises
        ------
        BrokerUnreachable, NotAuthorized
            As :meth:`check_login` does.
        InvalidOption
            As it does, and for Kerberos.
        """
        if self.kerberos is not None:
            raise InvalidOption(
                f"kafka.sasl.mechanism={kerberos.MECHANISM}, but a producer of confluent-kafka cannot log in so: its "
                "wheels (2.16) are built without GSSAPI",
                "Write with a stream or with write, whose clients can, or give this producer another login",
            )
        self.check_login()
        c: dict[str, Any] = {
            "allow.auto.create.topics": False,
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol.lower(),
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": self.sasl_password,
            "ssl.ca.location": self.ssl_ca,
            "ssl.certificate.location": self.ssl_identity,
            "ssl.key.location": self.ssl_identity,
            "ssl.key.password": self.ssl_key_password,
            "ssl.ca.pem": self.stores.trust or None,
            "ssl.certificate.pem": self.stores.chain or None,
            "ssl.key.pem": self.stores.key or None,
        }
        if not self.check_hostname:
            c["ssl.endpoint.identification.algorithm"] = "none"
        login = self.oauth.librdkafka() if self.oauth else {}
        return {**{k: v for k, v in c.items() if v is not None}, **login}

    def kafka_python(self) -> dict[str, Any]:
        """Return the connection for kafka-python clients; raise InvalidOption for PEM that cannot be read."""
        c: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": self.security_protocol,
            "sasl_mechanism": self.sasl_mechanism,
            "sasl_plain_username": self.sasl_username,
            "sasl_plain_password": self.sasl_password,
            "ssl_cafile": self.ssl_ca,
            "ssl_certfile": self.ssl_identity,
            "ssl_keyfile": self.ssl_identity,
            "ssl_password": self.ssl_key_password,
            "ssl_context": self._context() if self.stores.trust or self.stores.key else None,
        }
        source = self.oauth or self.kerberos
        login = source.kafka_python() if source else {}
        return {**{k: v for k, v in c.items() if v is not None}, "ssl_check_hostname": self.check_hostname, **login}

    def spark(self) -> dict[str, str]:
        """Return the connection for Spark's Kafka source and sink: options with the prefix ``kafka.``."""
        c: dict[str, str] = {"bootstrap.servers": self.bootstrap_servers, "security.protocol": self.security_protocol}
        if self.oauth is not None:
            c |= {"sasl.mechanism": "OAUTHBEARER", **self.oauth.spark()}
        elif self.kerberos is not None:
            c |= {"sasl.mechanism": kerberos.MECHANISM, **self.kerberos.spark()}
        elif self.sasl_mechanism:
            module = "plain.PlainLoginModule" if self.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
            c["sasl.mechanism"] = self.sasl_mechanism
            c["sasl.jaas.config"] = (
                f"org.apache.kafka.common.security.{module} required "
                f"username={jaas.quoted(self.sasl_username)} password={jaas.quoted(self.sasl_password)};"
            )
        if self.ssl_ca:
            c |= {"ssl.truststore.location": self.ssl_ca, "ssl.truststore.type": "PEM"}
        if self.ssl_identity:
            c |= {"ssl.keystore.location": self.ssl_identity, "ssl.keystore.type": "PEM"}
        c |= self.stores.options
        if self.ssl_key_password:
            c[KEY_PASSWORD] = self.ssl_key_password
        if not self.check_hostname:
            c["ssl.endpoint.identification.algorithm"] = ""
        return {f"kafka.{k}": v for k, v in c.items()}

    def java(self) -> dict[str, str]:
        """Return the connection for Kafka's Java clients; raise InvalidOption when tokens come from a Python function,
        which Java cannot call.
        """
        c = {option.removeprefix("kafka."): value for option, value in self.spark().items()}
        if c.pop(oauthbearer.PROVIDER, None) and oauthbearer.HANDLER not in c:
            raise InvalidOption(
                f"kafka.{oauthbearer.PROVIDER} names a Python function, which Java's producers in the executors cannot "
                "call",
                f"Set kafka.{oauthbearer.HANDLER} to a Java class that gets tokens from the same source, as for "
                "Spark's own Kafka source",
            )
        return c


@functools.lru_cache(maxsize=8)
def _kept_context(connection: Connection) -> ssl.SSLContext:
    return connection._read()


def environment_options() -> dict[str, str]:
    """Return the options of a connection that environment variables set: ``KAFKA_BOOTSTRAP_SERVERS`` and, with
    security, the others of :data:`VARIABLES`. An empty variable is one that is not set.
    """
    pem = {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.keystore.type": "PEM"}
    return {**pem, **{f"kafka.{option}": os.environ[v] for v, option in VARIABLES.items() if os.environ.get(v)}}


def unset(variable: str) -> str:
    """Say that an environment variable has no value, and whether it is there at all."""
    return f"{variable} is {'empty' if variable in os.environ else 'not set'}"


def _user(options: Mapping[str, str], login: Login | None) -> tuple[str, str]:
    """Return user name and password."""
    given = login.options if login else {}
    if given.get("tokenauth", "").lower() == "true":
        raise InvalidOption(
            f"{jaas.OPTION} logs in with a delegation token (tokenauth), which not all clients of the sink can use",
            "Log in with a user of SCRAM",
        )
    user = options.get("sasl.username") or given.get("username")
    password = options.get("sasl.password") or given.get("password")
    if not user or password is None:
        lacks = "password" if user else "username"
        raise InvalidOption(
            f"{jaas.OPTION} has no {lacks}; it has: {login.names}"
            if login
            else "the SASL user name or password is missing",
            f'Set {jaas.OPTION} to ...LoginModule required username="..." password="...";',
        )
    return user, password


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidOption(f"{option}={value!r} is not supported", f"Use one of {', '.join(allowed)}")
