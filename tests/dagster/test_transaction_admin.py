"""Transaction admin on a real broker: it sees what is open, ends what may be ended, and refuses the rest."""

import time

import pytest
from confluent_kafka import Producer

from exactly_once.deadline import Deadline
from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.commit_log import CommitLog, read_log
from exactly_once.kafka.control import Control
from exactly_once.protocol.names import part_id
from exactly_once.protocol.records import Claim, Decision, PreparedTransaction
from resources.transactions import Refused, TransactionAdmin
from tests.support import broker as brokers
from tests.support import oracle


@pytest.fixture
def admin(bootstrap_servers):
    return TransactionAdmin(bootstrap_servers=bootstrap_servers)


class Sink:
    """A sink whose driver died: it claimed, and left one open transaction for each part."""

    def __init__(self, connection, topic):
        self.connection, self.topic, self.sink_id = connection, topic, brokers.fresh_name("sink")
        self.log = CommitLog(connection, self.sink_id)
        self.log.claim(lambda state: Claim(1, "q", 0, "stream", "h", 1, "/c"), Deadline(30))
        self.producers = []

    def open_part(self, part):
        name = part_id(self.sink_id, 1, part, "0.0")
        producer = Producer(
            {**self.connection.librdkafka(), "transactional.id": name, "transaction.timeout.ms": 60_000, "log_level": 2}
        )
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(self.topic, f"part {part}")
        producer.flush(30)
        self.producers.append(producer)
        return name

    def decide(self, *names):
        with Control(self.connection) as control:
            version = control.end_txn_version()
            handles = tuple(
                PreparedTransaction(d.transactional_id, d.producer_id, d.producer_epoch, part, 1)
                for part, d in enumerate(control.describe(names).values())
            )
        self.log.append(Decision("q", 0, 1, handles, "digest", version, 0, topics=(self.topic,)), Deadline(30))

    def visible(self):
        return sorted(m.value for m in oracle.read(self.connection, [self.topic]))


@pytest.fixture
def sink(connection, topic):
    return Sink(connection, topic)


def test_open_transactions_are_listed_and_described_oldest_first(sink, admin):
    first = sink.open_part(0)
    time.sleep(0.05)
    second = sink.open_part(1)
    assert {t.transactional_id for t in admin.list(sink.sink_id)} == {first, second}
    described = admin.open_transactions(sink.sink_id)
    assert [d.transactional_id for d in described] == [first, second]
    assert all(d.state == "Ongoing" and d.partitions[0][0] == sink.topic for d in described)
    assert admin.list(f"{sink.sink_id}-longer") == [] and admin.list(sink.sink_id[:-1]) == []


def test_a_decided_transaction_is_committed_and_an_undecided_one_is_not(sink, admin):
    decided, undecided = sink.open_part(0), sink.open_part(1)
    sink.decide(decided)
    with pytest.raises(Refused, match="not decided"):
        admin.commit(undecided)
    with pytest.raises(Refused, match="would lose them"):
        admin.abort(decided)
    assert sink.visible() == []
    assert admin.commit(decided).handle.records == 1
    assert sink.visible() == ["part 0"]
    with pytest.raises(Refused, match="no transaction under way"):
        admin.commit(decided)


def test_an_abort_takes_the_sink_from_its_driver_first(sink, admin):
    undecided, decided = sink.open_part(0), sink.open_part(1)
    sink.decide(decided)
    report = admin.abort(undecided)
    assert [d.transactional_id for d in report.aborted] == [undecided]
    assert [d.batch_id for d in report.completed] == [0]
    assert sink.visible() == ["part 1"]
    owner = read_log(sink.connection, sink.sink_id).owner
    assert (owner.token, owner.purpose) == (2, "recovery")


def test_a_sweep_is_safe_twice(sink, admin):
    sink.open_part(0)
    sink.open_part(1)
    assert len(admin.sweep(sink.sink_id).aborted) == 2
    again = admin.sweep(sink.sink_id)
    assert again.found_nothing and again.clean
    assert admin.sweep(brokers.fresh_name("unused")).found_nothing


def test_every_call_has_an_end_when_no_broker_answers():
    nobody = TransactionAdmin(bootstrap_servers="127.0.0.1:1", budget_s=1.0, recovery_budget_s=1.0)
    for act in (
        lambda: nobody.list("s"),
        lambda: nobody.open_transactions("s"),
        lambda: nobody.commit("eo:s:1:0:0.0"),
        lambda: nobody.abort("eo:s:1:0:0.0"),
        lambda: nobody.sweep("s"),
    ):
        began = time.monotonic()
        with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1"):
            act()
        assert time.monotonic() - began < 5
