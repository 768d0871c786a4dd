"""A stream over two topics, on a real broker and a real Spark: its start, its output, its health and its checks."""

from __future__ import annotations

import json

import dagster as dg
import pytest

from dagster_exactly_once.names import CHECKS_JOB
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.sensors.sink_state import SinkState, sink_states
from exactly_once.deadline import Deadline
from testkit import oracle
from testkit.bookings import BOOKINGS, ORDERS, REFUNDS, bookings, definitions
from testkit.stream import NAMED_SOURCES

pytestmark = pytest.mark.long  # two starts of Spark

#: A start of Spark and two batches, on a busy machine of two cores.
PATIENCE_S = 300


def run(site, *stream, conf=None, **config):
    """Run the stream in a process of its own, which ends when it has caught up; returns whether it succeeded, and what
    it said.
    """
    settings = {"EXACTLY_ONCE_SPARK_CONF": json.dumps(conf)} if conf else {}
    return site.finished("testkit.bookings", json.dumps(config), *stream, timeout_s=PATIENCE_S, **settings)


def written(site):
    """What the topic holds for a read_committed reader, without the places."""
    return sorted(m.value.split("/")[0] for m in oracle.read(site.connection, [BOOKINGS]))


def sink_state(site) -> SinkState:
    checkpoints = CheckpointReader(root=str(site.folder / "checkpoints"))
    return sink_states(site.kafka, checkpoints, [bookings.spec], Deadline(20))[bookings.sink_id]


def checked(site, monkeypatch):
    """Run the stream's checks; their results by name."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", site.bootstrap_servers)
    job = definitions(site.folder).resolve_job_def(CHECKS_JOB)
    done = job.execute_in_process(instance=dg.DagsterInstance.ephemeral())
    return {e.check_name: e for e in done.get_asset_check_evaluations()}


@pytest.fixture(scope="module")
def streamed(site):
    """Two runs, the second one after a crash would be the same: it continues both topics where the first one ended."""
    site.kafka.create_topics({ORDERS: 2, REFUNDS: 2})
    site.send(ORDERS, "before")
    site.send(REFUNDS, "before, and not wanted")
    succeeded, said = run(site)
    assert succeeded and f"begins at earliest of {ORDERS}, latest of {REFUNDS}" in said, said[-5000:]
    first = written(site)
    site.send(ORDERS, *(f"order{n}" for n in range(50)))
    site.send(REFUNDS, *(f"refund{n}" for n in range(20)))
    assert sink_state(site).lag > 70  # the records of both, and their markers
    succeeded, said = run(site, refunded="~")
    assert succeeded, said[-5000:]
    return first


def test_each_record_of_both_topics_is_written_once_from_where_its_topic_begins(site, streamed):
    """Guards against a second topic that is read from another place, under another name, or again after a restart."""
    assert streamed == ["+before"]
    orders, refunds = [f"+order{n}" for n in range(50)], [f"~refund{n}" for n in range(20)]
    assert written(site) == sorted(["+before", *orders, *refunds])
    oracle.assert_settled(site.connection, bookings.sink_id, [BOOKINGS])


def test_a_checkpoint_that_spark_puts_elsewhere_than_the_sensors_look_is_refused(site, streamed):
    """Guards against sensors and checks that read the local disk, while the stream's checkpoint is on the default file
    system of its session.
    """
    away = "hdfs://127.0.0.1:1"
    succeeded, said = run(site, conf={"spark.hadoop.fs.defaultFS": away})
    assert not succeeded and f"EO-CHECKPOINT: Spark puts {site.folder}/checkpoints" in said, said[-5000:]
    assert f"Write the location as {away}{site.folder}/checkpoints" in said


def test_health_and_checks_see_both_topics(site, streamed, monkeypatch):
    """Guards against a lag that counts one topic, and against a comparison that takes one for the other."""
    assert sink_state(site).lag == 0
    found = checked(site, monkeypatch)
    assert all(e.passed for e in found.values()), {name: e.description for name, e in found.items()}
    proof = found["no_duplicates_and_no_loss"].metadata
    assert proof["input_records_compared"].value == 71 and proof["output_records_read"].value == 71


def test_topics_are_added_and_dropped_and_return_where_spark_keeps_offsets_by_name(site):
    """Guards against a stream that must begin anew for one topic more or less, against offsets that go to another
    topic, and against one that returns and reads again, or skips what came meanwhile: Spark has forgotten it.
    """
    site.kafka.create_topics({"grow.a": 1, "grow-b": 1})
    steps = [
        ("young", {"grow.a": ["a0", "a1"], "grow-b": ["b0"]}, ["a0", "a1"]),
        ("grown", {"grow.a": ["a2"], "grow-b": ["b1"]}, ["a2", "b0", "b1"]),
        ("shrunk", {"grow.a": ["a3"], "grow-b": ["b2"]}, ["b2"]),
        ("shrunk", {"grow.a": ["a4"], "grow-b": ["b3"]}, ["b3"]),
        ("grown", {"grow.a": ["a5"], "grow-b": ["b4"]}, ["a3", "a4", "a5", "b4"]),
        ("grown", {"grow.a": ["a6"], "grow-b": ["b5"]}, ["a6", "b5"]),
    ]
    wanted = []
    for stream, sent, new in steps:
        for topic, values in sent.items():
            site.send(topic, *values)
        succeeded, said = run(site, stream, conf=NAMED_SOURCES, sink_id="by-name")
        assert succeeded, said[-5000:]
        wanted += new
        assert sorted(m.value for m in oracle.read(site.connection, ["growing"])) == sorted(wanted), stream
    oracle.assert_settled(site.connection, "by-name", ["growing"])


@pytest.mark.parametrize(("first", "then"), [("young", "grown"), ("grown", "young")])
def test_where_spark_counts_the_sources_another_set_of_topics_is_refused(site, first, then):
    """Guards against offsets of one topic that go to another one, as lost input or as duplicates."""
    site.kafka.create_topics({"grow.a": 1, "grow-b": 1})
    for topic in ("grow.a", "grow-b"):
        site.send(topic, "one")
    succeeded, said = run(site, first, sink_id=f"counted-{first}")
    assert succeeded, said[-5000:]
    succeeded, said = run(site, then, sink_id=f"counted-{first}")
    assert not succeeded and "EO-CHECKPOINT" in said, said[-5000:]


@pytest.mark.parametrize("known", [True, False])
def test_a_foreign_checkpoint_is_refused_although_no_input_waits(site, streamed, known, tmp_path):
    """Until caught up, a stream without input has no batch: it ended well on the checkpoint of another query."""
    if known:
        (tmp_path / "metadata").write_text('{"id":"11111111-2222-3333-4444-555555555555"}')
    succeeded, said = run(site, checkpoint=str(tmp_path))
    assert not succeeded and "EO-SINK-OWNED" in said and "no checkpoint yet" not in said


def test_a_record_of_the_second_topic_that_is_there_twice_is_found(site, streamed, monkeypatch):
    """Runs last: the output is wrong after it. An offset of one topic must not stand for that of the other."""
    value = next(m.value for m in oracle.read(site.connection, [BOOKINGS]) if m.value.startswith("~"))
    site.send(BOOKINGS, value)
    found = checked(site, monkeypatch)["no_duplicates_and_no_loss"]
    assert not found.passed and f"duplicated: {REFUNDS}-" in found.description
