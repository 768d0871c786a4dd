"""The connections that the streams of a driver share: a few clients for each cluster, with the checks of starts and the
sinks' work over them. What one of them learns of the cluster, all know.

Each client is a thread and a connection to each broker. A broker answers one request of a connection after the other,
and a write once it is on enough replicas: so a client has a few streams, which may wait for each other's writes, and
not all. A request without an answer closes its connection after 5 s, and the others there are sent again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.asking import Known
from exactly_once.kafka.connection import Connection

#: Streams of a client before another one is made, and the most clients of a cluster: then clients have more streams.
STREAMS_A_CLIENT = 8
MOST_CLIENTS = 8

#: Time for which a client stays open that nobody uses: the first batch follows the check of a start.
IDLE_S = 10.0

#: Age of an answer up to which its brokers count as alive, and the budget for another one: brokers may have moved to
#: addresses that a client does not know.
_HEARD_S = 5.0
_HEAR_S = 2.0


@dataclass(eq=False)
class _Shared:
    """A client, or one that its first borrower is connecting."""

    made: Future[Admin] = field(default_factory=Future)
    borrowers: int = 0
    closing: threading.Timer | None = None

    @property
    def failed(self) -> bool:
        return self.made.done() and (self.made.exception() is not None or self.made.result().failed)

    @property
    def is_heard(self) -> bool:
        return self.made.done() and not self.failed and self.made.result().silent_s < _HEARD_S


@dataclass(eq=False)
class _Cluster:
    connection: Connection
    known: Known = field(default_factory=Known)
    clients: list[_Shared] = field(default_factory=list)


class Clients:
    """The clients of a process, by cluster and login. One that has failed is lent to nobody else."""

    def __init__(self, connect: Callable[[Connection, float, Known], Admin] = Admin, idle_s: float = IDLE_S) -> None:
        self._connect = connect
        self._idle_s = idle_s
        self.forget()

    def forget(self) -> None:
        """Begin without clients, in the child of a fork: it has neither their threads nor a right to their sockets."""
        self._clusters: list[_Cluster] = []
        self._lock = threading.Lock()

    def borrow(self, connection: Connection, budget_s: float) -> Admin:
        """Return a connection to brokers that answer, whose ``close`` gives it back; raise as :class:`Admin` does."""
        connection.check_login()  # as the user is now, whoever has connected before
        while True:
            with self._lock:
                cluster = self._find(connection) or self._add(connection)
                client = _least_used([c for c in cluster.clients if not c.failed])
                is_first = client is None
                if client is None:
                    cluster.clients.append(client := _Shared())
                client.borrowers += 1
                if client.closing is not None:
                    client.closing.cancel()
            if is_first:
                self._make(cluster, client, budget_s)
            lent = client.made.result().lent(budget_s, partial(self._take_back, client))
            if is_first or _hears(lent):
                return lent.renew(budget_s)
            lent.close()

    def _make(self, cluster: _Cluster, client: _Shared, budget_s: float) -> None:
        """Connect, without the lock: streams of other clusters must not wait for brokers that do not answer."""
        try:
            client.made.set_result(self._connect(cluster.connection, budget_s, cluster.known))
        except BaseException as e:
            client.made.set_exception(e)
            with self._lock:
                self._drop(client)
            raise

    def has_heard(self, connection: Connection) -> bool:
        """Return whether brokers have answered one of these clients a moment ago."""
        with self._lock:
            cluster = self._find(connection)
            return cluster is not None and any(c.is_heard for c in cluster.clients)

    def _find(self, connection: Connection) -> _Cluster | None:
        return next((cluster for cluster in self._clusters if cluster.connection == connection), None)

    def _add(self, connection: Connection) -> _Cluster:
        self._clusters.append(_Cluster(connection))
        return self._clusters[-1]

    def _drop(self, client: _Shared) -> bool:
        """Take the client from its cluster, and return whether it was there."""
        held = [cluster for cluster in self._clusters if client in cluster.clients]
        for cluster in held:
            cluster.clients.remove(client)
        self._clusters = [cluster for cluster in self._clusters if cluster.clients]
        return bool(held)

    def _take_back(self, client: _Shared) -> None:
        with self._lock:
            client.borrowers -= 1
            if client.borrowers:
                return
            later = threading.Timer(self._idle_s, self._close_unused, [client])
            later.daemon, client.closing = True, later
        if not client.failed:
            with suppress(RuntimeError):  # this process ends
                return later.start()
        self._close_unused(client)

    def _close_unused(self, client: _Shared) -> None:
        with self._lock:
            if client.borrowers or not self._drop(client):
                return
        client.made.result().close()


def _least_used(clients: list[_Shared]) -> _Shared | None:
    """Return the client for another borrower; None where there may be one more."""
    least = min(clients, key=lambda c: c.borrowers, default=None)
    if least is None or (least.borrowers >= STREAMS_A_CLIENT and len(clients) < MOST_CLIENTS):
        return None
    return least


def _hears(lent: Admin) -> bool:
    """Return whether brokers answer this client, now or a moment ago."""
    if lent.silent_s < _HEARD_S:
        return True
    try:
        lent.renew(_HEAR_S).ask(lent.brokers)
    except ExactlyOnceError:
        return not lent.failed  # whoever borrows it asks more, and is told why that is refused
    return True


#: Those of this process.
CLIENTS = Clients()
os.register_at_fork(after_in_child=CLIENTS.forget)
