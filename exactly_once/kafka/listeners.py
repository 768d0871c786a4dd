"""Ask each bootstrap address whether anything listens there, and in two round trips which protocol it speaks.

A client of another protocol gets no answer that tells it why, and tries again for as long as its budget lasts.
"""

from __future__ import annotations

import socket
import ssl
import struct
from typing import NamedTuple

from exactly_once.errors import BrokerUnreachable, InvalidOption
from exactly_once.kafka import servers
from exactly_once.kafka.connection import PROTOCOLS, Connection
from exactly_once.kafka.servers import Address

#: Longest wait for one address. A host that is there refuses at once; one that says nothing is left to the clients'
#: patience.
PROBE_S = 0.5

#: Request SaslHandshake, version 1, for the mechanism PLAIN: a broker answers it before a login, and says whether it
#: wants one.
_HANDSHAKE = struct.pack(">hhihh5s", 17, 1, _CORRELATION := 0x0E05, -1, 5, b"PLAIN")

#: The codes that answer it: the mechanism can be had, or another one can, or there is no login.
_WANTS_LOGIN = {0: True, 33: True, 34: False}

#: Words of OpenSSL about an answer that is no TLS.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


class Spoken(NamedTuple):
    """The protocol that a listener speaks; ``sasl`` is None where it does not say, as behind TLS."""

    tls: bool
    sasl: bool | None

    def fits(self, protocol: str) -> bool:
        """Return whether a client with this ``security.protocol`` may be understood."""
        return self.tls == protocol.endswith("SSL") and self.sasl in (None, protocol.startswith("SASL"))

    def __str__(self) -> str:
        """Return the protocols that it may be."""
        return " or ".join(p for p in PROTOCOLS if self.fits(p))


#: The protocol of what answered, but not with TLS.
_NOT_TLS = Spoken(tls=False, sasl=None)


def check_listeners(connection: Connection) -> None:
    """Refuse servers of which none can be there: each name is unknown, its host refuses the connection, or what listens
    speaks another protocol than ``security.protocol``.

    Raises
    ------
    InvalidOption
        For another protocol; and for an address without a port: Java's client refuses it, and the others guess one.
    BrokerUnreachable
    """
    why: list[str] = []
    others: dict[Address, Spoken] = {}
    for address in servers.read(connection.bootstrap_servers):
        try:
            spoken = spoken_at(address.host, address.port, connection.security_protocol, PROBE_S)
        except TimeoutError:
            return
        except OSError as e:
            why.append(f"{address}: {e.strerror or e}")
            continue
        if spoken is None or spoken.fits(connection.security_protocol):
            return
        others[address] = spoken
    for address, spoken in others.items():
        raise _other_protocol(connection.security_protocol, address, spoken)
    raise BrokerUnreachable(
        f"no broker listens at kafka.bootstrap.servers={connection.bootstrap_servers} ({'; '.join(why)})",
        "Start the brokers, or correct kafka.bootstrap.servers",
    )


def _other_protocol(protocol: str, address: Address, spoken: Spoken) -> InvalidOption:
    speaks = "does not speak TLS" if spoken == (False, None) else f"speaks {spoken}"
    return InvalidOption(
        f"kafka.security.protocol={protocol}, but the listener at {address} {speaks}",
        f"Set kafka.security.protocol={spoken}, or correct kafka.bootstrap.servers",
    )


# -- one listener ------------------------------------------------------------------------------------------------------


def spoken_at(host: str, port: int, protocol: str, patience_s: float) -> Spoken | None:
    """Ask a listener what it speaks, first as a client with this ``security.protocol`` would.

    Returns
    -------
    Spoken or None
        None where nobody can tell: it answers nothing within ``patience_s``, or closes the connection whatever it is
        asked, as a proxy does while its broker is down.

    Raises
    ------
    OSError
        When nothing listens there.
    """
    first, other = (_by_tls, _by_login) if protocol.endswith("SSL") else (_by_login, _by_tls)
    with socket.create_connection((host, port), patience_s) as line:
        try:
            found = first(line, host)
        except TimeoutError:
            return None
    if found not in (None, _NOT_TLS):
        return found
    try:
        with socket.create_connection((host, port), patience_s) as line:
            return other(line, host) or found
    except OSError:
        return found


def _by_tls(line: socket.socket, host: str) -> Spoken | None:
    """Begin with TLS, and trust every certificate: no secret is sent. None: it closed the connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with context.wrap_socket(line, server_hostname=host):
            return Spoken(tls=True, sasl=None)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError):
        return None
    except ssl.SSLError as e:  # a listener that wants a certificate may refuse: it speaks TLS
        return _NOT_TLS if e.reason in _NO_TLS else Spoken(tls=True, sasl=None)


def _by_login(line: socket.socket, host: str) -> Spoken | None:
    """Ask without TLS which logins there are. None: the answer is not a broker's."""
    try:
        line.sendall(struct.pack(">i", len(_HANDSHAKE)) + _HANDSHAKE)
        with line.makefile("rb") as answers:
            answer = answers.read(10)
    except ConnectionError:
        return None
    if len(answer) < 10:
        return None
    _, correlation, code = struct.unpack(">iih", answer)
    return Spoken(tls=False, sasl=_WANTS_LOGIN.get(code)) if correlation == _CORRELATION else None
