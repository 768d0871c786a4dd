"""Output partitions without a leader for some seconds: their only broker is killed, and comes back with what it had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from exactly_once.coordinator.recover import recover
from exactly_once.errors import Unfinished
from exactly_once.failpoints import POINTS
from exactly_once.kafka.connection import Connection
from exactly_once.participants.kafka import participant as kafka
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once.tools.verify.anomalies import Anomaly
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import broker as brokers
from testkit import oracle
from testkit.fixtures import Bench, StartDriver, make_bench
from testkit.processes import until
from testkit.stream import SparkDriver

#: The node that goes, and one that stays; partitions 0 and 2 live on the first one alone.
GOES, STAYS = 2, 1

#: A session of 3 s, a quorum of two, a start of a JVM, on a busy machine.
ELECTION_S = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Three nodes for all cases: each has a topic of its own, and leaves every node at work."""
    running = brokers.test_broker(tmp_path_factory.mktemp("cluster"), nodes=3)
    yield running.start()
    running.kill()
    running.stop()


def on_two_nodes(
    connection: Connection, folder: Path, places: Sequence[list[int]] = ([GOES], [STAYS]) * 2, in_sync: int = 1
) -> Bench:
    """Return a bench whose output has replicas there, by default no second one of anything."""
    made = make_bench(connection, folder)
    topic = f"{made.topic}-placed"
    new = NewTopic(topic, len(places), replica_assignment=[*places], config={"min.insync.replicas": str(in_sync)})
    client = AdminClient({**connection.librdkafka(), "log_level": 0})
    client.create_topics([new], operation_timeout=30)[topic].result(30)
    until("its leaders", lambda: -1 not in leaders(connection, topic), ELECTION_S, 0.2)
    return replace(made, topic=topic, job=made.job.having(topic=topic))


def leaders(connection: Connection, topic: str) -> list[int]:
    """Return who leads each partition, -1 for nobody."""
    client = AdminClient({**connection.librdkafka(), "log_level": 0})
    found = client.list_topics(topic, timeout=10).topics[topic].partitions
    return [found[p].leader for p in sorted(found)] or [-1]


@pytest.mark.long
@pytest.mark.parametrize("point", ["a start", "a batch", "mid-write", "some-sent", "all-prepared", "decided"])
def test_a_stream_waits_for_a_leader_and_writes_each_row_once(
    point: str, cluster: EmbeddedBroker, tmp_path: Path, warm: SparkDriver
) -> None:
    """Guards against a stream that ends over what passes, rows that the leader has and the task sends again, and a
    decided part that is taken for lost while nobody can tell.
    """
    connection = Connection.from_options({"kafka.bootstrap.servers": cluster.bootstrap_servers})
    bench = on_two_nodes(connection, tmp_path)
    bench.complete(warm)
    bench.assert_settled()  # Kafka may leave out markers under way when a leader goes (test_missing_markers.py)
    named = point in POINTS
    if point != "a start":
        run = warm.start(bench.job.until_stopped())
    if named:
        bench.hold(run, point, "wait")
    cluster.kill(GOES)
    until("partitions without a leader", lambda: leaders(connection, bench.topic).count(-1) == 2, ELECTION_S, 0.2)
    if named:
        warm.release(point)
    else:
        bench.input.add()
    if point == "a start":
        run = warm.start(bench.job.until_stopped())
    if point not in ("all-prepared", "decided"):  # there, what is decided is so without that leader
        run.await_true("parts that wait", lambda: oracle.open_parts(connection, bench.sink_id) >= 2)
        assert not run.is_committed(1)

    cluster.restart(GOES)

    run.await_commit(1)
    bench.input.add()
    run.await_commit(2)
    run.stop()()
    bench.assert_exactly_once()
    assert bench.decided_batches() == [0, 1, 2]


def in_sync(connection: Connection, topic: str) -> list[int]:
    """Return how many replicas of each partition are in sync."""
    client = AdminClient({**connection.librdkafka(), "log_level": 0})
    found = client.list_topics(topic, timeout=10).topics[topic].partitions
    return [len(found[p].isrs) for p in sorted(found)]


@pytest.mark.long
def test_a_decided_batch_is_complete_and_its_readers_wait_while_a_partition_has_too_few_replicas(
    cluster: EmbeddedBroker, tmp_path: Path, warm: SparkDriver
) -> None:
    """Guards against a stream that ends over what passes, and a batch of which half is visible while every screen calls
    it complete: brokers answer a commit before its end markers, which such a partition refuses.
    """
    connection = Connection.from_options({"kafka.bootstrap.servers": cluster.bootstrap_servers})
    bench = on_two_nodes(connection, tmp_path, [[STAYS, GOES], [STAYS, 3]] * 2, in_sync=2)
    bench.complete(warm)
    run = warm.start(bench.job.until_stopped())
    bench.hold(run, "decided", "wait")
    seen = len(bench.visible())
    cluster.kill(GOES)
    until("too few replicas", lambda: in_sync(connection, bench.topic) == [1, 2, 1, 2], ELECTION_S, 0.2)
    warm.release("decided")

    run.await_commit(1)
    run.await_true("the half that can be seen", lambda: len(bench.visible()) > seen)
    bench.input.add()
    run.await_true("the mark", lambda: not bench.log().open_decisions)
    assert seen < len(bench.visible()) < len(bench.input.expected())
    report = verify(connection, VerifyParameters(bench.sink_id, topics=[bench.topic], settle_s=3))
    assert Anomaly.STALLED_LAST_STABLE_OFFSET in {f.anomaly for f in report.findings}, report.findings

    cluster.restart(GOES)

    run.await_commit(2)
    run.stop()()
    bench.assert_exactly_once()
    assert bench.decided_batches() == [0, 1, 2]


@pytest.mark.long
def test_a_recovery_beside_a_partition_without_a_leader_ends_nothing_and_names_it(
    cluster: EmbeddedBroker, tmp_path: Path, driver: StartDriver, warm: SparkDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against end markers that Kafka leaves out: readers would wait for them, and the next transaction of the
    same producer would decide over both.
    """
    connection = Connection.from_options({"kafka.bootstrap.servers": cluster.bootstrap_servers})
    bench, killed = on_two_nodes(connection, tmp_path), driver()
    bench.input.add()
    killed.hold(bench.job, "decided")
    killed.kill9()
    cluster.kill(GOES)
    until("partitions without a leader", lambda: leaders(connection, bench.topic).count(-1) == 2, ELECTION_S, 0.2)
    monkeypatch.setattr(kafka, "BUDGET_S", 2.0)

    with pytest.raises(Unfinished, match=rf"{bench.topic}-0 .*no leader for"):
        recover(connection, bench.sink_id)

    assert oracle.open_parts(connection, bench.sink_id) == 4
    cluster.restart(GOES)
    bench.complete_exactly_once(warm, batches=0)
