"""The rows of docs/upgrade.md's table, each a test; ``make test-upgrades`` runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.releases import cluster_of, driver_of
from testkit.stream import SparkDriver

#: How many rows are run: CI takes some each day, by TEST_ROTATION. 0: all.
ROWS = int(os.environ.get("TEST_UPGRADES_ROWS") or 0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    rows = [item for item in items if item.path.parent == Path(__file__).parent]
    for item in rows:
        item.add_marker(pytest.mark.long)
    if ROWS:
        first = int(os.environ.get("TEST_ROTATION") or 0) % max(1, len(rows))
        chosen = set((rows + rows)[first : first + ROWS])
        config.hook.pytest_deselected(items=[item for item in rows if item not in chosen])
        items[:] = [item for item in items if item not in rows or item in chosen]


@pytest.fixture
def driver_on(tmp_path: Path) -> Iterator[Callable[..., SparkDriver]]:
    """Start a driver: ``driver_on("4.3.0")``, and what :func:`testkit.releases.driver_of` takes beside."""
    started: list[SparkDriver] = []

    def start(spark: str | None = None, **how: object) -> SparkDriver:
        started.append(driver_of(tmp_path / f"driver-{len(started)}", spark, **how))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for one in started:
        one.close()
        print(f"--- end of {one.log}\n{one.log_tail()}")


@pytest.fixture
def cluster_on(tmp_path: Path) -> Iterator[Callable[..., EmbeddedBroker]]:
    """Start a cluster of a release of Kafka on this test's folder; the one of another release is stopped before."""
    started: list[EmbeddedBroker] = []

    def start(release: str, nodes: int = 1) -> EmbeddedBroker:
        port = None
        if started:
            port = int(started[-1].bootstrap_servers.partition(",")[0].rpartition(":")[2])
            started[-1].stop()
        started.append(cluster_of(tmp_path / "cluster", release, nodes, port))
        return started[-1].start()

    yield start
    if started:
        started[-1].kill()
