"""The text of ``bootstrap.servers``, read as Kafka's Java clients read it (``Utils.getHost`` of kafka-clients 4.3).

Entries stand between commas, with or without blanks. A protocol or a listener's name may stand before ``://``, where
consoles write it; no client looks at it. An empty entry is skipped, as by clients before 4.1. The other two clients
know none of this: they get :func:`plain`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from exactly_once.errors import InvalidOption

OPTION = "kafka.bootstrap.servers"

_ADDRESS = re.compile(r"(?:([0-9a-zA-Z\-%._]*)://)?\[?([0-9a-zA-Z\-%._:]+)\]?:([0-9]+)")
_LARGEST_PORT = 65535

#: Characters that Java's ``trim`` takes off; Python's ``strip`` takes more, such as the no-break space of a page that
#: was copied.
BLANKS = "".join(map(chr, range(0x21)))


class Address(NamedTuple):
    """One entry; ``protocol`` is what stands before ``://``, in upper case, or ""."""

    host: str
    port: int
    protocol: str = ""

    def __str__(self) -> str:
        """Return ``host:port`` as every client reads it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read(text: str) -> list[Address]:
    """Return the addresses in ``text``, each one once.

    Raises
    ------
    InvalidOption
        There is none, or one is not ``host:port``: Java's client refuses it, and the others guess.
    """
    found = {
        str(a): a for entry in text.split(",") if entry.strip(BLANKS) for a in [_address(entry.strip(BLANKS), text)]
    }
    if not found:
        raise InvalidOption(
            f"{OPTION} is missing, so the sink does not know which cluster it writes to",
            f"Set the option {OPTION} to host:port of one broker or of several, separated by commas",
        )
    return list(found.values())


def plain(text: str) -> str:
    """Return ``text`` as ``host:port``, separated by commas: every client reads that alike. Raise as :func:`read`."""
    return ",".join(map(str, read(text)))


def shown(text: str) -> str:
    """Return :func:`plain`, or ``text`` itself where that raises: for a text that only names a cluster."""
    try:
        return plain(text)
    except InvalidOption:
        return text


def check_protocol(addresses: list[Address], protocol: str, names: tuple[str, ...]) -> None:
    """Raise InvalidOption for an address whose protocol, one of ``names``, is not security.protocol: Java's client
    would ignore it, and wait for an answer in the other one.
    """
    for address in addresses:
        if address.protocol in names and address.protocol != protocol:
            raise InvalidOption(
                f"{OPTION} names {address} with {address.protocol}://, but kafka.security.protocol is {protocol}",
                f"Set kafka.security.protocol={address.protocol}, or write {address} alone",
            )


def _address(entry: str, text: str) -> Address:
    match = _ADDRESS.fullmatch(entry)
    if match is None:
        raise InvalidOption(
            f"{OPTION}={text} names {entry!r}, which has no port, or is not host:port",
            "Write host:port, such as broker-1:9092; an address of IPv6 as [::1]:9092",
        )
    if int(match[3]) > _LARGEST_PORT:
        raise InvalidOption(
            f"{OPTION}={text} names {entry!r}, whose port is above {_LARGEST_PORT}", "Correct the port of the address"
        )
    return Address(match[2], int(match[3]), (match[1] or "").upper())
