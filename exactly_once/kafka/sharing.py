"""The connections that the streams of a driver share: a few clients for each cluster, with the checks of starts and the
sinks' work over them. What one of them learns of the cluster, all know.

A broker answers one request of a connection after the other, and a write once it is on enough replicas: so a client has
a few streams, and not all. Each client is a thread and a connection to each broker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.asking import Known
from exactly_once.kafka.connection import Connection

#: Streams of a client before another one is made, and the most clients of a cluster: then clients have more streams.
STREAMS_A_CLIENT = 4
MOST_CLIENTS = 8

#: Time for which a client stays open that nobody uses: the first batch follows the check of a start.
IDLE_S = 10.0

#: Age of an answer of brokers that are there.
_HEARD_S = 5.0


@dataclass
class _Client:
    admin: Admin
    borrowers: int = 1


@dataclass
class _Cluster:
    connection: Connection
    known: Known = field(default_factory=Known)
    clients: list[_Client] = field(default_factory=list)


class Clients:
    """The clients of a process, by cluster and login. One that has failed is lent to nobody else."""

    def __init__(self, connect: Callable[[Connection, float, Known], Admin] = Admin, idle_s: float = IDLE_S) -> None:
        self._connect = connect
        self._idle_s = idle_s
        self._clusters: list[_Cluster] = []
        self._lock = threading.Lock()

    def borrow(self, connection: Connection, budget_s: float) -> Admin:
        """Return a connection whose ``close`` gives it back; raise as :class:`Admin` does."""
        with self._lock:
            cluster = self._cluster(connection)
            client = _least_used([c for c in cluster.clients if not c.admin.failed])
            if client is not None:
                client.borrowers += 1
        if client is None:  # without the lock: brokers that do not answer must not hold the other streams back
            client = _Client(self._connect(connection, budget_s, cluster.known))
            with self._lock:
                self._cluster(connection).clients.append(client)
        lent = client
        return lent.admin.lent(budget_s, lambda: self._take_back(lent))

    def has_heard(self, connection: Connection) -> bool:
        """Return whether brokers have answered one of these clients a moment ago."""
        with self._lock:
            cluster = self._cluster(connection)
            return (
                any(not c.admin.failed for c in cluster.clients)
                and time.monotonic() - cluster.known.alive[0] < _HEARD_S
            )

    def _cluster(self, connection: Connection) -> _Cluster:
        for cluster in self._clusters:
            if cluster.connection == connection:
                return cluster
        self._clusters.append(_Cluster(connection))
        return self._clusters[-1]

    def _take_back(self, client: _Client) -> None:
        with self._lock:
            client.borrowers -= 1
        if client.admin.failed:
            self._close_unused(client)
        elif not client.borrowers:
            later = threading.Timer(self._idle_s, self._close_unused, [client])
            later.daemon = True
            later.start()

    def _close_unused(self, client: _Client) -> None:
        with self._lock:
            held = [cluster for cluster in self._clusters if client in cluster.clients]
            if client.borrowers or not held:
                return
            held[0].clients.remove(client)
            self._clusters = [cluster for cluster in self._clusters if cluster.clients]
        client.admin.close()


def _least_used(clients: list[_Client]) -> _Client | None:
    """Return the client for another borrower; None where there may be one more."""
    least = min(clients, key=lambda c: c.borrowers, default=None)
    if least is None or (least.borrowers >= STREAMS_A_CLIENT and len(clients) < MOST_CLIENTS):
        return None
    return least


#: Those of this process.
CLIENTS = Clients()
