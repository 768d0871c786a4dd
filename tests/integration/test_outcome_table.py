"""Every line of the table of what EndTxn answers, on a real broker: what the engine makes of it, and what readers see.

For each version of EndTxn that the broker takes: a part is prepared, something happens, and then the decided batch is
completed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from confluent_kafka import KafkaException, Producer
from kafka.protocol.producer.transaction import InitProducerIdRequest

from exactly_once.coordinator.decide import amend
from exactly_once.errors import Expired
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import name_of
from exactly_once.participants.kafka.transactions import commit_transactions
from exactly_once.protocol.outcomes import Outcome
from exactly_once.protocol.records import Decision, OffsetRange, PreparedTransaction
from exactly_once.protocol.replay import rows_of
from exactly_once.txn.coordinators import End, _end_txn, describe, end_one, end_txn_version
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import oracle
from testkit.broker import create_topic, fresh_name, open_transaction
from testkit.kafka_part import PartTransaction
from testkit.part_ids import part_id
from testkit.processes import until

ROWS = ["a", "b", "c"]

#: How many versions of EndTxn below the one that the sink uses on this broker, down to 3; make test has that one alone.
OLDER = [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
IDS = ["the sink's EndTxn", "one version older", "two versions older"]

#: Its ids are forgotten and its transactions time out within seconds.
FORGETFUL = {
    "transactional.id.expiration.ms": "2000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "200",
}


@dataclass
class Cluster:
    """A broker, a topic and one sink."""

    connection: Connection
    topic: str
    sink_id: str
    version: int

    def prepare(self, timeout_ms: int = 60_000, part: int = 0) -> tuple[PreparedTransaction, Producer]:
        """One part with :data:`ROWS`, and the producer that wrote it."""
        with Admin(self.connection) as admin:
            name = part_id(self.sink_id, 1, part, "0.0")
            config = {"delivery.timeout.ms": str(min(timeout_ms, 60_000))}
            transaction = PartTransaction(self.connection, config, name, timeout_ms, admin)
            producer = transaction._producer
            for row in ROWS:
                transaction.send(self.topic, None, f"{part}{row}".encode(), partition=part)
            handle = transaction.prepare(part, 30)
        assert handle.place is not None
        assert producer is not None
        return handle, producer

    def end(self, handle: PreparedTransaction, commit: bool, version: int | None = None) -> Outcome:
        """EndTxn from somebody else's hand."""
        with Admin(self.connection) as admin:
            return end_one(
                admin, handle.transactional_id, handle.producer_id, handle.epoch, commit, version or self.version
            )

    @property
    def other_version(self) -> int:
        """Of the other protocol: EndTxn 5 raises the producer epoch, 3 and 4 do not."""
        if self.version >= 5:
            return 4
        needs_version_5(self.connection)
        return 5

    def complete(
        self, *handles: PreparedTransaction, confirmed: dict[str, str] | None = None
    ) -> list[PreparedTransaction]:
        """Complete the decision of these parts, which were ``confirmed`` with these ids of topics a moment ago; what
        comes back is lost.
        """
        ids = confirmed or {}
        decision = Decision("q", 0, 1, handles, "", self.version, 0, topics=tuple(ids), topic_ids=ids)
        with Admin(self.connection) as admin:
            parts = decision.parts_of("kafka")
            return commit_transactions(self.sink_id, parts, admin, 20, confirmed=confirmed is not None)

    def init(self, handle: PreparedTransaction) -> None:
        """Another InitProducerId on the id: what nobody may do while a decision names it."""
        producer = Producer({**self.connection.librdkafka(), "transactional.id": handle.transactional_id})
        producer.init_transactions(30)

    def visible(self) -> list[str]:
        """What a read_committed reader sees, markers of the last end awaited."""
        with Admin(self.connection) as admin:
            until("readers to pass", lambda: not oracle.held_back(admin, [self.topic]), 10)
        return [m.value or "" for m in oracle.read(self.connection, [self.topic])]

    def state(self, handle: PreparedTransaction) -> str:
        with Admin(self.connection) as admin:
            return describe(admin, [handle.transactional_id])[handle.transactional_id].state

    def answer(self, handle: PreparedTransaction) -> Outcome:
        """What the engine makes of the bare answer to the commit."""
        return self.end(handle, True)

    def error(self, handle: PreparedTransaction) -> str:
        """The bare answer to the commit, in Kafka's word."""
        end = End(handle.transactional_id, handle.producer_id, handle.epoch)
        with Admin(self.connection) as admin:

            async def ask() -> int:
                (node,) = (await admin.coordinators([end.transactional_id])).values()
                code: int = (await admin.send(_end_txn(end, True, self.version), node)).error_code
                return code

            return name_of(admin.run(ask))


def version_of(connection: Connection, older: int = 0) -> int:
    """The version of EndTxn that the sink uses on these brokers, or one so many below."""
    with Admin(connection) as admin:
        newest = end_txn_version(admin)
    if newest - older < 3:
        pytest.skip(f"EndTxn {newest} is the newest here, and the sink uses none below 3")
    return newest - older


def needs_version_5(connection: Connection) -> None:
    if version_of(connection) < 5:
        pytest.skip("these brokers have no EndTxn 5 (Kafka 4.0)")


@pytest.fixture(params=OLDER, ids=IDS)
def cluster(request: pytest.FixtureRequest, connection: Connection, topic: str) -> Cluster:
    return Cluster(connection, topic, fresh_name("sink"), version_of(connection, request.param))


def mine(part: int = 0) -> list[str]:
    return [f"{part}{row}" for row in ROWS]


def test_a_first_commit_and_every_retry_of_it_are_done(cluster: Cluster) -> None:
    """Guards against a retry after a lost answer that is taken for a loss, and then written again (duplicate)."""
    handle, _ = cluster.prepare()
    for _ in range(3):
        assert cluster.complete(handle) == []
    assert cluster.visible() == mine()


def test_a_part_that_was_confirmed_a_moment_ago_is_done_or_in_doubt_by_the_topics_of_now(cluster: Cluster) -> None:
    """Guards against a mark over a topic that was made again between the confirmation and the commit (a loss)."""
    second = create_topic(cluster.connection.bootstrap_servers)
    with Admin(cluster.connection) as admin:
        ids = admin.topic_ids([cluster.topic, second])
    handle, _ = cluster.prepare()
    assert cluster.complete(handle, confirmed=ids) == []
    again, _ = cluster.prepare(part=1)
    in_both = replace(again, written={**again.written, (second, 0): OffsetRange(0, 1)})
    with pytest.raises(Expired, match=second):
        cluster.complete(in_both, confirmed={**ids, second: "the id of before"})
    assert cluster.visible() == mine(0) + mine(1)


def test_a_commit_that_went_through_with_the_other_version_is_done(cluster: Cluster) -> None:
    """Guards against FLINK-40689: after an upgrade or an operator's tool the retry looks fenced, or timed out."""
    handle, _ = cluster.prepare()
    assert cluster.end(handle, True, cluster.other_version) is Outcome.DONE
    assert cluster.answer(handle) in (Outcome.UNKNOWN, Outcome.LOST)
    assert cluster.complete(handle) == []
    assert cluster.visible() == mine()


@pytest.mark.parametrize("other", [False, True], ids=["same version", "other version"])
def test_an_abort_after_the_commit_changes_nothing(other: bool, cluster: Cluster) -> None:
    """Guards against an abort whose NONE (an "empty abort" of version 5) is taken for a proof of loss (duplicate)."""
    handle, _ = cluster.prepare()
    assert cluster.complete(handle) == []
    cluster.end(handle, False, cluster.other_version if other else None)
    assert cluster.complete(handle) == []
    assert cluster.visible() == mine()


@pytest.mark.parametrize("other", [False, True], ids=["same version", "other version"])
def test_what_an_operator_aborted_is_proven_lost(other: bool, cluster: Cluster) -> None:
    """Guards against a loss that is taken for done: nobody would write the part again."""
    handle, _ = cluster.prepare()
    second, _ = cluster.prepare(part=1)
    assert cluster.end(handle, False, cluster.other_version if other else None) is Outcome.DONE
    assert cluster.complete(handle, second) == [handle]
    assert cluster.visible() == mine(1)


def test_what_timed_out_is_proven_lost(cluster: Cluster) -> None:
    """Guards against the silent loss of a driver that was away too long; below version 5 it looks like a fence."""
    handle, _ = cluster.prepare(timeout_ms=1000)
    until("the coordinator aborts it", lambda: cluster.state(handle) == "CompleteAbort", 30)
    assert cluster.error(handle) == ("INVALID_TXN_STATE" if cluster.version >= 5 else "PRODUCER_FENCED")
    assert cluster.answer(handle) is (Outcome.LOST if cluster.version >= 5 else Outcome.UNKNOWN)
    assert cluster.complete(handle) == [handle]
    assert cluster.visible() == []


def test_what_was_committed_before_its_id_was_initialised_again_is_done(cluster: Cluster) -> None:
    """Guards against a replay (duplicate) of a part whose coordinator only says PRODUCER_FENCED by now."""
    handle, _ = cluster.prepare()
    assert cluster.complete(handle) == []
    cluster.init(handle)
    assert cluster.answer(handle) is Outcome.UNKNOWN
    assert cluster.complete(handle) == []
    assert cluster.visible() == mine()


def test_what_another_initialisation_aborted_is_proven_lost(cluster: Cluster) -> None:
    """Guards against the same answer taken for done (loss)."""
    handle, _ = cluster.prepare()
    cluster.init(handle)
    assert cluster.answer(handle) is Outcome.UNKNOWN
    assert cluster.complete(handle) == [handle]
    assert cluster.visible() == []


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "timed out"])
def test_a_foreign_transaction_that_holds_the_partition_back_hides_no_outcome(
    committed: bool, cluster: Cluster
) -> None:
    """Guards against a wedge: as long as somebody else's transaction is open (a hanging one: for ever), the batch would
    end with EO-UNFINISHED at each start, though its own end is in the log.
    """
    foreign = open_transaction(cluster.connection)
    foreign.produce(cluster.topic, b"foreign", partition=0)
    foreign.flush(30)
    handle, _ = cluster.prepare(timeout_ms=60_000 if committed else 1000)
    if committed:
        assert cluster.end(handle, True, cluster.other_version) is Outcome.DONE
    state = "CompleteCommit" if committed else "CompleteAbort"
    until(state, lambda: cluster.state(handle) == state, 30)

    assert cluster.complete(handle) == ([] if committed else [handle])

    foreign.abort_transaction(30)
    assert cluster.visible() == (mine() if committed else [])


def test_a_decision_that_was_amended_after_an_upgrade_of_the_brokers_is_completed_without_evidence(
    connection: Connection, topic: str
) -> None:
    """Guards against EO-EXPIRED: the parts that stay were committed with version 4 and must be asked for with it, and
    without READ on the topic nothing else tells that they are committed.
    """
    needs_version_5(connection)
    before, after = Cluster(connection, topic, fresh_name("sink"), 4), Cluster(connection, topic, "", 5)
    kept, lost, again = (replace(before.prepare(part=part)[0], place=None) for part in (0, 1, 2))
    assert before.complete(kept) == []
    earlier = Decision("q", 0, 1, (kept, lost), "", before.version, 0)
    replay = {"kafka": {str(lost.part): rows_of(lost)}}
    amended = amend(earlier, Decision("q", 0, 2, (replace(again, part=lost.part),), "", after.version, 0), replay)
    with Admin(connection) as admin:
        for _ in range(2):
            assert commit_transactions(before.sink_id, amended.parts_of("kafka"), admin, 20) == []
    before.end(lost, False)
    assert before.visible() == mine(0) + mine(2)


def test_an_empty_transaction_is_never_taken_for_committed(cluster: Cluster) -> None:
    """A part without rows has no handle. Were there one all the same, nothing could be proven of it."""
    name = part_id(cluster.sink_id, 1, 0, "0.0")
    with Admin(cluster.connection) as admin:
        transaction = PartTransaction(cluster.connection, {}, name, 60_000, admin)
        producer_id, epoch = transaction.producer_id, transaction.epoch
        empty = PreparedTransaction(name, producer_id, epoch, 0, 1)
    assert cluster.answer(empty) is Outcome.LOST
    with pytest.raises(Expired, match="in doubt"):
        cluster.complete(empty)


@pytest.fixture(params=OLDER, ids=IDS)
def forgetful(request: pytest.FixtureRequest, forgetful_connection: Connection) -> Cluster:
    topic = create_topic(forgetful_connection.bootstrap_servers)
    version = version_of(forgetful_connection, request.param)
    return Cluster(forgetful_connection, topic, fresh_name("sink"), version)


@pytest.fixture(scope="module")
def forgetful_connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    from testkit.broker import running_broker

    with running_broker(tmp_path_factory.mktemp("forgetful"), FORGETFUL) as running:
        assert isinstance(running, EmbeddedBroker)
        yield Connection.from_options({"kafka.bootstrap.servers": running.bootstrap_servers})


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "timed out"])
@pytest.mark.long
def test_an_id_that_the_brokers_have_forgotten_still_has_an_outcome(committed: bool, forgetful: Cluster) -> None:
    """Guards against the answer INVALID_PRODUCER_ID_MAPPING, which is all that is left after a week without a start."""
    handle, _ = forgetful.prepare(timeout_ms=60_000 if committed else 1000)
    if committed:
        assert forgetful.complete(handle) == []
    until("the brokers forget the id", lambda: forgetful.state(handle) == "", 60)
    assert forgetful.answer(handle) is Outcome.UNKNOWN
    assert forgetful.complete(handle) == ([] if committed else [handle])
    assert forgetful.visible() == (mine() if committed else [])


def test_version_5_fences_the_task_that_prepared_a_part(connection: Connection, topic: str) -> None:
    """Guards against a zombie: its later rows, and its own end of the transaction, must not become visible. Before the
    markers are written, and below version 5 for ever, they would (tried): so a task's producer is dropped with the
    prepare.
    """
    needs_version_5(connection)
    cluster = Cluster(connection, topic, fresh_name("sink"), 5)
    handle, zombie = cluster.prepare()
    assert cluster.complete(handle) == []
    until("the markers", lambda: cluster.state(handle) == "CompleteCommit", 20)
    with pytest.raises((KafkaException, SystemError)):  # a fatal error inside a callback comes out as a SystemError
        zombie.produce(cluster.topic, b"late", partition=0)
        zombie.flush(15)
        zombie.commit_transaction(10)
    assert cluster.complete(handle) == []
    assert cluster.visible() == mine()


def test_the_task_may_say_commit_after_the_driver(cluster: Cluster) -> None:
    """Below version 5 it is a no-op that readies the producer, with 5 the task is fenced; never a second end."""
    handle, producer = cluster.prepare()
    assert cluster.complete(handle) == []
    try:
        producer.commit_transaction(10)
        assert cluster.version < 5
    except KafkaException:
        assert cluster.version >= 5
    assert cluster.visible() == mine()


@pytest.mark.long
def test_the_last_epochs_of_a_producer_id_and_the_first_of_the_next_lose_and_duplicate_nothing(
    cluster: Cluster,
) -> None:
    """Guards against the rollover: from epoch 32,700 on through the change of the producer id, each part once; and a
    retry of a commit whose id has a new producer id since.
    """
    name = part_id(cluster.sink_id, 1, 0, "0.0")
    use_up_epochs(cluster.connection, name, 32_700)
    ids, handles = set[int](), []
    for n in range(80):
        with Admin(cluster.connection) as admin:
            transaction = PartTransaction(cluster.connection, {}, name, 60_000, admin)
            transaction.send(cluster.topic, None, f"{n}".encode(), partition=0)
            handle = transaction.prepare(0, 30)
        assert cluster.complete(handle) == []
        assert cluster.complete(handle) == []
        ids.add(handle.producer_id)
        handles.append(handle)
    assert len(ids) == 2 and max(h.epoch for h in handles) > 32_700
    for handle in handles:  # each of them long since initialised again
        assert cluster.complete(handle) == []
    assert cluster.visible() == [str(n) for n in range(80)]


def use_up_epochs(connection: Connection, transactional_id: str, until_epoch: int) -> None:
    """InitProducerId again and again, raw: 32,700 of them take some 20 s."""

    async def loop() -> None:
        (node,) = (await admin.coordinators([transactional_id])).values()
        epoch = -1
        while epoch < until_epoch:
            request = InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=60_000,
                producer_id=-1,
                producer_epoch=-1,
            )
            answer = await admin.send(request, node)
            assert answer.error_code in (0, 51), answer  # 51: the last one is not over
            epoch = answer.producer_epoch if not answer.error_code else epoch

    with Admin(connection, 300) as admin:
        admin.run(loop)
