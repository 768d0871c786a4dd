"""What brokers answer, on which the sink leans: EndTxn by version, InitProducerId over an open transaction, what
leaders and coordinators say, and what markers, deletion and a new topic do to offsets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.protocol.admin.transactions import DescribeProducersRequest, ListTransactionsRequest
from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest
from kafka.structs import TopicPartition as Partition

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import name_of
from exactly_once.txn.coordinators import End, _end_txn, describe, list_transactions, transaction_level
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import oracle
from testkit.broker import create_topic, delete_topic, fresh_name, open_transaction
from testkit.processes import until

DAY_MS = 86_400_000
#: By default a broker looks for what is too old every five minutes, half a minute after its start.
DELETES_AT_ONCE = {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "200"}


@pytest.fixture
def topic(connection: Connection) -> str:
    return create_topic(connection.bootstrap_servers)


class Open(NamedTuple):
    """An open transaction of librdkafka's, and the producer that left it open."""

    end: End
    producer: Producer


def begin(connection: Connection, admin: Admin, topic: str, values: Sequence[str] = "abcde", **how: Any) -> Open:
    """Leave a transaction open with these records in partition 0."""
    name, settings = fresh_name("id"), how.pop("settings", {})
    producer = open_transaction(connection, name, **settings)
    for value in values:
        producer.produce(topic, value, partition=0, **how)
    assert producer.flush(30) == 0
    return Open(describe(admin, [name])[name].end, producer)


class Answer(NamedTuple):
    error: str
    epoch: int


def ask_end(admin: Admin, end: End, version: int, commit: bool = True) -> Answer:
    """The bare answer to one EndTxn; CONCURRENT_TRANSACTIONS (a marker is on its way) is asked again."""

    async def question() -> Answer:
        (node,) = (await admin.coordinators([end.transactional_id])).values()
        answer = await admin.send(_end_txn(end, commit, version), node)
        return Answer(name_of(answer.error_code), getattr(answer, "producer_epoch", -1))

    for _ in admin.renew(30).deadline.tries():
        found = admin.run(question)
        if found.error != "CONCURRENT_TRANSACTIONS":
            break
    return found


def init(admin: Admin, name: str, producer_id: int = -1, epoch: int = -1, timeout_ms: int = 60_000) -> Iterator[Answer]:
    """The bare answers to InitProducerId, one a request, until one is not CONCURRENT_TRANSACTIONS."""

    async def question() -> Answer:
        (node,) = (await admin.coordinators([name])).values()
        asked = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            max_version=4,
        )
        answer = await admin.send(asked, node)
        return Answer(name_of(answer.error_code), answer.producer_epoch)

    for _ in admin.renew(30).deadline.tries():
        found = admin.run(question)
        yield found
        if found.error != "CONCURRENT_TRANSACTIONS":
            return


def state(admin: Admin, end: End) -> str:
    return describe(admin, [end.transactional_id])[end.transactional_id].state


def until_ended(admin: Admin, end: End, how: str = "CompleteCommit") -> None:
    until(how, lambda: state(admin, end) == how, 20)


def leader_says(admin: Admin, topic: str, producer_id: int) -> Any:
    """The leader of partition 0 on one producer."""
    asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])

    async def question() -> Any:
        return await admin.send(DescribeProducersRequest(topics=[asked]), await admin.leader((topic, 0)))

    (partition,) = admin.ask(question).topics[0].partitions
    return next(p for p in partition.active_producers if p.producer_id == producer_id)


def values(connection: Connection, topic: str) -> list[str | None]:
    return [m.value for m in oracle.read(connection, [topic])]


def needs_5(admin: Admin) -> None:
    if admin.api_version(EndTxnRequest()) < 5:
        pytest.skip("these brokers have no EndTxn 5 (Kafka 4.0)")


def version(admin: Admin) -> int:
    """The newest EndTxn of these brokers."""
    return 5 if transaction_level(admin) >= 2 else 4 if admin.api_version(EndTxnRequest()) >= 4 else 3


# -- EndTxn -----------------------------------------------------------------------------------------------------------


def test_version_5_raises_the_epoch_and_4_does_not_and_a_repeat_in_the_same_version_is_none(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Loss: a repeat after a lost answer is read as fenced. The decision keeps the version for it."""
    needs_5(admin)
    for version, raised in ((4, 0), (5, 1)):
        end, _ = begin(connection, admin, topic)
        assert ask_end(admin, end, version).error == "NONE"
        until_ended(admin, end)
        again = ask_end(admin, end, version)
        assert again.error == "NONE"
        assert describe(admin, [end.transactional_id])[end.transactional_id].producer_epoch == end.epoch + raised
        assert again.epoch == (end.epoch + 1 if raised else -1)


def test_a_commit_that_is_repeated_in_another_version_gets_the_answer_of_a_lost_one(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Duplicate: FLINK-40689, read as lost, the part would be written again."""
    needs_5(admin)
    for first, then, error in ((5, 4, "PRODUCER_FENCED"), (4, 5, "INVALID_TXN_STATE")):
        end, _ = begin(connection, admin, topic, "a")
        assert ask_end(admin, end, first).error == "NONE"
        until_ended(admin, end)
        assert ask_end(admin, end, then).error == error
    assert values(connection, topic) == ["a", "a"]


def test_an_abort_of_version_5_behind_a_commit_says_none_and_all_readers_have_the_records(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Duplicate: NONE is no proof that records are gone, nor is the coordinator's CompleteAbort."""
    needs_5(admin)
    end, _ = begin(connection, admin, topic, "a")
    assert ask_end(admin, end, 4).error == "NONE"
    until_ended(admin, end)
    assert ask_end(admin, end, 4, commit=False).error == "INVALID_TXN_STATE"
    assert ask_end(admin, end, 5, commit=False).error == "NONE"
    until_ended(admin, end, "CompleteAbort")
    assert values(connection, topic) == ["a"]


def test_an_empty_transaction_and_an_unknown_id_cannot_be_committed(connection: Connection, admin: Admin) -> None:
    """Wedge: a part without rows has no handle, since its commit would be refused at each start."""
    open_transaction(connection, (name := fresh_name("id")))
    end = describe(admin, [name])[name].end
    assert state(admin, end) == "Empty"
    assert ask_end(admin, end, version(admin)).error == "INVALID_TXN_STATE"
    unknown = End(fresh_name("id"), end.producer_id, end.epoch)
    assert ask_end(admin, unknown, version(admin)).error == "INVALID_PRODUCER_ID_MAPPING"


def test_a_commit_of_version_4_that_comes_twice_commits_the_next_transaction_of_the_same_producer(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Duplicate: id, producer id and epoch are those of the next one too, so each transaction of the sink has an
    InitProducerId of its own.
    """
    end, producer = begin(connection, admin, topic, "a")
    older = min(4, version(admin))
    assert ask_end(admin, end, older).error == "NONE"
    until_ended(admin, end)
    producer.commit_transaction(30)  # nothing is left to commit: the producer is ready for another one
    producer.begin_transaction()
    producer.produce(topic, "half", partition=0)
    producer.flush(30)
    assert ask_end(admin, end, older).error == "NONE"
    until("the half transaction", lambda: values(connection, topic) == ["a", "half"])


# -- InitProducerId ---------------------------------------------------------------------------------------------------


def test_initialising_an_id_aborts_what_is_open_and_raises_the_epoch_twice(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Loss: a late task that initialises an id aborts what a decision names, so ids carry the claim's slot."""
    end, _ = begin(connection, admin, topic)
    *_, last = init(admin, end.transactional_id)
    assert last == Answer("NONE", end.epoch + 2)
    assert values(connection, topic) == []
    assert ask_end(admin, end, version(admin)).error == "PRODUCER_FENCED"


def test_initialising_with_another_epoch_is_refused_but_aborts_what_is_open_and_with_another_producer_id_does_not(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Loss: PRODUCER_FENCED is no word that nothing was changed. Coordinators compare the epoch behind the abort."""
    end, _ = begin(connection, admin, topic, "a")
    *_, last = init(admin, end.transactional_id, end.producer_id, end.epoch + 7)
    assert last.error == "PRODUCER_FENCED"
    assert state(admin, end) == "CompleteAbort" and values(connection, topic) == []
    other, producer = begin(connection, admin, topic, "b")
    *_, last = init(admin, other.transactional_id, other.producer_id + 1_000_000, other.epoch)
    assert last.error == "PRODUCER_FENCED"
    assert state(admin, other) == "Ongoing"
    producer.commit_transaction(30)


def test_an_id_that_nobody_has_used_is_made_by_its_initialisation(admin: Admin) -> None:
    """Mishap: kafka-transactions.sh forceTerminateTransaction succeeds for a misspelt id, and makes it."""
    name = fresh_name("id")
    assert describe(admin, [name])[name].state == ""
    *_, last = init(admin, name)
    assert last == Answer("NONE", 0) and describe(admin, [name])[name].state == "Empty"


def test_a_timeout_above_the_brokers_maximum_is_refused_at_the_initialisation(admin: Admin) -> None:
    """Outage: each task of a stream would fail on it, so a start compares the two."""
    *_, last = init(admin, fresh_name("id"), timeout_ms=900_001)
    assert last.error == "INVALID_TRANSACTION_TIMEOUT"


# -- markers, offsets, readers ----------------------------------------------------------------------------------------


def test_an_open_transaction_holds_back_all_behind_it_and_each_end_takes_an_offset(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Mishap: a difference of offsets is no number of records, and one open part holds up other applications."""
    end, _ = begin(connection, admin, topic)
    plain = Producer(connection.librdkafka())
    plain.produce(topic, "other", partition=0)
    assert plain.flush(30) == 0
    assert admin.watermarks(topic)[0] == (0, 0, 6) and values(connection, topic) == []
    assert ask_end(admin, end, version(admin), commit=False).error == "NONE"
    until("the marker", lambda: admin.watermarks(topic)[0] == (0, 7, 7))
    assert values(connection, topic) == ["other"]


def test_a_transaction_begins_with_its_first_record_and_its_time_is_the_coordinators(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Mishap: a clock of an executor's that judges whether a transaction has time to spare."""
    end, producer = begin(connection, admin, topic, [])
    assert describe(admin, [end.transactional_id])[end.transactional_id].started_ms == -1
    producer.produce(topic, "a", partition=0)
    producer.flush(30)
    found = describe(admin, [end.transactional_id])[end.transactional_id]
    assert (found.state, found.partitions, found.timeout_ms) == ("Ongoing", ((topic, 0),), 60_000)
    assert abs(found.started_ms - time.time() * 1000) < 30_000
    producer.abort_transaction(30)


# -- leaders and lists ------------------------------------------------------------------------------------------------


def test_a_leader_tells_the_first_offset_and_the_last_sequence_of_an_open_transaction(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Loss: a decision compares them with what the task wrote, which is all that shows records that are gone."""
    begin(connection, admin, topic, "ab")[1].commit_transaction(30)
    end, producer = begin(connection, admin, topic, "abcde")
    found = leader_says(admin, topic, end.producer_id)
    told = (found.current_txn_start_offset, found.last_sequence, found.producer_epoch)
    assert told == (3, 4, end.epoch)
    producer.abort_transaction(30)


def test_after_version_5_a_leader_has_the_next_epoch_and_no_sequence_and_after_4_the_same_ones(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Loss: read behind a commit, they say nothing of what it held."""
    needs_5(admin)
    for version, epoch, sequence in ((4, 0, 4), (5, 1, -1)):
        end, _ = begin(connection, admin, topic)
        ask_end(admin, end, version)
        until_ended(admin, end)
        until("its marker", lambda e=end: leader_says(admin, topic, e.producer_id).current_txn_start_offset == -1)  # type: ignore[misc]
        found = leader_says(admin, topic, end.producer_id)
        assert (found.producer_epoch - end.epoch, found.last_sequence) == (epoch, sequence)


def test_a_leader_tells_the_same_of_a_transaction_whose_records_are_deleted_and_readers_get_the_rest(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Loss in silence: DeleteRecords and retention show in ListOffsets alone, so the sink asks for that too."""
    end, producer = begin(connection, admin, topic, "abcde")
    clients = AdminClient(connection.librdkafka())
    for done in clients.delete_records([TopicPartition(topic, 0, 5)]).values():
        assert done.result(30).low_watermark == 5
    for value in "fg":
        producer.produce(topic, value, partition=0)
    producer.flush(30)
    found = leader_says(admin, topic, end.producer_id)
    assert (found.current_txn_start_offset, found.last_sequence) == (0, 6)
    assert admin.earliest([(topic, 0)])[topic, 0] == 5
    assert ask_end(admin, end, version(admin)).error == "NONE"
    until("the rest", lambda: values(connection, topic) == ["f", "g"])


def test_a_coordinator_answers_an_id_that_it_does_not_know_with_an_error_and_leaves_it_out_of_its_list(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Mishap: "nothing is open" must not be read out of an answer about another id."""
    end, producer = begin(connection, admin, topic)
    listed = {(row.transactional_id, row.state) for row in list_transactions(admin, end.transactional_id)}
    assert listed == {(end.transactional_id, "Ongoing")}
    nobody = fresh_name("id")
    assert describe(admin, [nobody])[nobody].state == "" and list_transactions(admin, nobody, ()) == []
    producer.commit_transaction(30)
    until_ended(admin, end)
    assert list_transactions(admin, end.transactional_id) == []
    assert {r.state for r in list_transactions(admin, end.transactional_id, ())} == {"CompleteCommit"}


def test_a_list_by_pattern_matches_whole_ids(connection: Connection, admin: Admin, topic: str) -> None:
    """Loss: a sweep by a pattern that matched parts of ids would reach other sinks; one without .* finds nothing."""
    if admin.api_version(ListTransactionsRequest()) < 2:
        pytest.skip("these brokers list by no pattern (Kafka 4.1)")
    end, producer = begin(connection, admin, topic)
    nodes = admin.run(admin.brokers)

    def found(pattern: str) -> list[str]:
        answer = admin.client.list_transactions(broker_ids=nodes, transactional_id_pattern=pattern)
        return [t.transactional_id for rows in answer.values() for t in rows]

    assert found(end.transactional_id[:-1]) == []
    assert found(f"{end.transactional_id[:-1]}.*") == [end.transactional_id]
    producer.abort_transaction(30)


# -- deletion and topics ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_of_transactions_with_old_times_retention_deletes_the_first_and_keeps_the_next(
    own_broker: Callable[..., EmbeddedBroker],
) -> None:
    """Loss in silence: the marker of the first one, of today, rolls the segment; the old one is deleted at once."""
    connection = Connection(own_broker(properties=DELETES_AT_ONCE).bootstrap_servers)
    topic = create_topic(connection.bootstrap_servers, config={"retention.ms": str(DAY_MS)})
    old = int(time.time() * 1000) - 10 * DAY_MS
    with Admin(connection, 60) as admin:
        for value in "abc":
            begin(connection, admin, topic, value, timestamp=old)[1].commit_transaction(30)
        until("retention", lambda: admin.earliest([(topic, 0)])[topic, 0] == 1, 60)
    assert values(connection, topic) == ["b", "c"]


def test_endtxn_says_none_for_records_of_a_topic_that_was_made_again(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Loss in silence: "done" speaks of the old topic, so a decision keeps the topics' ids."""
    end, _ = begin(connection, admin, topic)
    before = admin.topic_ids([topic])[topic]
    delete_topic(connection.bootstrap_servers, topic)
    until("its end", lambda: topic not in AdminClient(connection.librdkafka()).list_topics(timeout=10).topics)
    create_topic(connection.bootstrap_servers, topic)
    assert admin.topic_ids([topic])[topic] != before
    assert ask_end(admin, end, version(admin)).error == "NONE"
    until_ended(admin, end)
    assert values(connection, topic) == [] and admin.earliest([(topic, 0)])[topic, 0] == 0


# -- groups -----------------------------------------------------------------------------------------------------------


def group_offset(admin: Admin, group: str, topic: str) -> int | None:
    """The group's committed offset of partition 0; the coordinator of a new group is asked until it has loaded."""
    found = admin.call(lambda: admin.client.list_group_offsets({group: None}))[group]
    return found[Partition(topic, 0)].offset if Partition(topic, 0) in found else None


def with_offsets(connection: Connection, admin: Admin, topic: str, offset: int) -> tuple[Open, str]:
    """An open transaction that also commits an offset of a group."""
    opened, group = begin(connection, admin, topic, "a"), fresh_name("group")
    member = Consumer({**connection.librdkafka(), "group.id": group})
    opened.producer.send_offsets_to_transaction(
        [TopicPartition(topic, 0, offset)], member.consumer_group_metadata(), 30
    )
    member.close()
    return opened, group


def test_offsets_in_a_transaction_are_the_groups_when_it_is_committed_and_not_before(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Loss: a group that moved before the decision would hide a batch that is still to be written."""
    opened, group = with_offsets(connection, admin, topic, 100)
    assert group_offset(admin, group, topic) is None
    ask_end(admin, opened.end, version(admin))
    until("the offset", lambda: group_offset(admin, group, topic) == 100)
    other, aborted = with_offsets(connection, admin, topic, 100)
    ask_end(admin, other.end, version(admin), commit=False)
    until_ended(admin, other.end, "CompleteAbort")
    assert group_offset(admin, aborted, topic) is None


def test_an_offset_that_somebody_sets_beside_a_commit_in_flight_stays(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Mishap: it takes away what a start knows a lost decision by; lag tools show it until the next batch."""
    opened, group = with_offsets(connection, admin, topic, 100)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 50)])
    clients = AdminClient(connection.librdkafka())
    clients.alter_consumer_group_offsets([wanted])[group].result(30)
    ask_end(admin, opened.end, version(admin))
    until_ended(admin, opened.end)
    assert group_offset(admin, group, topic) == 50


def test_a_group_may_be_deleted_beside_a_commit_in_flight_whose_offsets_are_then_nowhere(
    connection: Connection, admin: Admin, topic: str
) -> None:
    """Mishap: the commit says NONE, and the group has no offset."""
    opened, group = with_offsets(connection, admin, topic, 100)
    clients = AdminClient(connection.librdkafka())
    clients.delete_consumer_groups([group])[group].result(30)
    assert ask_end(admin, opened.end, version(admin)).error == "NONE"
    until_ended(admin, opened.end)
    assert group_offset(admin, group, topic) is None
