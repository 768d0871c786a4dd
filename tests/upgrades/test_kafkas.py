"""Brokers that are replaced by those of another release, and a transaction.version that changes, under streams in every
state.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.processes import until
from testkit.releases import classpath, finalise, finalise_release, level_of
from testkit.stream import SparkDriver
from testkit.upgrades import Steadily, Upgraded, passed

#: Moments at which the driver of a stream is dead while the cluster changes: before its decision and behind it.
KILLED = ("some-sent", "all-prepared", "decided", "some-ended", "all-ended")

#: Moments at which a running stream is held while the cluster changes.
HELD = ("planned", "before-begin", "mid-write", "some-sent", "after-flush", *KILLED[1:], "marking")

Clusters = Callable[..., EmbeddedBroker]
Drivers = Callable[..., SparkDriver]


def killed_at_each_point(connection: Connection, folder: Path, start: Drivers) -> list[Upgraded]:
    """Return streams whose driver was killed, each at a point of the protocol."""
    streams = [passed(connection, folder, f"killed-{point}") for point in KILLED]
    for stream, point in zip(streams, KILLED, strict=True):
        driver = start()
        stream.complete(driver)
        stream.hold(driver, point)
        driver.kill9()
    return streams


def go_on(streams: list[Upgraded], driver: SparkDriver) -> None:
    """Let each stream go on with one batch more, and find it clean."""
    for stream in streams:
        stream.complete(driver)
        stream.assert_clean()


@pytest.mark.parametrize(("old", "new"), [("3.9.2", "4.3.1"), ("3.9.2", "4.4.0"), ("4.0.2", "4.4.0")])
def test_brokers_are_replaced_on_their_folder_under_a_running_stream(
    old: str, new: str, cluster_on: Clusters, tmp_path: Path, driver_on: Drivers
) -> None:
    """Mishap: a batch that the old brokers hold is lost or written twice, or its transaction hangs under the new."""
    connection = Connection(cluster_on(old).bootstrap_servers)
    streams = killed_at_each_point(connection, tmp_path, driver_on)
    live, driver = passed(connection, tmp_path, "live"), driver_on()
    live.complete(driver)
    run = live.start(driver, live.job.until_stopped())
    with Steadily(live, run):
        cluster_on(new)
        live.await_batches(2)
        finalise_release(connection)
        live.await_batches(2)
    assert not run.has_ended(), "the stream went on through all of it"
    run.stop()()
    go_on([live, *streams], driver)
    assert {d.end_txn_version for s in streams for d in s.bench.log().decisions[-1:]} == {5}


def test_three_nodes_are_rolled_under_a_running_stream(
    cluster_on: Clusters, tmp_path: Path, driver_on: Drivers
) -> None:
    """Mishap: a batch that was decided on the old cluster is not understood by a mixed one; or the stream's guarantee
    depends on which node it asks.
    """
    cluster = cluster_on("3.9.2", nodes=3)
    connection = Connection(cluster.bootstrap_servers)
    killed, live, driver = passed(connection, tmp_path, "killed"), passed(connection, tmp_path, "live"), driver_on()
    first = driver_on()
    killed.complete(first)
    killed.hold(first, "decided")
    first.kill9()
    live.complete(driver)
    with Steadily(live, live.start(driver, live.job.until_stopped()), driver) as steadily:
        for node in (1, 2, 3):
            cluster._nodes[node]._classpath = classpath("4.0.2")
            cluster.restart(node)
            live.await_batches(2)
            if node == 2:
                killed.complete(driver_on())
        finalise_release(connection)
        live.await_batches(2)
    steadily.run.stop()()
    go_on([live, killed], driver)
    print(f"the running stream ended {steadily.ends} times")


@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1)], ids=["raised", "lowered"])
def test_transaction_version_changes_between_1_and_2_under_streams_in_every_state(
    first: int, then: int, cluster_on: Clusters, tmp_path: Path, driver_on: Drivers
) -> None:
    """Mishap: a transaction that begins under one protocol and ends under the other is committed twice, or never."""
    connection = Connection(cluster_on("4.4.0").bootstrap_servers)
    finalise(connection, first)
    streams, held, driver = killed_at_each_point(connection, tmp_path, driver_on), [], driver_on()
    for point in HELD:
        stream = passed(connection, tmp_path, f"held-{point}")
        finalise(connection, first)
        stream.complete(driver)
        run = stream.start(driver, stream.job.until_stopped())
        stream.await_idle(run)
        driver.arm(point, "wait")
        stream.add_batch()
        run.await_true(point, lambda point=point: driver.has_reached(point))
        finalise(connection, then)
        driver.release(point)
        stream.add_batch()
        run.await_true("the next batch", lambda stream=stream: stream.decided()[-1] >= 2)
        run.stop()()
        held.append(stream)
    finalise(connection, then)
    go_on([*held, *streams], driver)


def test_transaction_version_flips_at_random_moments_under_a_running_stream(
    cluster_on: Clusters, tmp_path: Path, driver_on: Drivers
) -> None:
    """Mishap: a moment between two steps of the protocol that no point of it names."""
    connection = Connection(cluster_on("4.4.0").bootstrap_servers)
    live, driver, moments = passed(connection, tmp_path, "live"), driver_on(), random.Random(5)
    live.complete(driver)
    run = live.start(driver, live.job.until_stopped())
    with Steadily(live, run):
        for _ in range(16):
            live.await_batches(moments.randrange(1, 4))
            finalise(connection, 3 - level_of(connection))
    assert not run.has_ended()
    run.stop()()
    until("level 2", lambda: finalise(connection, 2) is None)
    go_on([live], driver)
