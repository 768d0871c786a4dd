"""The clients of a driver: which streams share one, and when it is closed."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError

from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.asking import Known
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.sharing import CLIENTS, MOST_CLIENTS, STREAMS_A_CLIENT, Clients

HERE, THERE = Connection("here:1"), Connection("there:1")


class Net:
    """Brokers that answer nobody's question, or refuse it."""

    def __init__(self) -> None:
        self.refusal: Exception | None = None

    def run(self, question: Any) -> list[int]:
        if self.refusal is not None:
            raise self.refusal
        return [1]


class Client:
    def __init__(self) -> None:
        self._net, self.closed = Net(), threading.Event()

    def close(self) -> None:
        self.closed.set()


def connect(connection: Connection, budget_s: float, known: Known) -> Admin:
    """Return an admin over a client that is told at once which brokers there are."""
    admin: Any = object.__new__(Admin)
    admin.connection, admin.deadline, admin.known = connection, Deadline(budget_s), known
    admin._beside, admin._adding, admin._give_back = [], threading.Lock(), None
    admin._first, admin._failed, admin.client = admin, False, Client()
    admin._see([1])
    return admin  # type: ignore[no-any-return]


@pytest.fixture
def clients() -> Clients:
    return Clients(connect, idle_s=60)


def borrowed(clients: Clients, number: int, connection: Connection = HERE) -> list[Any]:
    return [clients.borrow(connection, 1) for _ in range(number)]


def test_a_few_streams_share_a_client(clients: Clients) -> None:
    """Outage: one partition that takes no writes holds every stream of a driver back; or each has its own threads."""
    found = borrowed(clients, STREAMS_A_CLIENT + 1)
    assert [lent.client is found[0].client for lent in found] == [True] * STREAMS_A_CLIENT + [False]
    assert found[0].known is found[-1].known


@pytest.mark.parametrize("streams_at_once", [1, 40])
def test_a_cluster_has_so_many_clients_at_the_most(streams_at_once: int) -> None:
    """Outage: a driver of many streams, which may start all at once, reaches the brokers' limit of connections."""

    def slowly(connection: Connection, budget_s: float, known: Known) -> Admin:
        time.sleep(0.02 * (streams_at_once > 1))
        return connect(connection, budget_s, known)

    clients, number = Clients(slowly, idle_s=60), STREAMS_A_CLIENT * MOST_CLIENTS * 2
    with ThreadPoolExecutor(streams_at_once) as threads:
        found = list(threads.map(lambda _: clients.borrow(HERE, 1), range(number)))
    used = [sum(lent.client is one for lent in found) for one in {lent.client for lent in found}]
    assert used == [STREAMS_A_CLIENT * 2] * MOST_CLIENTS


def test_another_login_has_another_client(clients: Clients) -> None:
    """Wrong rights: a stream asks with the login of another one."""
    [here], [there] = borrowed(clients, 1), borrowed(clients, 1, THERE)
    assert here.client is not there.client and here.known is not there.known


def test_what_is_given_back_twice_counts_once(clients: Clients) -> None:
    """Outage: a client is closed under the stream that still uses it."""
    first, second = borrowed(clients, 2)
    first.close()
    first.close()
    first.within(1)
    second.client._net.refusal = SaslAuthenticationFailedError("ended")
    with pytest.raises(SaslAuthenticationFailedError):
        second.run(second.brokers)
    assert not second.client.closed.is_set()
    second.close()
    assert second.client.closed.is_set()


@pytest.mark.parametrize("error", [SaslAuthenticationFailedError("refused"), OSError("the thread has ended")])
def test_a_client_that_has_failed_is_lent_to_nobody_else(clients: Clients, error: Exception) -> None:
    """Outage: each start is refused for a login, or by a client, that is no more."""
    [first] = borrowed(clients, 1)
    first.client._net.refusal = error
    with pytest.raises(type(error)):
        first.run(first.brokers)
    [second] = borrowed(clients, 1)
    assert second.client is not first.client and not first.client.closed.is_set()


def test_a_client_that_heard_nothing_for_a_while_is_lent_once_its_brokers_answer(clients: Clients) -> None:
    """Outage: the brokers have moved, an idle stream has a client of the old addresses, and no other starts."""
    [idle] = borrowed(clients, 1)
    idle._first._seen_s -= 60
    assert borrowed(clients, 1)[0].client is idle.client
    idle.client._net.refusal = KafkaConnectionError("nobody there")
    idle._first._seen_s -= 60
    assert borrowed(clients, 1)[0].client is not idle.client


def test_an_unused_client_is_kept_for_the_claim_behind_the_check_and_closed_then() -> None:
    """Outage: connections stay open whose streams have ended; or each start connects twice."""
    clients = Clients(connect, idle_s=0.2)
    [check] = borrowed(clients, 1)
    check.close()
    [claim] = borrowed(clients, 1)
    assert claim.client is check.client
    claim.close()
    assert claim.client.closed.wait(10)
    assert borrowed(clients, 1)[0].client is not claim.client


def test_a_client_that_was_borrowed_again_is_not_closed() -> None:
    """Outage: the timer of the first stream closes the client of the second."""
    clients = Clients(connect, idle_s=0.05)
    [first] = borrowed(clients, 1)
    first.close()
    [second] = borrowed(clients, 1)
    assert not second.client.closed.wait(0.3)


def test_a_cluster_has_been_heard_while_one_of_its_clients_is_sound(clients: Clients) -> None:
    """Outage: a start waits for its whole budget for brokers that are gone."""
    assert not clients.has_heard(HERE)
    [lent] = borrowed(clients, 1)
    assert clients.has_heard(HERE) and not clients.has_heard(THERE)
    lent._first._failed = True
    assert not clients.has_heard(HERE)


def test_brokers_that_do_not_answer_hold_no_other_cluster_back() -> None:
    """Outage: every start of a driver waits for the one whose brokers are away."""
    may_fail, waits = threading.Event(), threading.Event()

    def or_fail(connection: Connection, budget_s: float, known: Known) -> Admin:
        if connection == THERE:
            waits.set()
            may_fail.wait(10)
            raise BrokerUnreachable("away", "wait")
        return connect(connection, budget_s, known)

    clients = Clients(or_fail)
    with ThreadPoolExecutor(2) as threads:
        refused = [threads.submit(clients.borrow, THERE, 1) for _ in range(2)]
        assert waits.wait(10)
        assert borrowed(clients, 1)[0].connection == HERE
        may_fail.set()
        assert [type(one.exception()) for one in refused] == [BrokerUnreachable] * 2
    with pytest.raises(BrokerUnreachable):
        clients.borrow(THERE, 1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_the_child_of_a_fork_has_no_client_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outage: a child waits for ever for the answer to a question that a thread of its parent was to ask."""
    monkeypatch.setattr(CLIENTS, "_connect", connect)
    lent = CLIENTS.borrow(HERE, 1)
    child = os.fork()
    if not child:
        os._exit(0 if not CLIENTS.has_heard(HERE) else 1)
    assert os.waitpid(child, 0)[1] == 0 and CLIENTS.has_heard(HERE)
    lent.client._net.refusal = OSError("over")
    with pytest.raises(OSError, match="over"):
        lent.run(lent.brokers)
    lent.close()
