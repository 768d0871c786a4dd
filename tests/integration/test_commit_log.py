"""The commit log on a real broker: read to its end or not at all, written by its owner, whatever others do to it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from kafka.errors import GroupIdNotFoundError, KafkaError, OffsetNotAvailableError, UnknownTopicOrPartitionError
from kafka.protocol.metadata import FindCoordinatorRequest

from exactly_once.commitlog import commit_log, log_reader
from exactly_once.commitlog.commit_log import CommitLog, read_log
from exactly_once.commitlog.log_writer import LogWriter
from exactly_once.coordinator import recover as recovery
from exactly_once.deadline import Deadline, now_ms
from exactly_once.errors import (
    BrokerUnreachable,
    CommitLogBlocked,
    CommitLogDamaged,
    DecisionTooLarge,
    Fenced,
    InvalidOption,
)
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import check
from exactly_once.kafka.groups import published_offsets
from exactly_once.protocol.encoding import decode
from exactly_once.protocol.names import commit_log_id, commit_log_topic, offsets_group
from exactly_once.protocol.records import MANY_PARTS, WRITE, Claim, Completed, Decision, Place, PreparedTransaction
from exactly_once.tools.operation.end_hanging import COMMIT_HANGING, HangingParameters
from exactly_once.tools.operation.log_records import UNDO, UndoParameters, log_records
from exactly_once.tools.operation.model import OperationContext
from exactly_once.tools.operation.rules import Refused
from exactly_once.txn import fetch as fetching
from exactly_once.txn import scan
from testkit import broker as brokers
from testkit import oracle
from testkit.hanging import UNVERIFIED, leave_hanging
from testkit.processes import until

LOG_AS_README_SAYS = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}


def claim(token: int) -> Claim:
    return Claim(token, "q", 0, "stream", "elsewhere", 1, "/c")


def decision(sink_id: str, batch: int, token: int = 1, parts: int = 1, query: str = "q") -> Decision:
    handles = tuple(
        PreparedTransaction(f"eo:{sink_id}:0:{p}:0.0", 1000 + p, 0, p, 10, 100, f"{p:016x}", Place("out", p, 7))
        for p in range(parts)
    )
    return Decision(query, batch, token, handles, "digest", 5, 1, topics=("out",))


def owned(connection: Connection, sink_id: str, token: int = 1) -> CommitLog:
    """The log of a sink that has just been claimed."""
    log = CommitLog(connection, sink_id)
    log.claim(lambda state: claim(token), Deadline(30))
    return log


@pytest.fixture
def sink_id(connection: Connection) -> Iterator[str]:
    """A sink whose commit log ends with the test: its records must not disturb tests that look at all sinks."""
    name = brokers.fresh_name("sink")
    yield name
    with suppress(KafkaException):  # a test on a broker of its own, or one that made no log
        brokers.delete_topic(connection.bootstrap_servers, commit_log_topic(name))


@contextmanager
def foreign_transaction(connection: Connection, sink_id: str, name: str = "") -> Iterator[Producer]:
    """Somebody else's transaction, open on the commit log; aborted at the end."""
    settings = {"transactional.id": name or brokers.fresh_name("foreign"), "log_level": 2}
    producer = Producer({**connection.librdkafka(), **settings})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(commit_log_topic(sink_id), "stray", "stray", partition=0)
    producer.flush(30)
    yield producer
    with suppress(KafkaException):  # ended by somebody else
        producer.abort_transaction(30)


# -- the end of the log ------------------------------------------------------------------------------------------------


def test_a_claim_waits_for_somebody_elses_transaction_that_hides_the_decisions_behind_it(
    connection: Connection, sink_id: str
) -> None:
    """Duplicates: a start that reads to the last stable offset plans a batch again that is decided behind it."""
    first = owned(connection, sink_id)
    with foreign_transaction(connection, sink_id) as foreign:
        first.append(decision(sink_id, 0), Deadline(30))
        assert read_log(connection, sink_id).decisions == (), "an observer sees what is stable"
        threading.Timer(1.0, foreign.abort_transaction, [30]).start()
        seen, _ = CommitLog(connection, sink_id).claim(lambda state: claim(2), Deadline(30))
        assert seen.decisions == (decision(sink_id, 0),)
        foreign.begin_transaction()


def test_a_recovery_does_not_wait_for_the_write_of_a_dead_driver_to_time_out(
    connection: Connection, sink_id: str
) -> None:
    """Outage: a driver killed in the middle of a write to its log leaves the write open for half a minute, and readers
    of the output wait for the recovery as long. The claim of the recovery is what ends the write.
    """
    owned(connection, sink_id).append(decision(sink_id, 0), Deadline(30))
    with foreign_transaction(connection, sink_id, commit_log_id(sink_id)) as dead:
        taken = recovery.claim_sink(connection, sink_id, budget_s=commit_log.LOG_TRANSACTION_TIMEOUT_MS / 3_000)
        assert taken is not None and taken.token == 2
        with suppress(KafkaException):
            dead.commit_transaction(30)  # fenced; the fixture's abort is refused as well
        dead.purge()
    log = read_log(connection, sink_id)
    assert log.owner == taken and log.decisions == (decision(sink_id, 0),)


@pytest.mark.long
def test_a_log_that_stays_blocked_is_an_error_that_names_who_blocks_it(connection: Connection, sink_id: str) -> None:
    """Wedge: EO-FENCED by a claim of one's own, at each start, and not a word about the transaction behind it."""
    first = owned(connection, sink_id)
    name = brokers.fresh_name("mirror")
    with foreign_transaction(connection, sink_id, name):
        first.append(decision(sink_id, 0), Deadline(30))
        with pytest.raises(
            CommitLogBlocked,
            match=rf"EO-LOG-BLOCKED: .*'{name}' \(producer \d+, epoch 0, first offset \d+\).*kafka-tra",
        ):
            CommitLog(connection, sink_id).claim(lambda state: claim(2), Deadline(4))
    seen, _ = CommitLog(connection, sink_id).claim(lambda state: claim(2), Deadline(30))
    assert (seen.owner, seen.decisions) == (claim(1), (decision(sink_id, 0),))


@pytest.mark.long
def test_a_recovery_of_a_log_that_is_hidden_from_its_first_record_does_not_call_the_sink_unused(
    connection: Connection, sink_id: str
) -> None:
    """Loss: "nothing to recover", while decided transactions run into their timeout."""
    brokers.create_topic(connection.bootstrap_servers, commit_log_topic(sink_id), config=LOG_AS_README_SAYS)
    with foreign_transaction(connection, sink_id) as foreign:
        with pytest.raises(CommitLogBlocked):
            recovery.claim_sink(connection, sink_id, budget_s=4)
        with pytest.raises(CommitLogBlocked):
            recovery.verify(connection, sink_id, budget_s=4)
        foreign.abort_transaction(30)
        foreign.begin_transaction()
    assert recovery.claim_sink(connection, sink_id) is None


@pytest.mark.long
def test_a_hanging_transaction_on_the_log_is_ended_by_its_name(own_broker) -> None:
    """Wedge: the error tells a way out that does not work for the log's own topic."""
    unverified = Connection(own_broker(properties=UNVERIFIED).bootstrap_servers)
    log = owned(unverified, "s")
    leave_hanging(unverified, log.topic, 0)
    with pytest.raises(CommitLogBlocked) as blocked:
        CommitLog(unverified, "s").claim(lambda state: claim(2), Deadline(10))
    name = next(word for word in blocked.value.way_out.split() if word.startswith(f"{log.topic}-0@"))
    context = OperationContext(unverified)
    with pytest.raises(Refused) as refused:
        COMMIT_HANGING.apply(context, HangingParameters(transaction=name, older_than_s=0))
    phrase = refused.value.phrase
    COMMIT_HANGING.apply(context, HangingParameters(transaction=name, force=phrase, older_than_s=0))
    assert CommitLog(unverified, "s").claim(lambda state: claim(2), Deadline(30))[0].owner == claim(1)


# -- the topic ---------------------------------------------------------------------------------------------------------


def test_a_log_with_more_partitions_is_its_first_one(connection: Connection, sink_id: str) -> None:
    """Wedge: their keys' hash sends records to partitions that the sink never reads: "superseded by no claim"."""
    brokers.create_topic(connection.bootstrap_servers, commit_log_topic(sink_id), 3, LOG_AS_README_SAYS)
    log = owned(connection, sink_id)
    log.append(decision(sink_id, 0), Deadline(30))
    assert CommitLog(connection, sink_id).claim(lambda state: claim(2), Deadline(30))[0].decisions == (
        decision(sink_id, 0),
    )


def test_a_log_with_records_in_another_partition_is_refused(connection: Connection, sink_id: str) -> None:
    """Loss: what an older version wrote there by its key is not read any more."""
    brokers.create_topic(connection.bootstrap_servers, commit_log_topic(sink_id), 3, LOG_AS_README_SAYS)
    producer = Producer(connection.librdkafka())
    producer.produce(commit_log_topic(sink_id), "x", "claim", partition=2)
    producer.flush(30)
    with pytest.raises(CommitLogDamaged, match="partition 2"):
        owned(connection, sink_id)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}, "cleanup.policy"),
        ({"cleanup.policy": "compact", "message.timestamp.type": "CreateTime"}, "message.timestamp.type"),
    ],
)
def test_a_log_with_settings_that_break_the_protocol_is_refused(
    config: dict[str, str], word: str, connection: Connection, sink_id: str
) -> None:
    """Loss: decisions that are deleted by age; transactions judged alive by the clock of the driver itself."""
    brokers.create_topic(connection.bootstrap_servers, commit_log_topic(sink_id), config=config)
    with pytest.raises(CommitLogDamaged, match=rf"EO-LOG: .*{word}.*Set {word}="):
        owned(connection, sink_id)


def test_a_small_log_is_told_at_the_start(
    connection: Connection, sink_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Wedge: a batch with many parts that can never be decided, found out at night."""
    config = {**LOG_AS_README_SAYS, "max.message.bytes": "20000"}
    brokers.create_topic(connection.bootstrap_servers, commit_log_topic(sink_id), config=config)
    with caplog.at_level(logging.WARNING):
        owned(connection, sink_id)
    assert "EO-WARN-LOG" in caplog.text and "max.message.bytes" in caplog.text


def test_a_decision_that_the_log_does_not_take_is_refused_at_once_with_both_sizes(
    connection: Connection, sink_id: str
) -> None:
    """Wedge: the whole budget of tries, then "check the brokers", at each start forever."""
    config = {**LOG_AS_README_SAYS, "max.message.bytes": "9000"}
    brokers.create_topic(connection.bootstrap_servers, commit_log_topic(sink_id), config=config)
    log = owned(connection, sink_id)
    brokers.change_topic(connection.bootstrap_servers, commit_log_topic(sink_id), "max.message.bytes", "8000")
    deadline = Deadline(30)
    with pytest.raises(DecisionTooLarge, match=r"EO-LOG-SIZE: .*1000 parts.*max\.message\.bytes=8000.*fewer parts"):
        log.append(decision(sink_id, 0, parts=1000), deadline)
    assert deadline.left > 20
    log.append(decision(sink_id, 0), Deadline(30))
    assert read_log(connection, sink_id).decisions == (decision(sink_id, 0),)


@pytest.mark.parametrize(
    ("config", "parts"),
    [({"max.message.bytes": "1000000", "segment.bytes": "1048576"}, 60_000), ({}, 1_000_000)],
    ids=["longer than a segment", "longer than the client sends"],
)
def test_every_limit_on_a_decision_is_told_as_such(
    config: dict[str, str], parts: int, connection: Connection, sink_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker says it in three ways: by the client, by the topic's limit, by the segment's size."""
    if config:
        config = {**config, "max.message.bytes": "16000000"}
        brokers.create_topic(
            connection.bootstrap_servers, commit_log_topic(sink_id), config={**LOG_AS_README_SAYS, **config}
        )
    log = owned(connection, sink_id)
    huge = decision(sink_id, 0)
    monkeypatch.setattr(commit_log, "encode", lambda record: encoded)
    encoded = noise(2_000_000) if config else b"x" * (commit_log.LARGEST_RECORD_BYTES + 1)
    with pytest.raises(DecisionTooLarge):
        log.append(huge, Deadline(30))


def noise(size: int) -> bytes:
    """Bytes that cannot be compressed."""
    import random

    return random.Random(1).randbytes(size)


@pytest.mark.long
def test_a_new_log_takes_a_decision_of_fifty_thousand_parts_with_long_names(
    connection: Connection, sink_id: str
) -> None:
    """A large cluster cannot decide: segments that are smaller than the largest message, or a limit before lz4."""
    log = owned(connection, sink_id)
    huge = decision(sink_id, 0, parts=50_000)
    huge = replace(
        huge, handles=tuple(replace(h, transactional_id=f"{h.transactional_id}{'9' * 18}") for h in huge.handles)
    )
    log.append(huge, Deadline(60))
    assert len(read_log(connection, sink_id, 60).decisions[0].handles) == 50_000


# -- what others write -------------------------------------------------------------------------------------------------


def write_stray(connection: Connection, sink_id: str, key: str, value: str | None) -> None:
    producer = Producer(connection.librdkafka())
    producer.produce(commit_log_topic(sink_id), value, key, partition=0)
    producer.flush(30)


def test_a_stray_record_is_named_and_its_tombstone_settles_it(connection: Connection, sink_id: str) -> None:
    """Wedge: one stray record in a compacted topic stops the sink forever, and its natural remedy does too."""
    log = owned(connection, sink_id)
    log.append(decision(sink_id, 0), Deadline(30))
    write_stray(connection, sink_id, "my-key", "hello")
    with pytest.raises(CommitLogDamaged, match=r"EO-LOG: .*hello.*'my-key'.*exactly-once log \S+ --drop-foreign"):
        read_log(connection, sink_id)
    write_stray(connection, sink_id, "my-key", None)
    assert read_log(connection, sink_id).decisions == (decision(sink_id, 0),)
    assert CommitLog(connection, sink_id).claim(lambda state: claim(2), Deadline(30))[0].owner == claim(1)


def test_a_stray_record_under_a_key_of_the_sinks_own_is_not_to_be_deleted(connection: Connection, sink_id: str) -> None:
    """Loss: a way out that has the last decision deleted by compaction."""
    owned(connection, sink_id).append(decision(sink_id, 0), Deadline(30))
    write_stray(connection, sink_id, "decision/0", "hello")
    with pytest.raises(CommitLogDamaged) as e:
        read_log(connection, sink_id)
    assert "tombstone" not in str(e.value)
    foreign = log_records(connection, sink_id)[-1]
    assert f"exactly-once log {sink_id} --undo {foreign.offset}" in e.value.way_out
    UNDO.apply(OperationContext(connection), UndoParameters(sink_id=sink_id, offset=foreign.offset))
    assert read_log(connection, sink_id).decisions == (decision(sink_id, 0),)


@pytest.mark.long
def test_a_log_that_is_deleted_below_a_driver_is_named_as_that(connection: Connection, sink_id: str) -> None:
    """A night's search for silent brokers, which are healthy, and restarts that heal nothing."""
    log = owned(connection, sink_id)
    brokers.delete_topic(connection.bootstrap_servers, commit_log_topic(sink_id))
    with pytest.raises(CommitLogDamaged) as e:
        log.append(decision(sink_id, 0), Deadline(5))
    assert not e.value.restart_heals and commit_log_topic(sink_id) in e.value.what


def test_a_record_that_the_broker_no_longer_dates_is_the_last_one_before_a_decision(
    connection: Connection, sink_id: str
) -> None:
    """Loss: the driver's own clock would decide whether a transaction is alive; who may not read settings sees it
    here.
    """
    log = owned(connection, sink_id)
    brokers.change_topic(
        connection.bootstrap_servers, commit_log_topic(sink_id), "message.timestamp.type", "CreateTime"
    )
    log.append(decision(sink_id, 0), Deadline(20))
    with pytest.raises(CommitLogDamaged, match=r"message.timestamp.type=CreateTime"):
        log.append(decision(sink_id, 1), Deadline(20))
    assert read_log(connection, sink_id).decisions == (decision(sink_id, 0),)


def test_a_sink_id_that_kafka_cannot_tell_from_another_one_is_refused_by_both_names(connection: Connection) -> None:
    """A raw answer of the broker about metric names, and a way out that names no setting."""
    one = brokers.fresh_name("sink") + ".a"
    owned(connection, one)
    with pytest.raises(InvalidOption, match=rf"{one.replace('.a', '_a')!r} is too similar .*{one!r}"):
        owned(connection, one.replace(".a", "_a"))


def test_a_claim_that_the_log_has_lost_is_not_called_superseded(connection: Connection, sink_id: str) -> None:
    """Mishap: "superseded by claim 1" sends people to look for a second driver, where a broker has lost records."""
    owned(connection, sink_id, token=1)
    with pytest.raises(CommitLogDamaged, match=rf"EO-LOG: claim 2 of sink {sink_id!r} is gone"):
        CommitLog(connection, sink_id).own(2, Deadline(20))


# -- the offsets of the input ------------------------------------------------------------------------------------------


def test_the_group_names_the_batch_of_the_last_decision(connection: Connection, sink_id: str, topic: str) -> None:
    """Duplicate: a log that has lost the decision is recognised by nothing else."""
    log = owned(connection, sink_id)
    with Admin(connection) as admin:
        assert published_offsets(admin, offsets_group(sink_id)).batches == {}
        for batch in range(2):
            log.append(decision(sink_id, batch), Deadline(20), {topic: {0: batch + 1}})
            named = {decision(sink_id, batch).query_id: batch}

            def told(named: dict[str, int] = named) -> bool:
                return published_offsets(admin.renew(10), offsets_group(sink_id)).batches == named

            until("the end marker in the group's partition", told)


def test_offsets_before_a_decision_whose_marker_is_late_are_never_taken_for_settled(
    connection: Connection, sink_id: str, topic: str
) -> None:
    """Duplicate: a start that takes the older batch for the group's last does not notice that the log has lost one."""
    group, log = offsets_group(sink_id), owned(connection, sink_id)
    log.append(decision(sink_id, 0), Deadline(20), {topic: {0: 7}})
    with Admin(connection) as admin:
        until("the marker", lambda: published_offsets(admin.renew(10), group).batches == {"q": 0})
        late = brokers.send_offsets(connection, group, [TopicPartition(topic, 0, 8, "q/1")])
        assert published_offsets(admin.renew(10), group).batches == {"q": 0}
        with pytest.raises(BrokerUnreachable):
            published_offsets(admin.renew(1), group, settled=True)
        late.commit_transaction(30)
        assert published_offsets(admin.renew(20), group, settled=True) == ({topic: {0: 8}}, {"q": 1})


def test_offsets_that_the_group_does_not_take_do_not_stop_a_decision(
    connection: Connection, sink_id: str, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wedge: a convenience for lag tools that costs every decision its whole budget, and then the stream."""

    async def refused(*_: object) -> None:
        raise GroupIdNotFoundError("for a reason that nobody has thought of")

    monkeypatch.setattr(LogWriter, "_commit", refused)
    log = owned(connection, sink_id)
    deadline = Deadline(20)
    with caplog.at_level(logging.WARNING):
        for batch in range(2):
            log.append(decision(sink_id, batch), deadline, {topic: {0: 1}})
    assert [d.batch_id for d in read_log(connection, sink_id).decisions] == [0, 1]
    assert deadline.left > 5
    assert caplog.text.count("EO-WARN-GROUP") == 1


def test_offsets_are_sent_to_the_coordinator_that_the_group_has_now(
    connection: Connection, sink_id: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards against a lost decision's witness that misses a minute: the coordinator of before was asked twice."""
    log = owned(connection, sink_id)
    log.append(decision(sink_id, 0), Deadline(20), {topic: {0: 7}})
    log._offsets._coordinator = 4711  # one of before, which is gone
    log.append(decision(sink_id, 1), Deadline(20), {topic: {0: 8}})
    assert "EO-WARN-GROUP" not in caplog.text
    with Admin(connection) as admin:
        group = offsets_group(sink_id)
        until("the marker", lambda: published_offsets(admin.renew(10), group) == ({topic: {0: 8}}, {"q": 1}))


@pytest.mark.long
def test_the_first_decision_after_a_restart_of_the_broker_does_not_wait_for_the_offsets(own_broker) -> None:
    """Wedge, found by seed 5 of the comparison: librdkafka asks the coordinator that it knew, over a connection that
    nobody opens again, until the time-out of the offsets. Readers waited 7 s more than for the broker.
    """
    running = own_broker()
    connection = Connection(running.bootstrap_servers)
    topic = brokers.create_topic(running.bootstrap_servers)
    with Admin(connection) as admin:  # waits for the group's coordinator
        published_offsets(admin, offsets_group("s"))
        log = owned(connection, "s")
        log.append(decision("s", 0), Deadline(30), {topic: {0: 1}})
        running.restart()
        published_offsets(admin.renew(30), offsets_group("s"))
    began = time.monotonic()
    log.append(decision("s", 1), Deadline(30), {topic: {0: 2}})
    assert time.monotonic() - began < 6.5  # two tries of 2 s each, with what is late in librdkafka; 8 s before


@pytest.mark.long
def test_a_group_without_a_coordinator_does_not_stop_a_decision(own_broker, caplog: pytest.LogCaptureFixture) -> None:
    """Wedge: a transaction with offsets whose partition has no leader can be neither committed nor aborted."""
    running = own_broker(nodes=3, properties={"offsets.topic.replication.factor": "1"})
    connection = Connection(running.bootstrap_servers)
    topic = brokers.create_topic(running.bootstrap_servers)
    log = owned(connection, "s")
    log.append(decision("s", 0), Deadline(30), {topic: {0: 1}})
    with Admin(connection) as admin:
        # the coordinator of the transaction waits for this marker, too, before it begins another one
        until("the marker", lambda: published_offsets(admin.renew(10), offsets_group("s")).offsets)

        async def coordinator() -> int:
            answer = await admin.send(FindCoordinatorRequest(key=offsets_group("s"), key_type=0, max_version=3))
            check(answer.error_code, "FindCoordinator")
            return answer.node_id

        running.kill(admin.ask(coordinator))
    with caplog.at_level(logging.WARNING):
        for batch in (1, 2):
            log.append(decision("s", batch), Deadline(30), {topic: {0: 2}})
    assert caplog.text.count("EO-WARN-GROUP") == 1
    log.close()
    state, _ = CommitLog(connection, "s").claim(lambda state: claim(2), Deadline(30))
    assert [d.batch_id for d in state.decisions] == [0, 1, 2]


# -- brokers that are busy with themselves -----------------------------------------------------------------------------


@pytest.mark.parametrize("error", [OffsetNotAvailableError, UnknownTopicOrPartitionError])
def test_a_broker_that_does_not_know_yet_is_asked_again(
    error: type[KafkaError], connection: Connection, sink_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wedge: an election, or a start on several brokers of which one has not heard of the topic, ends the stream in
    milliseconds.
    """
    owned(connection, sink_id)
    asked: list[int] = []

    def checked(code: int, what: str) -> None:
        asked.append(code)
        if len(asked) == 1:
            raise error(what)
        check(code, what)

    monkeypatch.setattr(fetching, "check", checked)
    owned(connection, sink_id, token=2)
    assert asked == [0, 0]
    asked.clear()
    assert read_log(connection, sink_id).owner == claim(2)


def test_a_new_log_and_one_that_was_read_to_its_end_are_not_read_again(
    connection: Connection, sink_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against requests of each start that many streams of a driver make at once."""
    reads: list[int] = []
    real = fetching.fetch
    monkeypatch.setattr(scan, "fetch", lambda *asked: reads.append(asked[2]) or real(*asked))
    log = owned(connection, sink_id)
    assert reads == []
    log.append(decision(sink_id, 0), Deadline(30))
    again = CommitLog(connection, sink_id)
    before = again.read(Deadline(30))
    seen, _ = again.claim(lambda state: claim(2), Deadline(30))
    assert reads == [0] and (seen.owner, seen.decisions) == (claim(1), before.decisions)


@pytest.mark.long
def test_the_first_start_on_several_brokers_finds_the_topic_that_it_made(own_broker) -> None:
    """EO-TOPIC at the very first start: the consumer may ask a broker that does not know the topic yet."""
    several = Connection(own_broker(nodes=3).bootstrap_servers)
    for n in range(30):
        owned(several, f"first-{n}")


def test_silent_brokers_are_said_within_the_budget(sink_id: str) -> None:
    deadline = Deadline(10)
    with pytest.raises(BrokerUnreachable):
        CommitLog(Connection("127.0.0.1:1"), sink_id).claim(lambda state: claim(1), Deadline(1))
    assert deadline.left > 5


def test_the_brokers_clock_is_not_behind_the_truth_after_a_pause(
    connection: Connection, sink_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 3: a process that stood still between the append and its callback took transactions for younger, and
    decided with less time to spare than it thought.
    """
    log = CommitLog(connection, sink_id)
    paused_ms = iter([0, *[10_000] * 100])
    monkeypatch.setattr(commit_log, "now_ms", lambda: now_ms() + next(paused_ms))
    log.claim(lambda state: claim(1), Deadline(30))
    assert log.clock_ahead_ms > -2_000


# -- decisions without their handles -----------------------------------------------------------------------------------


def raw_decisions(connection: Connection, sink_id: str) -> list[Decision]:
    """Every decision in the log, those that are to be cleaned too."""
    values = [m.value or "" for m in oracle.read(connection, [commit_log_topic(sink_id)])]
    return [record for v in values if isinstance(record := decode(v.encode()), Decision)]


def test_a_completed_write_stays_in_the_log_without_its_handles(connection: Connection, sink_id: str) -> None:
    """Wedge: ten thousand writes of a hundred parts are 100 MB that each start and each observer reads."""
    log, day = owned(connection, sink_id), f"{WRITE}day-1"
    log.append(decision(sink_id, 0, parts=3, query=day), Deadline(30))
    made = read_log(connection, sink_id)
    assert len(made.decisions[0].handles) == 3, "as long as it is not proven, every handle is needed"

    log.append(Completed(day, 0, 1, 5), Deadline(30))

    after = read_log(connection, sink_id)
    found = read_log(connection, sink_id).write("day-1")
    assert found is not None and found.handles == () and found.totals == {"kafka": [3, 30, 300]}
    assert (found.records, found.part_count, found.topics) == (30, 3, ("out",))
    assert after.open_decisions == () and after.decided_ms == made.decided_ms
    assert log.own(1, Deadline(30)).decisions == after.decisions, "the writer's memory is what a reader finds"
    assert len(raw_decisions(connection, sink_id)) == 2


@pytest.mark.parametrize(("parts", "kept"), [(3, 3), (MANY_PARTS, MANY_PARTS), (MANY_PARTS + 1, 0)])
def test_a_streams_decision_keeps_its_handles_unless_they_are_very_many(
    parts: int, kept: int, connection: Connection, sink_id: str
) -> None:
    """A look back needs number, digest and place of each part; 64 decisions of 10,000 parts are more than memory."""
    log = owned(connection, sink_id)
    log.append(decision(sink_id, 0, parts=parts), Deadline(30))
    log.append(Completed("q", 0, 1, 5), Deadline(30))
    found = read_log(connection, sink_id)
    assert len(found.decisions[0].handles) == kept
    assert (found.decisions[0].part_count, found.decisions[0].records) == (parts, 10 * parts)
    assert found.open_decisions == ()


def test_an_owner_that_is_fenced_while_it_completes_a_write_changes_nothing(
    connection: Connection, sink_id: str
) -> None:
    """A mark without the decision, or a decision without handles that is not proven: either is unrecoverable."""
    log, day = owned(connection, sink_id), f"{WRITE}day-1"
    log.append(decision(sink_id, 0, parts=3, query=day), Deadline(30))
    owned(connection, sink_id, token=2)
    with pytest.raises(Fenced):
        log.append(Completed(day, 0, 1, 5), Deadline(30))
    state = read_log(connection, sink_id)
    assert state.open_decisions == (decision(sink_id, 0, parts=3, query=day),)


def test_a_claim_reads_the_log_once_and_then_its_tail(
    connection: Connection, sink_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try of a write read the whole log three times."""
    log = owned(connection, sink_id)
    for batch in range(5):
        log.append(decision(sink_id, batch), Deadline(30))
    reads: list[int] = []
    real = log_reader.read

    def counted(*args, **kwargs):
        found = real(*args, **kwargs)
        reads.append(len(found.entries))
        return found

    monkeypatch.setattr(log_reader, "read", counted)
    again = CommitLog(connection, sink_id)
    before = again.read(Deadline(30))
    log.append(decision(sink_id, 5), Deadline(30))
    seen, _ = again.claim(lambda state: claim(2), Deadline(30))
    assert reads == [6, 1]
    assert seen.decisions == (*before.decisions, decision(sink_id, 5))
    assert seen == replace(
        read_log(connection, sink_id), owner=claim(1), end=seen.end, last_timestamp_ms=seen.last_timestamp_ms
    )


def test_a_log_that_was_made_again_is_read_whole(connection: Connection, sink_id: str) -> None:
    """Loss: claims and decisions of a log that is gone, taken for those of the new one."""
    log = owned(connection, sink_id)
    for batch in range(5):
        log.append(decision(sink_id, batch), Deadline(30))
    again = CommitLog(connection, sink_id)
    assert again.read(Deadline(30)).owner == claim(1)
    brokers.delete_topic(connection.bootstrap_servers, commit_log_topic(sink_id))
    seen, _ = again.claim(lambda state: claim(2), Deadline(30))
    assert (seen.owner, seen.decisions) == (None, ())


def test_the_end_of_a_log_is_behind_a_write_of_the_owner_s_that_was_rolled_back(
    connection: Connection, sink_id: str
) -> None:
    """Guards against tasks that all call themselves too late: the owner's next look would end before what they see."""
    log = owned(connection, sink_id)
    with Admin(connection) as admin:
        end = admin.high_watermark(log.topic, 0)
        log.begin()
        log.send(decision(sink_id, 0), None, Deadline(30))
        until("the record", lambda: admin.renew(10).high_watermark(log.topic, 0) > end)
    log.close()  # as after an answer that got lost
    log.own(1, Deadline(30))
    with Admin(connection) as admin:
        assert log.high_watermark == admin.high_watermark(log.topic, 0)


def test_a_producer_whose_commit_had_no_answer_is_replaced_before_the_next_write(
    connection: Connection, sink_id: str
) -> None:
    """Guards against that commit, which may arrive late and end the next transaction before its decision is made."""
    log = owned(connection, sink_id)
    log.append(decision(sink_id, 0), Deadline(30))
    writer = log._writer
    assert writer is not None
    writer._unanswered = True
    log.append(decision(sink_id, 1), Deadline(30))
    assert log._writer is not writer and [d.batch_id for d in read_log(connection, sink_id).decisions] == [0, 1]


@pytest.mark.parametrize("then", ["another", "tally", "own", "nothing"])
def test_a_decision_that_was_sent_is_in_the_log_only_once_it_is_appended(
    then: str, connection: Connection, sink_id: str
) -> None:
    """Guards against a batch that is decided though a part was not confirmed: by the commit of whatever the driver
    writes next, or of another decision of the same batch (a loss, or a duplicate).
    """
    log, sent = owned(connection, sink_id), decision(sink_id, 0)
    with Admin(connection) as admin:
        end = admin.high_watermark(log.topic, 0)
        log.begin()
        log.send(sent, None, Deadline(30))
        until("the record", lambda: admin.renew(10).high_watermark(log.topic, 0) > end)
    assert read_log(connection, sink_id).decisions == ()
    other = decision(sink_id, 0, parts=2)
    if then == "another":
        log.append(other, Deadline(30))
    elif then == "tally":
        log.tally(1, Deadline(30), drained=1)
    elif then == "own":
        log.own(1, Deadline(30))
    assert read_log(connection, sink_id).decisions == ((other,) if then == "another" else ())
    if then != "another":
        log.append(sent, Deadline(30))
        assert raw_decisions(connection, sink_id) == [sent]


def test_a_decision_that_was_sent_is_committed_by_its_own_transaction(connection: Connection, sink_id: str) -> None:
    """Guards against one wait more for each batch, and against a sum of both ways: the record twice."""
    log, sent = owned(connection, sink_id), decision(sink_id, 0)
    writer = log._writer
    log.begin()
    log.send(sent, None, Deadline(30))
    log.append(sent, Deadline(30))
    assert log._writer is writer and raw_decisions(connection, sink_id) == [sent]
    log.append(decision(sink_id, 1), Deadline(30))
    assert [d.batch_id for d in read_log(connection, sink_id).decisions] == [0, 1]


def test_a_transaction_that_was_begun_too_long_ago_is_not_used_any_more(connection: Connection, sink_id: str) -> None:
    """Guards against a decision in a transaction that its coordinator ends meanwhile, behind a batch that took long."""
    log = owned(connection, sink_id)
    writer = log._writer
    log.begin()
    assert writer is not None
    writer._opened_s -= 20.0
    log.append(decision(sink_id, 0), Deadline(30))
    assert log._writer is not writer
    assert [d.batch_id for d in read_log(connection, sink_id).decisions] == [0]


def test_the_offset_to_start_from_is_a_position_not_a_count(connection: Connection, sink_id: str) -> None:
    """Each write has a marker behind it, which a reader steps over."""
    log = owned(connection, sink_id)
    log.append(decision(sink_id, 0), Deadline(30))
    with Admin(connection) as admin:
        found = log_reader.read(admin, sink_id, Deadline(30))
        assert (len(found.entries), found.position) == (2, admin.high_watermark(commit_log_topic(sink_id), 0))
