"""Ask each bootstrap address whether anything listens there and speaks the client's protocol.

A client by itself tries again for as long as its budget lasts.
"""

from __future__ import annotations

from exactly_once.errors import BrokerUnreachable, InvalidOption
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.listener import Spoken, spoken_at

#: Of one address. A host that is there refuses at once; one that says nothing is left to the clients' patience.
KNOCK_S = 0.5


def check_doors(connection: Connection) -> None:
    """Refuse servers of which none can be there: each name is unknown, its host refuses the connection, or what listens
    speaks another protocol than ``security.protocol``.

    Raises
    ------
    InvalidOption
        For another protocol; and for an address without a port: Java's client refuses it, and the others guess one.
    BrokerUnreachable
    """
    why: list[str] = []
    others: dict[str, Spoken] = {}
    for address, host, port in _addresses(connection.bootstrap_servers):
        try:
            spoken = spoken_at(host, port, connection.security_protocol, KNOCK_S)
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


def _other_protocol(protocol: str, address: str, spoken: Spoken) -> InvalidOption:
    speaks = "does not speak TLS" if spoken == (False, None) else f"speaks {spoken}"
    return InvalidOption(
        f"kafka.security.protocol={protocol}, but the listener at {address} {speaks}",
        f"Set kafka.security.protocol={spoken}, or correct kafka.bootstrap.servers",
    )


def _addresses(servers: str) -> list[tuple[str, str, int]]:
    """Return each address as it is written, its host and its port."""
    found: list[tuple[str, str, int]] = []
    for address in filter(None, map(str.strip, servers.split(","))):
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and int(port) < 1 << 16):
            raise InvalidOption(
                f"kafka.bootstrap.servers={servers} names {address!r}, which has no port",
                "Write host:port, such as broker-1:9092",
            )
        found.append((address, host.strip("[]"), int(port)))
    return found
