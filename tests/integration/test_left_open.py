"""Transactions that are open at partition leaders, and that their coordinators have aborted: a claim ends them.

That is what Kafka 4.3.1 leaves behind when it comes back after the timeout (tests/faults/test_missing_markers.py). Here
the coordinator aborts each transaction without having been told of the partition.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from exactly_once.coordinator.recover import recover
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import Completed, Decision, Place, PreparedTransaction
from exactly_once.tools.operation.end_hanging import list_hanging
from exactly_once.txn.coordinators import add_partitions, describe, end_all, end_one, end_txn_version, initialise
from exactly_once.txn.hanging import end_left_open, was_aborted
from exactly_once.txn.leaders import Hanging, find_hanging, open_on
from testkit import broker as brokers
from testkit import oracle
from testkit.authorizing import AuthorizingBroker, Right
from testkit.dead_sink import DeadSink
from testkit.hanging import UNVERIFIED, leave_hanging
from testkit.part_ids import part_id
from testkit.rights import granted, table


class Broker(AuthorizingBroker):
    """It lets a transaction begin without its coordinator."""

    def _settings(self, number: int) -> dict[str, str]:
        return {**super()._settings(number), **UNVERIFIED}


@dataclass
class Left:
    """A sink whose driver died, with a transaction that hangs on each of two partitions; its log names the topic."""

    broker: Broker
    sink: DeadSink
    handles: list[PreparedTransaction]

    @property
    def connection(self) -> Connection:
        """The connection of the super user."""
        return self.sink.connection

    def decide(self, mark: bool) -> None:
        """Decide batch 1 with them."""
        with Admin(self.connection) as admin:
            decided = Decision("q", 1, 1, tuple(self.handles), "d", end_txn_version(admin), 0, topics=(self.topic,))
        self.sink.log.append(decided, Deadline(30))
        if mark:
            self.sink.log.append(Completed("q", 1, 1, now_ms()), Deadline(30))

    @property
    def topic(self) -> str:
        """The output."""
        return self.sink.topic

    def hanging(self) -> list[Hanging]:
        """What the leaders know as open."""
        with Admin(self.connection) as admin:
            return open_on(admin, [(self.topic, p) for p in range(2)])

    def held_back(self) -> object:
        """The partitions whose readers wait."""
        with Admin(self.connection) as admin:
            return oracle.held_back(admin, [self.topic])


@pytest.fixture(scope="module")
def unverified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("unverified")) as running:
        yield running


@pytest.fixture
def left(unverified: Broker) -> Left:
    connection = Connection(unverified.bootstrap_servers)
    output, elsewhere = (brokers.create_topic(unverified.bootstrap_servers, partitions=2) for _ in range(2))
    sink = DeadSink(connection, output)
    sink.decide()
    sink.log.append(Completed("q", 0, 1, now_ms()), Deadline(30))
    handles = []
    with Admin(connection) as admin:
        for part in range(2):
            name = part_id(sink.sink_id, 1, part, "0.0")
            producer_id = leave_hanging(connection, output, part, name, age_s=0)
            add_partitions(admin, name, producer_id, 0, [(elsewhere, part)])
            assert end_one(admin, name, producer_id, 0, False, end_txn_version(admin)) is Outcome.DONE
            handles.append(PreparedTransaction(name, producer_id, 0, part, 1, digest="d", place=Place(output, part, 0)))
    found = Left(unverified, sink, handles)
    assert len(found.hanging()) == len(found.held_back()) == 2  # type: ignore[arg-type]
    return found


def test_a_hanging_transaction_whose_coordinator_says_that_it_ended_is_found_at_once(left: Left) -> None:
    """Guards against an advice that leads in a circle for fifteen minutes: readers wait, and nothing is found."""
    assert len(find_hanging(left.connection, [left.topic])) == 2
    assert [f.owner for f in list_hanging(left.connection, left.sink.sink_id)] == ["ours", "ours"]


@pytest.mark.long
def test_a_recovery_ends_what_hangs_and_nothing_of_others(left: Left, caplog: pytest.LogCaptureFixture) -> None:
    """Guards against readers that wait for ever behind a transaction that no coordinator knows."""
    leave_hanging(left.connection, left.topic, 1, brokers.fresh_name("foreign"), age_s=0)
    names = [h.name for h in left.hanging() if h.producer_id in {x.producer_id for x in left.handles}]
    with caplog.at_level(logging.WARNING):
        report = recover(left.connection, left.sink.sink_id)
    assert report.rolled_back == {"kafka": [h.name for h in left.handles]}
    assert report.blocked == [(left.topic, 1)], "behind the other application's"
    assert all(name in caplog.text for name in names) and "EO-WARN-HANGING" not in caplog.text
    assert len(left.hanging()) == 1 and left.sink.visible() == []
    assert recover(left.connection, left.sink.sink_id).rolled_back == {}


def test_a_decided_part_that_was_rolled_back_is_proven_lost_although_it_looks_open(left: Left) -> None:
    """Guards against EO-UNFINISHED at each start: its leader waits for a marker that never comes."""
    left.decide(mark=False)
    report = recover(left.connection, left.sink.sink_id)
    assert [d.batch_id for d in report.to_rewrite] == [1] and report.completed == []
    assert not report.blocked and not left.held_back()


def test_a_committed_part_that_hangs_is_committed_there_too_and_never_aborted(left: Left) -> None:
    """Guards against the loss of what is decided and complete: an abort would be the end of its rows."""
    left.decide(mark=True)
    report = recover(left.connection, left.sink.sink_id)
    assert report.clean and report.rolled_back == {} and not left.held_back()
    assert left.sink.visible() == ["hanging", "hanging"]


@pytest.mark.long
def test_the_rights_of_a_driver_are_enough_to_end_what_hangs(left: Left, caplog: pytest.LogCaptureFixture) -> None:
    """Guards against readers that wait for a person with ALTER on the cluster."""
    rights = {*granted(left.sink.sink_id, left.topic, table("driver", "recovery"))}
    assert {r.operation for r in rights if r.resource in ("TOPIC", "BROKER")} <= {
        *("WRITE", "READ", "DESCRIBE", "CREATE", "DESCRIBE_CONFIGS")
    }
    left.broker.grant(rights)
    report = recover(left.broker.connection, left.sink.sink_id)
    assert report.clean and len(report.rolled_back["kafka"]) == 2, caplog.text
    assert not left.held_back()


@pytest.mark.long
def test_without_a_right_a_recovery_says_what_it_leaves(left: Left, caplog: pytest.LogCaptureFixture) -> None:
    """Guards against a recovery that fails for what the next start of the stream ends; and against its silence."""
    without = Right("WRITE", "TOPIC", left.topic)
    rights = [r for r in granted(left.sink.sink_id, left.topic, table("recovery")) if r != without]
    left.broker.grant(rights)
    with caplog.at_level(logging.WARNING):
        report = recover(left.broker.connection, left.sink.sink_id)
    assert report.rolled_back == {} and len(report.blocked) == 2
    with Admin(left.connection) as admin:
        states = {d.state for d in describe(admin, [h.name for h in left.handles]).values()}
    assert states == {"CompleteAbort"}, "it still tells how the transactions ended"
    assert "EO-WARN-HANGING" in caplog.text and f"left: {left.topic}-0@0, {left.topic}-1@0" in caplog.text
    assert recover(left.connection, left.sink.sink_id).clean


@pytest.mark.long
def test_an_id_that_was_initialised_since_is_not_taken_from_its_producer(left: Left) -> None:
    """Guards against a claim that was away itself, and would end the transaction of a driver after it."""
    [h, _] = find_hanging(left.connection, [left.topic])
    name = str(h.transactional_id)
    with Admin(left.connection) as admin:
        d = describe(admin, [name])[name]
        assert was_aborted(h, d, end_txn_version(admin))
        _, epoch = initialise(admin, name, 10_000)
        with pytest.raises(ExactlyOnceError):
            initialise(admin, name, 10_000, d.producer_id, d.producer_epoch)
        assert describe(admin, [name])[name].producer_epoch == epoch


@pytest.mark.long
def test_what_ends_at_this_moment_is_not_taken_for_hanging(unverified: Broker) -> None:
    """Guards against a warning at a start, a transaction for each part that was just ended, and a marker that needs
    ALTER on the cluster: an answer to EndTxn comes before the end markers, and leaders are asked before coordinators.
    """
    connection, names = Connection(unverified.bootstrap_servers), [brokers.fresh_name("part") for _ in range(40)]
    output = brokers.create_topic(unverified.bootstrap_servers, partitions=20)
    for name in names:
        producer = brokers.open_transaction(connection, name)
        for partition in range(20):
            producer.produce(output, b"row", partition=partition)
        producer.flush(30)
    with Admin(connection) as admin:
        end_all(admin, [d.end for d in describe(admin, names).values()], False, end_txn_version(admin))
        assert end_left_open(admin, [output], names.__contains__, lambda h, d: False).ended == []
