"""A person's commits and aborts on a real broker: what may be ended is ended, and the rest is refused."""

import os
import socket
import time

import psutil
import pytest

from dagster_exactly_once.resources.transactions import TransactionAdmin
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.tools.operation.model import OperationContext
from exactly_once.tools.operation.rules import Refused
from exactly_once.tools.operation.transactions import ABORT, COMMIT, TransactionParameters
from exactly_once.txn.coordinators import describe
from testkit import broker as brokers
from testkit.dead_sink import DEAD, DeadSink

NOBODY = "127.0.0.1:1"


@pytest.fixture
def admin(bootstrap_servers):
    return TransactionAdmin(bootstrap_servers=bootstrap_servers)


def commit(connection, name, force="", budget_s=10.0):
    return COMMIT.apply(OperationContext(connection, budget_s=budget_s), TransactionParameters(id=name, force=force))


def abort(connection, name, force="", budget_s=10.0):
    return ABORT.apply(OperationContext(connection, budget_s=budget_s), TransactionParameters(id=name, force=force))


@pytest.fixture
def sink(connection, topic):
    return DeadSink(connection, topic, host=socket.gethostname(), pid=DEAD)


def test_the_open_transactions_of_a_sink_are_listed_and_no_other_s(sink, admin):
    first, second = sink.open_part(0), sink.open_part(1)
    assert {t.transactional_id for t in admin.list(sink.sink_id)} == {first, second}
    assert admin.list(f"{sink.sink_id}-longer") == [] and admin.list(sink.sink_id[:-1]) == []


def test_a_decided_transaction_is_committed_and_an_undecided_one_is_not(sink):
    decided, undecided = sink.open_part(0), sink.open_part(1)
    sink.decide(decided)
    with pytest.raises(Refused, match="not decided"):
        commit(sink.connection, undecided)
    with pytest.raises(Refused, match="readers miss them"):
        abort(sink.connection, decided)
    assert sink.visible() == []
    assert commit(sink.connection, decided).document["records"] == 1
    assert sink.visible() == ["part 0"]
    with pytest.raises(Refused, match="no transaction under way"):
        commit(sink.connection, decided)


def test_an_abort_takes_the_sink_from_its_driver_first(sink):
    undecided, decided = sink.open_part(0), sink.open_part(1)
    sink.decide(decided)
    report = abort(sink.connection, undecided).value
    assert report.rolled_back == {"kafka": [undecided]}
    assert [d.batch_id for d in report.completed] == [0]
    assert sink.visible() == ["part 1"]
    owner = read_log(sink.connection, sink.sink_id).owner
    assert (owner.token, owner.purpose) == (2, "recovery")


def test_a_forced_commit_shows_exactly_the_transaction_that_was_seen(sink, admin):
    """Duplicate: more records than the typed phrase states."""
    one, other = sink.open_part(0, records=3), sink.open_part(1)
    with pytest.raises(Refused) as refused:
        commit(sink.connection, one)
    assert refused.value.phrase == f"duplicate 3 records of {sink.topic}"  # as the partition's leader counts them
    ended = commit(sink.connection, one, refused.value.phrase)
    assert (ended.document["decided"], ended.document["forced"]) == (None, refused.value.phrase)
    assert sink.visible() == ["part 0"] * 3
    assert [t.transactional_id for t in admin.list(sink.sink_id)] == [other]


def test_a_forced_abort_ends_exactly_the_decided_transaction(sink):
    """Loss: more records than the typed phrase states."""
    lost, kept = sink.open_part(0), sink.open_part(1)
    sink.decide(lost, kept, records=1)
    with pytest.raises(Refused) as refused:
        abort(sink.connection, lost)
    assert refused.value.phrase.startswith("roll back batch 0, 1 record; ")
    assert abort(sink.connection, lost, refused.value.phrase).value is None
    assert read_log(sink.connection, sink.sink_id).owner.token == 1  # nobody was fenced for it
    with Admin(sink.connection) as admin:
        states = {i: d.state for i, d in describe(admin, [lost, kept]).items()}
    assert states[kept] == "Ongoing" and states[lost] in ("PrepareAbort", "CompleteAbort")


def test_an_owner_that_lives_is_fenced_only_by_who_says_so(connection, topic):
    """Mishap: a person who looked at the wrong sink stops a healthy stream."""
    here = psutil.Process()
    sink = DeadSink(connection, topic, socket.gethostname(), os.getpid(), here.create_time())
    undecided = sink.open_part(0)
    with pytest.raises(Refused, match="is alive") as refused:
        abort(connection, undecided)
    assert refused.value.phrase == f"fence the driver {os.getpid()} on {socket.gethostname()}"
    assert read_log(connection, sink.sink_id).owner.token == 1
    aborted = abort(connection, undecided, refused.value.phrase)
    assert aborted.value.rolled_back == {"kafka": [undecided]}
    assert read_log(connection, sink.sink_id).owner.purpose == "recovery"


def test_an_owner_on_another_host_is_not_taken_for_dead(connection, topic):
    sink = DeadSink(connection, topic)
    undecided = sink.open_part(0)
    with pytest.raises(Refused, match="cannot tell whether"):
        abort(connection, undecided)
    aborted = abort(connection, undecided, "fence the driver 1 on elsewhere")
    assert aborted.document["forced"] == "fence the driver 1 on elsewhere"


def test_a_recovery_is_safe_twice(sink, admin):
    sink.open_part(0)
    sink.open_part(1)
    assert len(admin.recover(sink.sink_id).rolled_back["kafka"]) == 2
    again = admin.recover(sink.sink_id)
    assert again.clean and not (again.completed or again.rolled_back)
    unused = admin.recover(brokers.fresh_name("unused"))
    assert unused.clean and not (unused.completed or unused.rolled_back)


@pytest.mark.long
def test_every_call_has_an_end_when_no_broker_answers():
    nobody = TransactionAdmin(bootstrap_servers=NOBODY, budget_s=1.0, recovery_budget_s=1.0)
    for act in (
        lambda: nobody.list("s"),
        lambda: commit(Connection(NOBODY), "eo:s:1:0:0.0", budget_s=1.0),
        lambda: abort(Connection(NOBODY), "eo:s:1:0:0.0", budget_s=1.0),
        lambda: nobody.recover("s"),
    ):
        began = time.monotonic()
        with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
            act()
        assert time.monotonic() - began < 5
