"""Processes as a crashing machine sees them: all of a session, or of a family, at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from exactly_once_local.cluster.guard import kill_session, of_session, send, stop_session

__all__ = [
    "Timeout",
    "command_of",
    "continue_session",
    "family",
    "kill_family",
    "kill_session",
    "of_session",
    "parent_is",
    "send",
    "stop_family",
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


def family(pid: int) -> set[int]:
    """Return a process and all that descend from it, as far as they are there.

    For those that a session does not hold together: PostgreSQL's processes have one each, and the runs of a code server
    share one.
    """
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.NoSuchProcess:
        return set()


def stop_family(pid: int) -> None:
    """Send SIGSTOP to a process and its descendants, those included that are born meanwhile."""
    stopped: set[int] = set()
    while new := family(pid) - stopped:
        send(new, signal.SIGSTOP)
        stopped |= new


def kill_family(pid: int) -> None:
    """Kill a process and its descendants with ``kill -9``, stopped first so that none sees another one's end."""
    stop_family(pid)
    send(family(pid), signal.SIGKILL)


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
