"""Topics that are made again, and a broker that is away past a time-out, in the fault lab: the operator does what the
error says, and each record that is still owed is there once.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import offsets_group
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from faultlab.building import lab_of
from faultlab.settings import Settings
from faultlab.workload import Workload, place
from testkit import oracle
from testkit.broker import commit_offsets, fresh_name
from testkit.oracle import Row
from testkit.processes import until
from tests.faults.lab import run_clean, shown, struck

#: Seeds with which the new input begins with more records than the old one had, and with fewer.
MORE, FEWER = 1, 6


@pytest.mark.long
def test_a_broker_that_is_away_past_the_time_out_of_a_batch_leaves_no_reader_waiting(tmp_path: Path) -> None:
    """Guards against readers that get nothing any more, while every start ends well: Kafka has left out end markers."""
    settings = Settings(rate=100, timeout_ms=15_000, origin=True)
    with lab_of(settings, 1, tmp_path / "lab", shown) as lab:
        run_clean(lab, 1, [("broker-away", 1.0, "all-prepared"), ("broker-away", 1.0, None)], settings)


@pytest.mark.long
def test_an_output_that_is_made_again_behind_a_decision_gets_the_decided_batch_once(tmp_path: Path) -> None:
    """Guards against a decided batch that is in no topic, without a word: EndTxn's answer was about the old one."""
    settings = Settings(rate=100, timeout_ms=60_000)
    with lab_of(settings, 1, tmp_path / "lab", shown) as lab:
        history = run_clean(lab, 1, [("output-recreated", 1.0, None)], settings)
        assert lab.history.seen["EO-TOPIC-RECREATED"], history


@pytest.mark.long
@pytest.mark.parametrize("seed", [MORE, FEWER])
def test_an_input_that_is_made_again_is_read_from_its_begin_when_a_person_says_so(seed: int, tmp_path: Path) -> None:
    """Guards against a new topic that is read from the middle: it has more records than the old one, or fewer."""
    settings = Settings(rate=100, timeout_ms=60_000)
    with lab_of(settings, seed, tmp_path / "lab", shown) as lab:
        history = run_clean(lab, seed, [("input-recreated", 1.0, None)], settings)
        assert lab.history.seen["EO-INPUT-RECREATED"], history
        assert len(struck(history, "input-recreated")) == 1


@pytest.mark.long
def test_of_an_input_that_is_made_again_what_was_decided_is_owed_and_all_of_the_new_topic(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Guards against a judge that calls a loss what a person has deleted, or forgives what the sink had decided."""
    connection = Connection(broker.bootstrap_servers)
    workload, group = Workload(connection, tmp_path / "writers", partitions=2, rate=400.0, aborts=0.0), fresh_name("s")
    try:
        workload.start()
        until("some input", lambda: len(workload.expected()) > 100, 60)
        workload.stop()
        old = workload.expected()
        with Admin(connection) as admin:
            half = {p: marks.high // 2 for p, marks in admin.watermarks(workload.topic).items()}
        commit_offsets(
            connection, offsets_group(group), [TopicPartition(workload.topic, p, at) for p, at in half.items()]
        )
        gone, new = workload.recreate(group, 1.5)
        workload.stop()
        owed = workload.expected()
    finally:
        workload.close()
    decided = [row for row in old if offset_of(row) < half[partition_of(row)]]
    assert 0 < gone == len(old) - len(decided) and new == int(1.5 * len(old))
    assert owed[: len(decided)] == decided and len(set(owed)) == len(owed) >= len(decided) + new
    assert owed[len(decided) :] == read_all(connection, workload.topic)


def read_all(connection: Connection, topic: str) -> list[Row]:
    read = oracle.read(connection, [topic])
    return [(m.key, place(topic, m.partition, m.offset, m.value or "")) for m in read]


def partition_of(row: Row) -> int:
    return int((row[1] or "").partition("|")[0].split("-")[-2])


def offset_of(row: Row) -> int:
    return int((row[1] or "").partition("|")[0].split("-")[-1])
