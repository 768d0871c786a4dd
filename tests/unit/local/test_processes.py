"""Processes and ports on this machine: what is killed is gone, what is free is free."""

from __future__ import annotations

import socket
import subprocess

import pytest

from exactly_once_local.cluster.guard import kill_session, of_session
from exactly_once_local.ports import free_port, is_free
from testkit.processes import until


def test_kill_takes_the_whole_session() -> None:
    """Spark's Python workers have process groups of their own; one that lives on could still send."""
    shell = subprocess.Popen(["bash", "-c", "set -m; sleep 60 & sleep 60"], start_new_session=True)
    try:
        until("both groups", lambda: len(of_session(shell.pid)) == 3, 10)
    finally:
        kill_session(shell.pid)
    assert of_session(shell.pid) == set()
    assert shell.wait() in (-9, 137, 147), "killed, or its own child was killed or stopped a moment before"


def test_a_free_port_is_none_that_is_taken_or_listened_on() -> None:
    """Guards against two servers of one test that are given the same port, of which the second does not start."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not is_free(port)
        assert free_port({port + 1}, among=range(port, port + 1_000)) > port + 1
    with pytest.raises(OSError, match="no free port"):
        free_port(range(20_000, 21_000), among=range(20_000, 21_000))
