"""The clients of a driver: which streams share one, and when it is closed."""

from __future__ import annotations

import threading
import time

import pytest

from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.sharing import MOST_CLIENTS, STREAMS_A_CLIENT, Clients

HERE, THERE = Connection("here:1"), Connection("there:1")


class Lent:
    def __init__(self, admin, give_back):
        self.admin, self._give_back = admin, give_back

    def close(self):
        give_back, self._give_back = self._give_back, lambda: None
        give_back()


class Made:
    """A client that asks nobody."""

    def __init__(self, connection, budget_s, known):
        self.connection, self.known = connection, known
        self.failed, self.closed = False, threading.Event()

    def lent(self, budget_s, give_back):
        return Lent(self, give_back)

    def close(self):
        self.closed.set()


@pytest.fixture
def clients():
    return Clients(Made, idle_s=60)


def borrowed(clients, number, connection=HERE):
    return [clients.borrow(connection, 1) for _ in range(number)]


def test_a_few_streams_share_a_client(clients):
    """Outage: one partition that takes no writes holds every stream of a driver back; or each has its own threads."""
    found = borrowed(clients, STREAMS_A_CLIENT + 1)
    assert [lent.admin is found[0].admin for lent in found] == [True] * STREAMS_A_CLIENT + [False]
    assert found[0].admin.known is found[-1].admin.known


def test_a_cluster_has_so_many_clients_at_the_most(clients):
    """Outage: a driver of many streams reaches the brokers' limit of connections."""
    found = borrowed(clients, STREAMS_A_CLIENT * MOST_CLIENTS * 2)
    used = [sum(lent.admin is one for lent in found) for one in {lent.admin for lent in found}]
    assert used == [STREAMS_A_CLIENT * 2] * MOST_CLIENTS


def test_another_login_has_another_client(clients):
    """Wrong rights: a stream asks with the login of another one."""
    [here], [there] = borrowed(clients, 1), borrowed(clients, 1, THERE)
    assert here.admin is not there.admin and here.admin.known is not there.admin.known


def test_what_is_given_back_twice_counts_once(clients):
    """Outage: a client is closed under the stream that still uses it."""
    first, second = borrowed(clients, 2)
    first.close()
    first.close()
    second.admin.failed = True
    assert not second.admin.closed.is_set()
    second.close()
    assert second.admin.closed.is_set()


def test_a_client_that_has_failed_is_lent_to_nobody_else(clients):
    """Outage: a start is refused for a certificate that was replaced since."""
    [first] = borrowed(clients, 1)
    first.admin.failed = True
    [second] = borrowed(clients, 1)
    assert second.admin is not first.admin and not first.admin.closed.is_set()


def test_an_unused_client_is_kept_for_the_claim_behind_the_check_and_closed_then():
    """Outage: connections stay open whose streams have ended; or each start connects twice."""
    clients = Clients(Made, idle_s=0.2)
    [check] = borrowed(clients, 1)
    check.close()
    [claim] = borrowed(clients, 1)
    assert claim.admin is check.admin
    claim.close()
    assert claim.admin.closed.wait(10)
    assert borrowed(clients, 1)[0].admin is not claim.admin


def test_a_client_that_was_borrowed_again_is_not_closed():
    """Outage: the timer of the first stream closes the client of the second."""
    clients = Clients(Made, idle_s=0.05)
    [first] = borrowed(clients, 1)
    first.close()
    [second] = borrowed(clients, 1)
    assert not second.admin.closed.wait(0.3)


def test_a_cluster_has_been_heard_while_one_of_its_clients_is_sound(clients):
    """Outage: a start waits for its whole budget for brokers that are gone."""
    assert not clients.has_heard(HERE)
    [lent] = borrowed(clients, 1)
    assert not clients.has_heard(HERE)
    lent.admin.known.alive = time.monotonic(), [1]
    assert clients.has_heard(HERE) and not clients.has_heard(THERE)
    lent.admin.failed = True
    assert not clients.has_heard(HERE)


def test_brokers_that_do_not_answer_hold_no_other_stream_back():
    """Outage: every start of a driver waits for the one whose brokers are away."""
    may_fail = threading.Event()

    def connect(connection, budget_s, known):
        if connection == THERE:
            may_fail.wait(10)
            raise BrokerUnreachable("away", "wait")
        return Made(connection, budget_s, known)

    clients, refused = Clients(connect), []

    def start_there():
        with pytest.raises(BrokerUnreachable) as e:
            clients.borrow(THERE, 1)
        refused.append(e.value.code)

    there = threading.Thread(target=start_there)
    there.start()
    assert borrowed(clients, 1)[0].admin.connection == HERE
    may_fail.set()
    there.join(Deadline(10).seconds)
    assert refused == [BrokerUnreachable.code]
