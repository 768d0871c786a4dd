"""``verify`` by the commit log: every anomaly is planted on a real broker and found by its name; what is right is
clean.

A checker that never fails proves nothing: each test plants one anomaly as a defect of the sink, of an operator or of
the brokers would make it.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from kafka.structs import TopicPartition as Place

from exactly_once.errors import UnknownTopic
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.groups import published_offsets
from exactly_once.protocol.batch_headers import Header, pair_of
from exactly_once.protocol.names import offsets_group
from exactly_once.tools.verify import Anomaly, Report, VerifyParameters, run, verify
from exactly_once.tools.verify.by_log.judge import REMOVED
from exactly_once.tools.verify.report import OTHERS, UNDECIDED
from exactly_once.txn.leaders import Trail, end_by_marker, open_on, write_marker
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import broker as brokers
from testkit.hanging import UNVERIFIED, leave_hanging
from testkit.made_sink import PLANNED, MadeSink, rows
from testkit.part_ids import part_id
from testkit.processes import until


@pytest.fixture
def sink(connection: Connection, topic: str) -> MadeSink:
    made = MadeSink(connection, topic)
    made.claim()
    return made


def look(sink: MadeSink, settle_s: float = 0.0, **more: object) -> Report:
    return verify(sink.connection, VerifyParameters(sink.sink_id, settle_s=settle_s, **more))  # type: ignore[arg-type]


def found(report: Report) -> set[str]:
    return {f.anomaly.value for f in report.findings}


def test_batches_that_are_as_decided_are_proven_and_clean(sink: MadeSink) -> None:
    """A false alarm: a checker that cries wolf is switched off."""
    for n in range(3):
        sink.batch(n, rows(n, 0), rows(n, 1))
    report = look(sink)
    assert report.clean, report.findings
    assert (report.batches, report.parts, report.records, report.unproven) == (3, 6, 24, {})
    assert (report.first_batch, report.last_batch) == ("batch 0", "batch 2")


@pytest.mark.long
def test_aborted_attempts_other_writers_and_a_batch_under_way_are_clean(sink: MadeSink) -> None:
    """A false alarm over what every healthy topic holds."""
    sink.batch(0, rows(0, 0))
    sink.end([sink.write(0, rows(1, 0), "0.1")], commit=False)
    other = Producer({**sink.connection.librdkafka(), "transactional.id": brokers.fresh_name("other")})
    other.init_transactions(30)
    for _ in range(2):
        other.begin_transaction()
        other.produce(sink.topic, "not ours", partition=1)
        other.commit_transaction(30)
    plain = Producer(sink.connection.librdkafka())
    plain.produce(sink.topic, "not ours", partition=1)
    plain.flush(30)
    sink.batch(1, rows(1, 0))
    under_way = sink.write(0, rows(2, 0), "0.2")
    report = look(sink)
    assert report.clean, report.findings
    assert report.batches == 2 and report.balance.adds_up
    balance = report.balance.total
    assert (balance.right, balance.aborted) == (8, 4)
    assert (balance.not_judged, balance.not_proven) == ({OTHERS: 3}, {UNDECIDED: 4})
    sink.end([under_way], commit=False)


def test_a_sink_that_was_never_used_has_nothing_to_prove(connection: Connection) -> None:
    report = verify(connection, VerifyParameters(brokers.fresh_name("unused")))
    assert report.clean and report.batches == 0 and report.nothing_yet and not report.claimed


def test_a_decided_batch_that_was_aborted_is_lost_and_its_mark_lies(sink: MadeSink) -> None:
    sink.batch(0, rows(0, 0))
    handle = sink.write(0, rows(1, 0))
    sink.decide(1, [handle])
    sink.end([handle], commit=False)
    sink.complete(1)
    report = look(sink)
    assert found(report) == {"lost", "outcome lie"}
    lost = report.findings[0]
    assert (lost.batch, lost.records) == ("batch 1", 4)
    assert handle.transactional_id in lost.transaction and len(lost.places) == 4


def checkpoint(folder: Path, commits: int, planned: int | None = None) -> str:
    """A checkpoint of the sink's query in which Spark counts the batches up to ``commits`` as committed; its source is
    not Kafka, and keeps something else where Kafka's keeps its beginning.
    """
    (folder / "metadata").write_text('{"id":"q"}')
    (folder / "sources" / "0").mkdir(parents=True)
    (folder / "sources" / "0" / "0").write_text('v1\n{"path":"a","batchId":0}\n{"path":"b","batchId":0}')
    for name, text, last in (("offsets", PLANNED, planned or commits), ("commits", "v1\n{}", commits)):
        (folder / name).mkdir()
        for n in range(last + 1):
            (folder / name / str(n)).write_text(text)
    return str(folder)


@pytest.mark.long
def test_a_commit_of_the_checkpoint_whose_batch_was_aborted_is_ahead_of_the_output(
    sink: MadeSink, tmp_path: Path
) -> None:
    """Silent loss: Spark never writes the batch again."""
    location = checkpoint(tmp_path, commits=1)
    sink.batch(0, rows(0, 0))
    handle = sink.write(0, rows(1, 0))
    sink.decide(1, [handle])
    sink.end([handle], commit=False)
    report = look(sink, checkpoint=location)
    assert found(report) == {"lost", "checkpoint ahead"}, report.findings
    (ahead,) = (f for f in report.findings if f.anomaly is Anomaly.CHECKPOINT_AHEAD)
    assert ahead.batch == "batch 1" and handle.transactional_id in ahead.transaction
    assert "commits/1 exists" in ahead.what and "not completely visible" in ahead.what
    assert found(look(sink)) == {"lost"}  # the checkpoint alone tells


@pytest.mark.long
def test_a_commit_of_the_checkpoint_that_nobody_decided_is_ahead_of_the_output(sink: MadeSink, tmp_path: Path) -> None:
    """Silent loss: Spark never writes the batch again, and its driver never decided it."""
    location = checkpoint(tmp_path, commits=1)
    sink.batch(0, rows(0, 0))
    sink.end([sink.write(0, rows(1, 0))], commit=False)
    report = look(sink, checkpoint=location)
    assert found(report) == {"checkpoint ahead"}, report.findings
    (ahead,) = report.findings
    assert (ahead.batch, ahead.code) == ("batch 1", "HEALTH-CHECKPOINT-AHEAD")


@pytest.mark.long
def test_a_checkpoint_that_is_not_ahead_is_clean(sink: MadeSink, tmp_path: Path) -> None:
    """A false alarm: a decided batch that Spark has not counted yet, and one that it has."""
    location = checkpoint(tmp_path, commits=1, planned=2)
    for n in range(3):
        sink.batch(n, rows(n, 0))
    report = look(sink, checkpoint=location)
    assert report.clean, report.findings
    assert report.batches == 3


@pytest.mark.long
def test_one_part_that_was_aborted_tears_the_batch(sink: MadeSink) -> None:
    sink.batch(0, rows(0, 0), rows(0, 1))
    handles = [sink.write(part, rows(1, part)) for part in (0, 1)]
    sink.decide(1, handles)
    sink.end(handles[:1])
    sink.end(handles[1:], commit=False)
    report = look(sink)
    assert found(report) == {"lost", "torn batch"}
    assert {f.batch for f in report.findings} == {"batch 1"}


@pytest.mark.long
def test_a_transaction_that_was_aborted_on_one_partition_alone_is_torn(
    own_broker: Callable[..., EmbeddedBroker],
) -> None:
    """An operator's abort marker on one partition, before the coordinator's commit reaches it."""
    own = own_broker(properties=UNVERIFIED)
    connection = Connection.from_options({"kafka.bootstrap.servers": own.bootstrap_servers})
    sink = MadeSink(connection, brokers.create_topic(own.bootstrap_servers, partitions=4))
    sink.claim()
    sink.batch(0, rows(0, 0))
    handle = sink.write(0, rows(1, 0))
    sink.decide(1, [handle])
    with Admin(connection) as admin:
        (here,) = open_on(admin, [(sink.topic, 2)])
        write_marker(admin, here, False)
    sink.end([handle])
    sink.complete(1)
    report = look(sink)
    assert {"torn transaction", "lost", "outcome lie"} <= found(report)
    torn = next(f for f in report.findings if f.anomaly is Anomaly.LOST)
    assert torn.records == 1 and torn.places[0].startswith(f"{sink.topic}-2@")


@pytest.mark.long
def test_a_decided_batch_that_nobody_commits_is_unseen_and_holds_readers(sink: MadeSink) -> None:
    sink.batch(0, rows(0, 0))
    handle = sink.write(0, rows(1, 0))
    sink.decide(1, [handle])
    sink.complete(1)
    report = look(sink, settle_s=3.0)
    assert {"unseen", "outcome lie", "stalled last stable offset"} <= found(report)
    sink.end([handle])
    assert look(sink).clean


@pytest.mark.long
def test_an_undecided_execution_of_the_first_batch_that_was_committed_is_a_duplicate(sink: MadeSink) -> None:
    """Duplicate: its rows stand before the first decided batch of the sink, which is where older batches stand too."""
    repeated = [("k", "v1", 0), ("k", "v2", 0)]
    sink.end([sink.write(0, repeated)])
    sink.claim()
    sink.batch(0, repeated)
    (found,) = verify(sink.connection, VerifyParameters(sink.sink_id, settle_s=0)).findings
    assert found.anomaly is Anomaly.DUPLICATE and found.records == 2 and found.batch == "batch 0"


@pytest.mark.long
def test_rows_of_a_batch_in_a_partition_without_a_decided_batch_are_a_duplicate(sink: MadeSink) -> None:
    """Duplicate: rows stand again where no decided batch wrote."""
    sink.batch(0, [("k", "v1", 0), ("k", "v2", 0)])
    sink.claim()
    sink.end([sink.write(1, [("k", "v1", 3), ("k", "v2", 3)], attempt="1.1")])
    sink.batch(1, [("k", "v3", 0)])
    (found,) = verify(sink.connection, VerifyParameters(sink.sink_id, settle_s=0)).findings
    assert found.anomaly is Anomaly.DUPLICATE and found.places == (f"{sink.topic}-3@0..1",)


@pytest.mark.long
def test_an_undecided_transaction_before_a_decided_batch_is_a_phantom(sink: MadeSink) -> None:
    sink.batch(0, rows(0, 0))
    sink.end([sink.write(5, rows(7, 5))])
    sink.batch(1, rows(1, 0))
    report = look(sink)
    assert found(report) == {"phantom"}
    assert report.findings[0].records == 4 and "batch 1" in report.findings[0].what


@pytest.mark.long
def test_a_given_up_execution_that_is_visible_is_an_aborted_read(sink: MadeSink) -> None:
    sink.batch(0, rows(0, 0))
    handle = sink.write(0, rows(1, 0), "0.1")
    sink.give_up(1)
    sink.end([handle])
    report = look(sink)
    assert found(report) == {"aborted read"}
    (finding,) = report.findings
    assert (finding.batch, finding.records) == ("batch 1", 4) and handle.transactional_id in finding.transaction


@pytest.mark.long
def test_a_given_up_execution_is_an_aborted_read_beside_the_one_that_was_decided(sink: MadeSink) -> None:
    """Aborted read called a phantom, or not told at all: the batch ran again, and its parts have other rows than those
    of the execution that was given up. With the same rows it is a duplicate.
    """
    sink.batch(0, rows(0, 0))
    other, same = sink.write(0, rows(1, 0, 3), "0.1"), sink.write(1, rows(1, 0), "0.1")
    sink.give_up(1)
    sink.batch(1, rows(1, 0))
    sink.batch(2, rows(2, 0))
    sink.end([other], commit=True)
    sink.end([same], commit=False)
    report = look(sink)
    assert found(report) == {"aborted read"}, report.findings
    assert report.batches == 3 and report.findings[0].records == 3
    sink.end([sink.write(2, rows(1, 0), "0.2")])
    assert found(look(sink)) == {"aborted read", "duplicate"}


@pytest.mark.long
def test_a_part_of_two_attempts_is_mixed(sink: MadeSink) -> None:
    sink.batch(0, rows(0, 0))
    first = sink.write(0, rows(1, 0, 3), "0.1")
    second = sink.write(0, rows(1, 0, 4), "1.2")
    sink.decide(1, [first])
    sink.end([first, second])
    sink.complete(1)
    report = look(sink)
    assert found(report) == {"mixed attempt"}
    assert first.transactional_id in report.findings[0].what


@pytest.mark.long
def test_a_superseded_drivers_rows_behind_its_successors_are_a_zombies(sink: MadeSink) -> None:
    sink.batch(0, rows(0, 0))
    sink.claim()
    sink.batch(1, rows(1, 0))
    sink.end([sink.write(3, rows(2, 3), token=1)])
    report = look(sink)
    assert found(report) == {"zombie visible"}
    assert "claim 2" in report.findings[0].what


OWN, BATCH = ("h", b"1"), pair_of("s", 1)
SPAN = [("traceparent", b"00-4bf9-00f0-01"), ("tracestate", None)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("form", "headers"),
    [
        ("plain", lambda n: ()),
        ("row", lambda n: ()),
        ("row", lambda n: (OWN,) * (n % 3)),
        ("row+partition", lambda n: (OWN, ("traceparent", b"the row's"))),
        ("topic", lambda n: (OWN,)),
        ("plain+batch", lambda n: BATCH),
        ("row+batch", lambda n: (*BATCH, OWN, *BATCH) if n % 2 else BATCH),
    ],
)
def test_headers_that_an_agent_adds_behind_those_of_the_rows_are_no_corruption(
    form: str, headers: Callable[[int], Sequence[Header]], sink: MadeSink
) -> None:
    """A false alarm over whole records, wherever a tracing agent is in the JVM of the tasks. A header that is changed
    or gone is found all the same.
    """
    if "+batch" in form:
        pair = pair_of(sink.sink_id, 1)
        own, headers = headers, lambda n: [pair[BATCH.index(h)] if h in BATCH else h for h in own(n)]
    sink.batch(0, rows(0, 0))
    handles = [sink.write(n, rows(1, n), form=form, headers=headers, added=SPAN[:n]) for n in range(3)]
    sink.decide(1, handles)
    sink.end(handles)
    sink.complete(1)
    report = look(sink)
    assert report.clean and (report.parts, report.unproven) == (4, {}), (report.findings, report.unproven)


@pytest.mark.long
@pytest.mark.parametrize("changed", [[("h", b"2"), *SPAN], SPAN[:1]])
def test_a_header_of_a_row_that_is_changed_or_gone_is_corrupt(changed: list[Header], sink: MadeSink) -> None:
    """A checker that takes every header for an agent's."""
    right = sink.write(0, rows(0, 0), form="row", headers=lambda n: (OWN,))
    sink.end([right], commit=False)
    wrong = sink.write(0, rows(0, 0), "0.1", form="row", headers=lambda n: changed)
    sink.decide(0, [replace(wrong, digest=right.digest)])
    sink.end([wrong])
    sink.complete(0)
    report = look(sink)
    assert found(report) == {"corrupt"} and "kafka.interceptor.classes" in report.findings[0].what, report.findings


def test_one_record_with_another_value_than_the_task_hashed_is_corrupt(sink: MadeSink) -> None:
    """A value that is damaged between the task's hash and the log: number, keys and places are right."""
    sink.batch(0, rows(0, 0), rows(0, 1))
    right = rows(1, 0)
    key, value, partition = right[2]
    handle = sink.write(0, [*right[:2], (key, f"{value}?", partition), right[3]], hashed=right)
    sink.end(sink.decide(1, [handle, sink.write(1, rows(1, 1))]).transactions)
    sink.complete(1)
    report = look(sink)
    assert found(report) == {"corrupt"}, report.findings
    (corrupt,) = report.findings
    assert (corrupt.batch, corrupt.records) == ("batch 1", 4) and handle.transactional_id in corrupt.transaction
    assert handle.digest in corrupt.what and any(p.startswith(f"{sink.topic}-2@") for p in corrupt.places)
    assert (report.batches, report.parts) == (1, 3)


@pytest.mark.long
def test_fewer_records_than_the_task_wrote_are_lost(sink: MadeSink) -> None:
    sink.batch(0, rows(0, 0))
    handle = replace(sink.write(0, rows(1, 0)), records=6)
    sink.decide(1, [handle])
    sink.end([handle])
    sink.complete(1)
    report = look(sink)
    assert {"lost", "torn transaction"} <= found(report)
    assert next(f for f in report.findings if f.anomaly is Anomaly.LOST).records == 2


@pytest.mark.long
def test_a_batch_before_an_earlier_one_is_out_of_order(sink: MadeSink) -> None:
    sink.batch(0, rows(0, 0))
    later, earlier = sink.write(0, rows(2, 0), "0.1"), sink.write(0, rows(1, 0), "0.2")
    for n, handle in ((1, earlier), (2, later)):
        sink.decide(n, [handle])
        sink.end([handle])
        sink.complete(n)
    report = look(sink)
    assert found(report) == {"batch reorder"}
    assert report.findings[0].batch == "batch 2" and len(report.findings) == 4  # in every partition


def test_an_undecided_transaction_of_a_dead_driver_lingers(connection: Connection, topic: str) -> None:
    from testkit.dead_sink import DEAD, DeadSink

    dead = DeadSink(connection, topic, host=socket.gethostname(), pid=DEAD)
    name = dead.open_part(0)
    report = verify(connection, VerifyParameters(dead.sink_id, settle_s=0))
    assert found(report) == {"lingering", "stalled last stable offset"}
    assert name in report.findings[0].transaction


@pytest.mark.long
def test_a_transaction_that_no_coordinator_will_end_hangs(own_broker: Callable[..., EmbeddedBroker]) -> None:
    """A long list of batches that readers do not get, and the one cause missing among them."""
    own = own_broker(properties=UNVERIFIED)
    connection = Connection.from_options({"kafka.bootstrap.servers": own.bootstrap_servers})
    sink = MadeSink(connection, brokers.create_topic(own.bootstrap_servers, partitions=4))
    sink.claim()
    sink.batch(0, rows(0, 0))
    leave_hanging(connection, sink.topic, 1)
    for number in (1, 2):
        sink.batch(number, rows(number, 0))
    report = look(sink, settle_s=3.0)
    assert found(report) == {"hanging"}, "what waits behind it is no finding of its own"
    assert report.findings[0].code == "HEALTH-UNKNOWN-WRITER"
    assert f"transactions abort --hanging {sink.topic}-1@" in report.findings[0].remedy
    assert (report.balance.total.right, report.balance.total.wrong) == (4, 8) and report.balance.adds_up
    with Admin(connection) as admin:
        (hangs,) = open_on(admin, [(sink.topic, 1)])
    assert end_by_marker(connection, hangs)
    assert look(sink).clean


@pytest.mark.long
def test_ids_outside_of_the_scheme_leak(sink: MadeSink) -> None:
    sink.batch(0, rows(0, 0))
    sink.leave_id(f"eo:{sink.sink_id}:1:0:0.77")
    sink.leave_id(f"eo:{sink.sink_id}:4711:0:0.1")
    report = look(sink)
    assert found(report) == {"id leak"} and report.diagnoses[0].evidence["ids"] == 2


@pytest.mark.long
def test_another_sinks_transaction_that_a_sweep_aborted_is_a_foreign_abort(sink: MadeSink) -> None:
    """A sweep that takes ``job2`` for a part of ``job``."""
    sink.batch(0, rows(0, 0))
    stranger = sink.write(0, rows(9, 9), name=part_id(f"{sink.sink_id}2", 1, 0, "0.0"))
    sink.claim()
    sink.end([stranger], commit=False)
    sink.batch(1, rows(1, 0))
    report = look(sink)
    assert found(report) == {"foreign abort"}
    assert f"eo:{sink.sink_id}2:" in report.findings[0].transaction


def read_to(sink: MadeSink, batch: int, ends: dict[str, dict[int, int]], publish: bool = True) -> None:
    """Decide a batch whose input ends there, as a driver does; without ``publish`` as after an EO-WARN-GROUP."""
    head = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n'
    handle = sink.write(0, rows(batch, 0))
    sink.decide(batch, [handle], head + "\n".join(json.dumps({t: e}) for t, e in ends.items()), publish and ends)
    sink.end([handle])
    sink.complete(batch)


def until_published(sink: MadeSink, batch: int) -> None:
    """Wait for the end marker of the group's partition, which comes a moment after that of the log's."""
    with Admin(sink.connection) as admin:
        group = offsets_group(sink.sink_id)
        until("the offsets", lambda: published_offsets(admin.renew(10), group).batches == {"q": batch}, 20)


@pytest.mark.long
def test_offsets_of_a_decision_whose_marker_is_late_are_not_skewed(sink: MadeSink, connection: Connection) -> None:
    """A false alarm beside a healthy stream: the log has the decision, and the group's partition not yet its end."""
    source, group = brokers.create_topic(connection.bootstrap_servers, partitions=1), offsets_group(sink.sink_id)
    read_to(sink, 0, {source: {0: 7}})
    until_published(sink, 0)
    read_to(sink, 1, {source: {0: 8}}, publish=False)
    late = brokers.send_offsets(connection, group, [TopicPartition(source, 0, 8, "q/1")])
    report = look(sink, budget_s=3)
    late.commit_transaction(30)
    assert report.clean, report.findings
    assert look(sink).clean


@pytest.mark.long
def test_a_partition_whose_published_offset_was_deleted_is_skewed(sink: MadeSink, connection: Connection) -> None:
    """Lag tools leave out a partition of the input, and its lag with it."""
    source = brokers.create_topic(connection.bootstrap_servers, partitions=2)
    read_to(sink, 0, {source: {0: 7, 1: 9}})
    until_published(sink, 0)
    with Admin(connection) as admin:
        admin.call(lambda: admin.client.delete_group_offsets(offsets_group(sink.sink_id), [Place(source, 1)]))
    report = look(sink)
    assert found(report) == {"offset skew"} and report.findings[0].places == (f"{source}-1@9",)
    assert f"has no offset of {source}-1" in report.findings[0].what


@pytest.mark.long
def test_an_input_that_grows_or_goes_and_offsets_that_were_refused_are_clean(
    sink: MadeSink, connection: Connection
) -> None:
    """A false alarm over a healthy stream: an input partition without records yet, a new one whose first offset the
    brokers refused (EO-WARN-GROUP), an input topic that was deleted.
    """
    source = brokers.create_topic(connection.bootstrap_servers, partitions=2)
    retired = brokers.create_topic(connection.bootstrap_servers, partitions=1)
    read_to(sink, 0, {source: {0: 7, 1: 0}, retired: {0: 5}})
    until_published(sink, 0)
    assert look(sink).clean
    brokers.grow_topic(connection.bootstrap_servers, source, 3)
    read_to(sink, 1, {source: {0: 7, 1: 0, 2: 0}, retired: {0: 5}}, publish=False)
    report = look(sink)
    assert report.clean, report.findings
    read_to(sink, 2, {source: {0: 8, 1: 0, 2: 0}, retired: {0: 5}})
    until_published(sink, 2)
    assert look(sink).clean
    brokers.delete_topic(connection.bootstrap_servers, retired)
    with Admin(connection) as admin:
        group = offsets_group(sink.sink_id)
        until("the offsets to go", lambda: retired not in published_offsets(admin.renew(10), group).offsets, 20)
    report = look(sink)
    assert report.clean, report.findings


@pytest.mark.long
def test_a_stream_that_decides_during_each_look_is_clean(sink: MadeSink, connection: Connection) -> None:
    """A false alarm over every fast stream: the offsets of a decision that came after the log was read."""
    source = brokers.create_topic(connection.bootstrap_servers, partitions=1)
    sink.batch(0, rows(0, 0))
    text = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n'
    stop, decided = threading.Event(), [0]

    def decide() -> None:
        while not stop.is_set():
            decided[0] += 1
            ends = {source: {0: decided[0]}}
            sink.decide(decided[0], [], text + json.dumps(ends), ends)
            sink.complete(decided[0])

    with ThreadPoolExecutor(1) as pool:
        stream = pool.submit(decide)
        try:
            report = look(sink, settle_s=3)
        finally:
            stop.set()
            stream.result(60)
    assert report.clean, report.findings
    assert decided[0] > 1


def test_records_that_retention_removed_are_unproven_and_no_anomaly(sink: MadeSink) -> None:
    """A false alarm on every topic that is older than its retention."""
    sink.batch(0, rows(0, 0))
    with Admin(sink.connection) as admin:
        admin.call(lambda: admin.client.delete_records({Place(sink.topic, p): 2 for p in range(4)}))
    sink.batch(1, rows(1, 0))
    report = look(sink)
    assert report.clean, report.findings
    assert report.batches == 1 and report.unproven == {REMOVED: 1}
    assert report.removed == {REMOVED: 4}


def other_topic(sink: MadeSink) -> str:
    return brokers.create_topic(sink.connection.bootstrap_servers, partitions=4)


@pytest.mark.long
def test_an_execution_that_was_committed_to_another_topic_before_the_option_changed_is_found(sink: MadeSink) -> None:
    """Duplicate: batch 0 was committed by force in one topic, then the option ``topic`` named another one; no decision
    names the first.
    """
    named, sink.topic = sink.topic, other_topic(sink)
    elsewhere = sink.topic
    sink.end([sink.write(0, rows(0, 0))])
    sink.topic = named
    sink.claim()
    for n in range(3):
        sink.batch(n, rows(n, 0), rows(n, 1))
    report = look(sink)
    (orphan,) = report.findings
    assert (orphan.anomaly, orphan.batch, orphan.records) == (Anomaly.DUPLICATE, "batch 0", 4)
    assert all(place.startswith(elsewhere) for place in orphan.places)
    assert report.batches == 3


@pytest.mark.long
@pytest.mark.parametrize("named", [False, True])
def test_a_transaction_in_a_topic_that_no_decision_names_is_found(
    sink: MadeSink, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence over rows in a topic that the sink wrote to once. Where its leaders have forgotten the producer, somebody
    names the topic.
    """
    for n in range(3):
        sink.batch(n, rows(n, 0), rows(n, 1))
    output, sink.topic = sink.topic, other_topic(sink)
    orphan = sink.write(0, rows(7, 0), attempt="0.1")
    assert not found(look(sink)) & {"output ahead", "phantom"}, "it is open: nobody reads it"
    sink.end([orphan])
    if named:
        monkeypatch.setattr(run, "trail_of", lambda *_: Trail())
    report = look(sink, topics=[output, sink.topic] if named else [])
    assert found(report) == {"output ahead"} and report.findings[0].records == 4
    assert report.findings[0].places[0].startswith(sink.topic)


@pytest.mark.long
@pytest.mark.parametrize("which", ["part", "batch"])
def test_what_was_moved_to_another_topic_is_found(sink: MadeSink, which: str) -> None:
    """Silence over a part, or a whole batch, that stands in a topic that its decision does not name."""
    sink.batch(0, rows(0, 0), rows(0, 1))
    output, elsewhere = sink.topic, other_topic(sink)
    handles = []
    for part in (0, 1):
        sink.topic = elsewhere if part == 0 or which == "batch" else output
        handles.append(sink.write(part, rows(1, part)))
    sink.topic = output
    sink.decide(1, handles)
    sink.end(handles)
    sink.complete(1)
    report = look(sink)
    assert found(report) == {"corrupt"} and report.batches == 1, report
    assert elsewhere in report.findings[0].what


@pytest.mark.long
def test_a_topic_to_which_the_sink_wrote_nothing_that_readers_get_is_clean(sink: MadeSink) -> None:
    """A false alarm: an aborted execution in another topic, and another sink's output there."""
    output, sink.topic = sink.topic, other_topic(sink)
    sink.end([sink.write(0, rows(0, 0))], commit=False)
    other = MadeSink(sink.connection, sink.topic)
    other.claim()
    other.batch(0, rows(0, 0))
    sink.topic = output
    sink.batch(0, rows(0, 0))
    report = look(sink)
    assert report.clean and not report.unproven, report


def test_a_named_topic_that_does_not_exist_is_an_error(sink: MadeSink) -> None:
    """A misspelt topic that passes for one without orphans."""
    sink.batch(0, rows(0, 0))
    with pytest.raises(UnknownTopic, match="misspelt"):
        look(sink, topics=["misspelt"])
