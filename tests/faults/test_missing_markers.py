"""Kafka 4.3.1 leaves out the end marker of a partition that has no leader: readers wait, and no coordinator knows.

The sink waits for a leader before it commits (test_leaderless.py), unless it has just seen all of them. This is what is
left: the leader goes just then, or a broker comes back after the timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from exactly_once.coordinator.recover import recover
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.outcomes import Outcome
from exactly_once.tools.verify import VerifyParameters, verify
from exactly_once.txn.coordinators import End, end_all
from exactly_once.txn.leaders import find_hanging
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit import broker as brokers
from testkit import oracle
from testkit.fixtures import StartDriver, make_bench
from testkit.processes import until

#: Has the only replica of the output.
LONE = 3

#: Until the cluster has given up that broker.
AWAY_S = 40


@pytest.mark.long
def test_a_decided_batch_whose_markers_kafka_leaves_out_is_committed_by_the_next_claim(
    own_broker: Callable[..., EmbeddedBroker], driver: StartDriver, tmp_path: Path
) -> None:
    """Guards against a batch that is complete in the commit log, and that no reader gets."""
    running = own_broker(nodes=3)
    connection, topic = Connection(running.bootstrap_servers), brokers.fresh_name("lone")
    cluster = AdminClient({"bootstrap.servers": running.bootstrap_servers, "log_level": 0})
    new = NewTopic(topic, 1, replica_assignment=[[LONE]], config={"min.insync.replicas": "1"})
    cluster.create_topics([new])[topic].result(30)

    def leader() -> int:
        return int(cluster.list_topics(topic, timeout=20).topics[topic].partitions[0].leader)

    bench = make_bench(connection, tmp_path / "bench")
    job, first = bench.job.having(topic=topic, kafka_transaction_timeout_ms="120000"), driver()
    bench.complete(first, job)
    bench.input.add()
    first.hold(job, "decided")
    running.kill(LONE)
    until("the end of its session", lambda: leader() == -1, AWAY_S, every_s=0.5)
    first.kill9()
    decision = bench.log().decisions[-1]
    with Admin(connection) as admin:  # what a driver sends that saw the leader a moment ago
        outcomes = end_all(admin, [End.of(h) for h in decision.transactions], True, decision.end_txn_version)
    assert set(outcomes.values()) == {Outcome.DONE}
    running.restart(LONE)
    until("its return", lambda: leader() == LONE, 60, every_s=0.5)
    driver().complete(job)

    report = verify(
        connection, VerifyParameters(bench.sink_id, checkpoint=str(bench.checkpoint), topics=[topic], settle_s=3)
    )
    assert not report.findings, report.findings
    oracle.assert_exactly(oracle.read(connection, [topic]), bench.input.expected())
    assert not find_hanging(connection, [topic], older_than_s=0, budget_s=60)


def held_back(connection: Connection, topic: str) -> object:
    with Admin(connection, 30) as admin:
        return oracle.held_back(admin, [topic])


@pytest.mark.long
@pytest.mark.parametrize("by", ["the next start", "a recovery"])
@pytest.mark.parametrize("point", ["all-prepared", "decided"])
def test_what_a_broker_left_open_while_it_was_away_holds_nobody_back_after_the_next_claim(
    point: str, by: str, own_broker: Callable[..., EmbeddedBroker], driver: StartDriver, tmp_path: Path
) -> None:
    """Guards against readers that get nothing any more, while starts and batches end without an error: the broker was
    killed in a batch, and back after the timeout; nobody but the leaders knows of these transactions then.
    """
    running = own_broker()
    connection = Connection(running.bootstrap_servers)
    bench = make_bench(connection, tmp_path / "bench")
    job = bench.job.having(kafka_transaction_timeout_ms="10000")
    first = driver()
    bench.complete(first, job)
    bench.input.add()
    first.hold(job, point)
    first.kill9()
    running.kill()
    time.sleep(11)  # for longer than the transactions may be open
    running.restart()
    until("the timeouts", lambda: bench.open_parts() == 0, 60)
    if not held_back(connection, bench.topic):
        pytest.skip("this Kafka wrote the markers later")

    if by == "a recovery":
        report = recover(connection, bench.sink_id)
        assert report.clean and not held_back(connection, bench.topic)
    bench.complete_exactly_once(driver(), job, batches=0)
    bench.assert_settled()
    assert not find_hanging(connection, [bench.topic], older_than_s=0)
