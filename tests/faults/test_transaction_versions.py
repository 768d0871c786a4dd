"""Clusters of both transaction protocols: AddPartitionsToTxn and EndTxn 4, or Produce alone and EndTxn 5 (KIP-890);
and a cluster that changes from one to the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from exactly_once.coordinator.recover import recover
from exactly_once.errors import BrokerRefused
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import LOWERED, RAISE
from exactly_once.tools.operation.model import OperationContext
from exactly_once.tools.operation.transactions import COMMIT, TransactionParameters
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.fixtures import Bench, make_bench
from testkit.releases import finalise
from testkit.stream import Refused, SparkDriver


@pytest.fixture
def bench(own_broker: Callable[..., EmbeddedBroker], tmp_path: Path) -> Bench:
    """A stream on a cluster of its own."""
    connection = Connection.from_options({"kafka.bootstrap.servers": own_broker().bootstrap_servers})
    return make_bench(connection, tmp_path / "bench")


@pytest.mark.long
def test_a_stream_on_a_cluster_of_the_older_protocol_is_killed_and_goes_on(
    bench: Bench, driver: Callable[..., SparkDriver]
) -> None:
    """Guards against records outside of a transaction on brokers that do not add partitions by themselves."""
    finalise(bench.connection, 0)
    first = driver()
    bench.kill_at("decided", first)
    bench.complete_exactly_once(driver())
    assert [d.end_txn_version for d in bench.log().decisions] == [4, 4, 4]


@pytest.mark.long
def test_a_cluster_that_is_raised_under_a_stream_costs_it_a_start_at_most(bench: Bench, warm: SparkDriver) -> None:
    """Guards against a claim that goes on with a protocol which the brokers no longer speak, or mixes the two in one
    transaction.
    """
    finalise(bench.connection, 0)
    run = bench.begin(warm)
    finalise(bench.connection, 2)
    bench.input.add()
    run.await_true("the end of the batch", lambda: run.is_committed(1) or run.has_ended())
    run.stop()()
    bench.complete_exactly_once(warm)
    assert bench.log().decisions[-1].end_txn_version == 5, "that of the start's own claim"


@pytest.mark.long
def test_a_cluster_that_was_set_back_to_0_is_refused_before_its_ids_are_touched(
    bench: Bench, warm: SparkDriver
) -> None:
    """Mishap: the brokers say that a version of the API is not supported, and no message says what helps; or the stream
    goes on with the ids that it has not used yet, and stops for good after sixteen starts.
    """
    bench.complete(warm)
    finalise(bench.connection, 0)
    owner = bench.log().owner
    bench.input.add()
    with pytest.raises(Refused, match="EO-BROKER-REFUSED"):
        warm.ask("check", job=asdict(bench.job))
    refused = warm.run(bench.job)
    assert refused.code == "EO-BROKER-REFUSED" and LOWERED in refused.sentence and RAISE in refused.sentence
    assert bench.log().owner == owner, "nobody was fenced"
    finalise(bench.connection, 1)
    warm.complete(bench.job)
    finalise(bench.connection, 2)
    bench.complete_exactly_once(warm)


@pytest.mark.long
def test_what_was_decided_at_2_waits_at_0_and_is_committed_when_it_is_2_again(
    bench: Bench, driver: Callable[..., SparkDriver], warm: SparkDriver
) -> None:
    """Mishap: a start, a recovery or a person sends an EndTxn 5 at level 0, which keeps the id busy until the broker
    restarts; readers wait that long.
    """
    first = driver()
    bench.hold_third_batch(first, bench.job.until_stopped(), "decided")
    first.kill9()
    finalise(bench.connection, 0)
    assert warm.run(bench.job).code == "EO-BROKER-REFUSED"
    [name, *_] = [h.transactional_id for h in bench.log().decisions[-1].transactions]
    for attempt in (
        lambda: recover(bench.connection, bench.sink_id),
        lambda: COMMIT.apply(OperationContext(bench.connection, budget_s=60), TransactionParameters(id=name)),
    ):
        with pytest.raises(BrokerRefused, match=re.escape(RAISE)):
            attempt()
    finalise(bench.connection, 2)
    bench.complete_exactly_once(warm, batches=0)


@pytest.mark.long
def test_a_stream_that_commits_while_the_cluster_is_set_back_to_0_says_what_helps(
    own_broker: Callable[..., EmbeddedBroker], tmp_path: Path, warm: SparkDriver
) -> None:
    """Mishap: "once the brokers answer, start again", for an id that its coordinator keeps busy until it restarts."""
    cluster = own_broker()
    bench = make_bench(Connection(cluster.bootstrap_servers), tmp_path / "bench")
    bench.input.add()
    run = warm.start(bench.job.until_stopped())
    run.await_true("a completed batch", lambda: bench.decided_batches() and not bench.log().open_decisions)
    bench.hold(run, "decided", "wait")
    finalise(bench.connection, 0)
    warm.release("decided")
    ended = run.end(150)
    assert ended.code == "EO-UNFINISHED" and LOWERED in ended.sentence and RAISE in ended.sentence, ended.failure
    finalise(bench.connection, 2)
    again = warm.run(bench.job, 150)
    assert again.code == "EO-UNFINISHED" and "Restart the brokers" in again.sentence, again.failure
    cluster.restart()
    bench.complete_exactly_once(warm, batches=0)
