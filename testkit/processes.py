"""Processes as a crashing machine sees them: all of a session at once."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path


class Timeout(AssertionError):
    """The error of a test that waited for something that did not happen."""


def until(what: str, condition: Callable[[], object], timeout_s: float = 30.0, every_s: float = 0.02) -> None:
    """Wait for ``condition``; every wait of a test is for something and has an end."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise Timeout(f"waited {timeout_s:g} s for {what}")
        time.sleep(every_s)


def of_session(session: int) -> set[int]:
    """Every process of a session, whatever process group it has made for itself and whoever its parent is by now."""
    found = set()
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == session and _state(entry) != "Z":
                    found.add(int(entry.name))
            except (OSError, ValueError):
                continue
    return found


def stop_session(session: int) -> set[int]:
    """SIGSTOP for every process of a session, those included that are born meanwhile."""
    stopped: set[int] = set()
    while new := of_session(session) - stopped:
        _send(new, signal.SIGSTOP)
        stopped |= new
    return stopped


def continue_session(session: int) -> None:
    """SIGCONT for every process of a session."""
    _send(of_session(session), signal.SIGCONT)


def kill_session(session: int) -> None:
    """Kill every process of a session with ``kill -9``, all at one moment.

    They are stopped first, so none sees another one's end.
    """
    _send(stop_session(session), signal.SIGKILL)
    until(f"the end of session {session}", lambda: not of_session(session), 10)


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


def _send(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _state(entry: Path) -> str:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0]
