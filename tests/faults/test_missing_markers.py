"""Kafka 4.3.1 leaves out the end marker of a partition that has no leader: a decided batch that no reader gets.

The sink waits for a leader before it commits (test_leaderless.py). This is what is left when the leader goes just then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.ops.transactions import end_hanging
from exactly_once.protocol.outcomes import Outcome
from exactly_once.txn.coordinators import End, end_all
from exactly_once.txn.leaders import find_hanging
from exactly_once.verify import verify
from exactly_once.verify.anomalies import Anomaly
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
def test_a_decided_batch_whose_markers_kafka_leaves_out_is_named_and_committed(
    own_broker: Callable[..., EmbeddedBroker], driver: StartDriver, tmp_path: Path
) -> None:
    """Guards against a batch that is complete in the commit log, and that no reader gets, without a word or a way
    out.
    """
    running = own_broker(nodes=3)
    connection, topic = Connection(running.bootstrap_servers), brokers.fresh_name("lone")
    cluster = AdminClient({"bootstrap.servers": running.bootstrap_servers, "log_level": 0})
    new = NewTopic(topic, 1, replica_assignment=[[LONE]], config={"min.insync.replicas": "1"})
    cluster.create_topics([new])[topic].result(30)

    def leader() -> int:
        return int(cluster.list_topics(topic, timeout=20).topics[topic].partitions[0].leader)

    bench = make_bench(connection, tmp_path / "bench")
    job, first = bench.job.having(topic=topic, kafka_transaction_timeout_ms="120000"), driver()
    bench.input.add()
    first.complete(job)
    bench.input.add()
    first.arm("decided")
    run = first.start(job)
    run.await_true("decided", lambda: first.has_reached("decided"))
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

    hanging = find_hanging(connection, [topic], older_than_s=0, budget_s=60)
    report = verify(connection, bench.sink_id, checkpoint=str(bench.checkpoint), topics=[topic], settle_s=3)
    found = Counter(f.anomaly for f in report.findings)
    if not hanging:  # a version that waits for a leader
        assert not found, report.findings
        return
    assert found[Anomaly.UNSEEN] == len(hanging) and {Anomaly.OUTCOME_LIE, Anomaly.CHECKPOINT_AHEAD} <= set(found)
    assert all(end_hanging(connection, one.name, older_than_s=0)[1] for one in hanging), "each of them is committed"
    report = verify(connection, bench.sink_id, checkpoint=str(bench.checkpoint), topics=[topic], settle_s=3)
    assert not report.findings, report.findings
    driver().complete(job)
    oracle.assert_exactly(oracle.read(connection, [topic]), bench.input.expected())
