"""kill -9 as a machine that goes down does it: everything of a driver at one moment."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

import psutil

from demo.rules import DuelFailed

#: Killed processes are gone within milliseconds.
GONE_S = 10.0


def of_sessions(sessions: Iterable[int]) -> set[int]:
    """Every process of these sessions: also a driver's JVM and Python workers, with their own process groups."""
    wanted, found = set(sessions), set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(pid) in wanted and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found


def kill_sessions(sessions: Iterable[int]) -> None:
    """SIGKILL for every process of all these sessions.

    They are stopped first, those included that are born meanwhile: none sees another one's end, and no session lives
    longer than the others.
    """
    sessions = tuple(sessions)
    stopped: set[int] = set()
    while new := of_sessions(sessions) - stopped:
        _send(new, signal.SIGSTOP)
        stopped |= new
    _send(stopped, signal.SIGKILL)
    end = time.monotonic() + GONE_S
    while of_sessions(sessions):
        if time.monotonic() > end:
            raise DuelFailed(f"Processes that were killed did not end within {GONE_S:.0f} s")
        time.sleep(0.01)


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
