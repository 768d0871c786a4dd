"""Processes as a crashing machine sees them: all of a session at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from exactly_once_local.cluster.guard import kill_session, of_session, send, stop_session

__all__ = [
    "Timeout",
    "command_of",
    "continue_session",
    "kill_session",
    "of_session",
    "parent_is",
    "stop_session",
    "until",
]


class Timeout(AssertionError):
    """The error of a test that waited for something that did not happen."""


def until(what: str, condition: Callable[[], object], timeout_s: float = 30.0, every_s: float = 0.02) -> None:
    """Wait for ``condition``; every wait of a test is for something and has an end."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise Timeout(f"waited {timeout_s:g} s for {what}")
        time.sleep(every_s)


def continue_session(session: int) -> None:
    """SIGCONT for every process of a session."""
    send(of_session(session), signal.SIGCONT)


def command_of(pid: int) -> str:
    """Return the command line of a process, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def parent_is(pid: int, command: str) -> bool:
    """Return whether the parent of a process has ``command`` in its command line."""
    try:
        parent = int((Path(f"/proc/{pid}") / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return command in command_of(parent)
