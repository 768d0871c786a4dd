"""SASL/GSSAPI: who logs in, said once in the words of Java's ``Krb5LoginModule`` and rendered for kafka-python, too.

Java's module reads a keytab or a ticket cache. So does MIT's Kerberos, which the package ``gssapi`` calls, in the
driver's Python: it gets tickets from the keytab into the memory of the process, and new ones before they expire.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from exactly_once.errors import BrokerUnreachable, ExactlyOnceError, ExtraMissing, InvalidOption, NotAuthorized
from exactly_once.kafka import jaas
from exactly_once.kafka.jaas import Login

MECHANISM = "GSSAPI"

#: Option name, without ``kafka.``.
SERVICE = "sasl.kerberos.service.name"

_WAY_OUT = (
    f"Set {jaas.OPTION} to {jaas.KERBEROS} required useKeyTab=true "
    'keyTab="/path/on/every/host" principal="name@REALM"; or to one with useTicketCache=true'
)

#: Why a ticket is missing that may come, as MIT's library numbers it: no KDC answers, or its name has no address.
_MAY_PASS = (-1765328228 % 2**32, -1765328230 % 2**32)

#: The answer to the brokers' last question (RFC 4752, 3.1): no layer but the login itself, and no other identity.
_LOGIN_ONLY = b"\x01\x00\x00\x00"


@dataclass(frozen=True)
class Kerberos:
    """A login to the brokers' ``service``: of ``principal`` with the keys of ``keytab``, or of the owner of a ticket in
    ``cache``, "" for the system's own.

    ``login`` has the options of the JAAS configuration, names and values, for Java. No field is a secret.
    """

    service: str
    principal: str = ""
    keytab: str = ""
    cache: str = ""
    login: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, options: Mapping[str, str], login: Login | None) -> Kerberos:
        """Read options without ``kafka.`` and the JAAS configuration; raise InvalidOption for what not all clients can
        follow.
        """
        if login is None or login.module != jaas.KERBEROS:
            named = f"names {login.module}" if login else "is missing"
            raise InvalidOption(f"kafka.sasl.mechanism={MECHANISM}, but {jaas.OPTION} {named}", _WAY_OUT)
        given = login.options
        service = options.get(SERVICE) or given.get("serviceName", "")
        if not service or given.get("serviceName", service) != service:
            what = f"differs from serviceName in {jaas.OPTION}" if service else "is missing"
            raise InvalidOption(
                f"kafka.{SERVICE} {what}",
                f"Set kafka.{SERVICE} to the first part of the brokers' principal: kafka for kafka/host@REALM",
            )
        keytab, principal = given.get("keyTab", ""), given.get("principal", "")
        if _is_true(given, "useKeyTab"):
            if not keytab or not principal:
                lacks = "principal" if keytab else "keyTab"
                raise InvalidOption(f"{jaas.OPTION} has no {lacks}; it has: {login.names}", _WAY_OUT)
            return cls(service, principal, keytab.removeprefix("FILE:"), "", tuple(given.items()))
        if not _is_true(given, "useTicketCache"):
            raise InvalidOption(
                f"{jaas.OPTION} has neither useKeyTab=true nor useTicketCache=true; it has: {login.names}", _WAY_OUT
            )
        return cls(service, principal, "", given.get("ticketCache", ""), tuple(given.items()))

    def check(self) -> None:
        """Make sure that there is a ticket.

        Raises
        ------
        ExtraMissing
            The package gssapi cannot be imported.
        NotAuthorized
            The keytab cannot be read, or does not open the principal; or the cache has no valid ticket.
        BrokerUnreachable
            No KDC answers.
        """
        self._credentials()

    def kafka_python(self) -> dict[str, Any]:
        """Return the settings of kafka-python clients."""
        from kafka.net.sasl import register_sasl_mechanism  # options are read where there is no client
        from kafka.net.sasl.abc import SaslMechanism

        SaslMechanism.register(_Exchange)
        register_sasl_mechanism(MECHANISM, _mechanism, overwrite=True)
        return {"sasl_kerberos_name": self}

    def spark(self) -> dict[str, str]:
        """Return the settings of Java's client."""
        options = "".join(f" {jaas.word(name)}={jaas.quoted(value)}" for name, value in self.login)
        return {"sasl.jaas.config": f"{jaas.KERBEROS} required{options};", SERVICE: self.service}

    def context(self, host: str) -> Any:
        """Return the client's side of a login to the broker at ``host``; raise as :meth:`check` does."""
        credentials, gssapi = self._credentials(), _gssapi()
        broker = gssapi.Name(f"{self.service}@{host}", gssapi.NameType.hostbased_service)
        return gssapi.SecurityContext(name=broker, creds=credentials, mech=gssapi.MechType.kerberos, usage="initiate")

    def _credentials(self) -> Any:
        """Return what a login needs, new each time: what is kept is the ticket, and replaced when it is old."""
        gssapi = _gssapi()
        if self.keytab:
            if not os.access(self.keytab, os.R_OK):
                raise NotAuthorized(f"the keytab {self.keytab} cannot be read on this host", _WAY_OUT)
            store = {"client_keytab": self.keytab, "ccache": f"MEMORY:{self.principal} {self.keytab}"}
        else:
            store = {"ccache": self.cache} if self.cache else {}
        try:
            name = gssapi.Name(self.principal, gssapi.NameType.kerberos_principal) if self.principal else None
            credentials = gssapi.Credentials(name=name, usage="initiate", store=store or None)
            _ = credentials.lifetime  # a cache is first read here
        except gssapi.exceptions.GSSError as e:
            raise self.error(e) from e
        return credentials

    def error(self, e: Any) -> ExactlyOnceError:
        """Return the error of a login that failed with gssapi's ``e``, before the brokers had a say."""
        why = sentence_of(e)
        who = f"{self.principal} with the keytab {self.keytab}" if self.keytab else self.principal or "the ticket cache"
        if e.min_code in _MAY_PASS:
            return BrokerUnreachable(
                f"no KDC gives a ticket for {who}: {why}",
                "Correct /etc/krb5.conf (KRB5_CONFIG) or the network; start again, unchanged, once the KDC answers",
            )
        return NotAuthorized(
            f"Kerberos gives no ticket for {who}: {why}",
            f"Correct principal and keyTab in {jaas.OPTION}: klist -k lists what a keytab has"
            if self.keytab
            else "Get a ticket on this host (kinit), or log in with a keytab, which needs no renewal by hand",
        )


def sentence_of(e: Any) -> str:
    """Return what Kerberos says of gssapi's error ``e``; of a ticket that has expired it says "Success"."""
    if isinstance(e, _gssapi().exceptions.ExpiredCredentialsError):
        return "the ticket has expired"
    return str(e).rpartition("): ")[2]


def _is_true(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "").lower() == "true"


def _gssapi() -> Any:
    try:
        import gssapi
    except (ImportError, OSError) as e:  # the second one from a system without a library of Kerberos
        raise ExtraMissing(
            f"kafka.sasl.mechanism={MECHANISM} needs gssapi on the driver, which cannot be imported here ({e})",
            "Install the extra where the driver or the command runs: pip install "
            "'pyspark-kafka-exactly-once[kerberos]'; pip compiles it against the system's Kerberos (libkrb5-dev)",
        ) from e
    return gssapi


def _mechanism(**config: Any) -> Any:
    """Return what kafka-python logs in with: our exchange, and its own for a client that is not the sink's."""
    from kafka.net.sasl.gssapi import SaslMechanismGSSAPI

    ours = isinstance(config.get("sasl_kerberos_name"), Kerberos)
    return _Exchange(config["sasl_kerberos_name"], config["host"]) if ours else SaslMechanismGSSAPI(**config)


class _Exchange:
    """One login by RFC 4752 as kafka-python drives it. Its own takes credentials from nowhere but the environment of
    the process, which one principal has.
    """

    def __init__(self, kerberos: Kerberos, host: str):
        from kafka.errors import KafkaConnectionError

        self._service = f"{kerberos.service}@{host}"
        try:
            self._context = kerberos.context(host)
        except ExactlyOnceError as e:
            raise KafkaConnectionError(e.what) from e  # its client tries again, and the sink asks for the cause
        self._answered = self._done = False
        self._next = self._step(None)

    def auth_bytes(self) -> bytes:
        """Return what goes to the broker next."""
        self._done = self._answered
        return self._next

    def receive(self, auth_bytes: bytes) -> None:
        """Take the broker's answer; nothing more comes after the last one."""
        if not self._answered:
            self._next = self._step(auth_bytes)

    def is_done(self) -> bool:
        """Return whether both sides have said all."""
        return self._done

    def is_authenticated(self) -> bool:
        """Return whether the broker is who it should be, and has what it needs to know who the client is."""
        return self._answered

    def auth_details(self) -> str:
        """Return who has logged in, for the log of the client."""
        return f"{self._context.initiator_name} logged in to {self._service} by Kerberos"

    def _step(self, answer: bytes | None) -> bytes:
        from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError

        try:
            if not self._context.complete:
                return self._context.step(answer) or b""
            self._context.unwrap(answer)
            self._answered = True
            return bytes(self._context.wrap(_LOGIN_ONLY, False).message)
        except _gssapi().exceptions.GSSError as e:
            kind = KafkaConnectionError if e.min_code in _MAY_PASS else SaslAuthenticationFailedError
            raise kind(f"Kerberos gives no ticket for {self._service}: {sentence_of(e)}") from e
