"""Another Python under a stream: through the format, and through ``foreach_batch``, whose tasks run in it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from exactly_once.kafka.connection import Connection
from testkit.stateful_oracle import Windows
from testkit.stream import SparkDriver
from testkit.upgrades import go_through, passed, stateful
from tools.environments import environment
from tools.extras import found_pythons


def test_streams_go_on_under_another_python_and_back(
    connection: Connection, tmp_path: Path, driver_on: Callable[..., SparkDriver]
) -> None:
    """Mishap: rows that one Python sends otherwise than the other, so that a lost part cannot be written again."""
    others = {version: python for version, python in found_pythons().items() if python != sys.executable}
    if not others:
        pytest.skip("this machine has one Python")
    version, python = sorted(others.items())[0]
    other = partial(driver_on, python=environment(python=python))
    streams = [passed(connection, tmp_path), stateful(connection, tmp_path, "windows-update", Windows(), "update")]
    mine = "{}.{}".format(*sys.version_info)
    steps = [(mine, "decided", driver_on), (version, "some-ended", other), (mine, "all-prepared", driver_on)]
    go_through(streams, [*steps, (version, "", other), (mine, "", driver_on)])
