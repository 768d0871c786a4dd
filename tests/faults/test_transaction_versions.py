"""Clusters of both transaction protocols: AddPartitionsToTxn and EndTxn 4, or Produce alone and EndTxn 5 (KIP-890);
and a cluster that changes from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.txn.coordinators import end_txn_version
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.fixtures import Bench, make_bench
from testkit.processes import until
from testkit.stream import SparkDriver

pytestmark = pytest.mark.long


def finalise(connection: Connection, level: int) -> None:
    """Set the cluster's transaction.version."""
    with Admin(connection, 30) as admin:
        kind = "UPGRADE" if level else "UNSAFE_DOWNGRADE"
        answer = admin.call(lambda: admin.client.update_features({"transaction.version": (kind, level)}))
        assert answer == {"transaction.version": "OK"}, answer
        until("the new version", lambda: end_txn_version(admin.renew(10)) == (5 if level >= 2 else 4), 30)


@pytest.fixture
def bench(own_broker: Callable[..., EmbeddedBroker], tmp_path: Path) -> Bench:
    """A stream on a cluster of its own."""
    connection = Connection.from_options({"kafka.bootstrap.servers": own_broker().bootstrap_servers})
    return make_bench(connection, tmp_path / "bench")


def test_a_stream_on_a_cluster_of_the_older_protocol_is_killed_and_goes_on(
    bench: Bench, driver: Callable[..., SparkDriver]
) -> None:
    """Guards against records outside of a transaction on brokers that do not add partitions by themselves."""
    finalise(bench.connection, 0)
    bench.input.add()
    first = driver()
    run = first.start(bench.job.until_stopped())
    run.await_commit(0)
    first.arm("decided")
    bench.input.add()
    run.await_true("decided", lambda: first.has_reached("decided"))
    first.kill9()
    bench.input.add()
    driver().complete(bench.job)
    bench.assert_exactly_once()
    assert [d.end_txn_version for d in bench.log().decisions] == [4, 4, 4]


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0)], ids=["upgraded", "downgraded"])
def test_a_cluster_that_changes_its_protocol_under_a_stream_costs_a_start_at_most(
    before: int, after: int, bench: Bench, warm: SparkDriver
) -> None:
    """Guards against a claim that goes on with a protocol which the brokers no longer speak, or mixes the two in one
    transaction.
    """
    finalise(bench.connection, before)
    bench.input.add()
    run = warm.start(bench.job.until_stopped())
    run.await_commit(0)
    finalise(bench.connection, after)
    bench.input.add()
    run.await_true("the end of the batch", lambda: run.is_committed(1) or run.has_ended())
    run.stop()()
    bench.input.add()
    warm.complete(bench.job)
    bench.assert_exactly_once()
    assert bench.log().decisions[-1].end_txn_version == (5 if after >= 2 else 4), "that of the start's own claim"
