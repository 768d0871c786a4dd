"""A code location that is deployed anew with another Spark, or another release of this package: its run dies with the
old code server, and the sensors, which the daemon evaluates in the new one, recover the sink and start the stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.processes import command_of
from testkit.releases import package_before
from testkit.site import Site
from testkit.story import PATIENCE_S, Story
from testkit.stream import ROOT
from testkit.webserver import Dagster
from tools.environments import environment

#: What the code server runs on: a PySpark, and a release of this package.
ROWS = {
    "spark-up": [("4.0.5", False), ("4.3.0", False)],
    "spark-down": [("4.3.0", False), ("4.0.5", False)],
    "package-up": [("", True), ("", False)],
    "package-down": [("", False), ("", True)],
}


@pytest.fixture
def dagster(own_broker: Callable[[], EmbeddedBroker], tmp_path: Path) -> Iterator[Dagster]:
    """Yield a Dagster that does not run yet, on a cluster of its own: all have one input topic."""
    running = Dagster(Site(tmp_path, own_broker().bootstrap_servers))
    yield running
    running.stop()


@pytest.mark.parametrize("row", ROWS)
def test_sensors_recover_and_restart_a_stream_whose_code_location_is_deployed_anew(row: str, dagster: Dagster) -> None:
    """Mishap: the new sensors do not understand the tags of the old run, or the new stream not what it had decided."""

    def deploy(spark: str, before: bool) -> str:
        dagster.python = environment(spark) if spark else sys.executable
        dagster.root = package_before() if before else ROOT
        return dagster.python

    old, new = ROWS[row]
    deploy(*old)
    with dagster, Story(dagster.site, dagster) as story:
        run = story.start()
        dagster.arm("decided", "hang")
        dagster.reached("decided", PATIENCE_S)
        dagster.kill("code")
        python = deploy(*new)
        dagster.start("code")
        dagster.await_code_server()
        recovery, again = story.await_restart(run)
        assert command_of(dagster.pid(again)).startswith(python)
        dagster.wait_for(recovery, "SUCCESS", PATIENCE_S)
        story.assert_exactly_once()
        print(f"{row}: run {run[:8]} died at its decision, {recovery[:8]} recovered, {again[:8]} goes on; once")
