"""Streams that go on under the release of this package before this one, and under this one, in turn."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from exactly_once.kafka.connection import Connection
from testkit.releases import package_before
from testkit.stateful_oracle import Windows
from testkit.stream import SparkDriver
from testkit.upgrades import go_through, passed, stateful


def test_streams_go_on_under_the_release_before_and_under_this_one_in_turn(
    connection: Connection, tmp_path: Path, driver_on: Callable[..., SparkDriver]
) -> None:
    """Mishap: a downgrade cannot read what the newer release decided, or decides it again."""
    before = package_before()
    streams = [
        passed(connection, tmp_path),
        stateful(connection, tmp_path, "windows", Windows()),
        stateful(connection, tmp_path, "windows-update", Windows(), "update"),
    ]
    old, new = partial(driver_on, package=before), driver_on
    points = ["decided", "some-ended", "all-prepared", "decided", "all-ended", ""]
    go_through(
        streams, [("before" if old is one else "now", p, one) for p, one in zip(points, [old, new] * 3, strict=True)]
    )
    for stream in streams:  # what reads is to be upgraded first; it reads on where it was not
        command = [sys.executable, "-m", "exactly_once.tools.cli", "verify", stream.bench.sink_id]
        command += ["--bootstrap-servers", connection.bootstrap_servers, "--checkpoint", str(stream.bench.checkpoint)]
        done = subprocess.run(command, cwd=before, env={"PYTHONPATH": str(before)}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
