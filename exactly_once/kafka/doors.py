"""Whether anything listens where the brokers should be: a client tries again for as long as its budget lasts."""

from __future__ import annotations

import socket

from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.connection import Connection

#: Of one address. A host that is there refuses at once; one that says nothing is left to the clients' patience.
KNOCK_S = 0.5


def check_doors(connection: Connection) -> None:
    """Refuse servers of which none can be there: each name is unknown, or its host refuses the connection.

    Raises
    ------
    BrokerUnreachable
    """
    why: list[str] = []
    for address in map(str.strip, connection.bootstrap_servers.split(",")):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), KNOCK_S):
                return
        except TimeoutError:
            return
        except (OSError, ValueError) as e:
            why.append(f"{address}: {e}")
    raise BrokerUnreachable(
        f"no broker listens at kafka.bootstrap.servers={connection.bootstrap_servers} ({'; '.join(why)})",
        "Start the brokers, or correct kafka.bootstrap.servers",
    )
