"""Processes that end with the one that started them, however that dies; and the end of all processes of a session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

# A shell leaves a guard in the command's process group and becomes the command. The guard's read ends when the pipe to
# our process does, with our death by whatever signal; then it takes the group down. Linux's parent-death signal would
# follow the thread that forked, not the process, and other systems have none.
_GUARDED = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -9 -$$) & exec 3<&-; exec "$@"'

#: Time for killed processes to be gone: milliseconds, or seconds for a large JVM on a machine that swaps.
GONE_S = 30.0


def guarded(
    command: Sequence[str],
    out: IO[Any],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    inherited: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own: a Ctrl-C in the terminal comes to us, and :func:`end_all` ends it.

    Parameters
    ----------
    out : file
        Where its standard output and its standard error go.
    inherited : sequence of int
        File descriptors that it holds as long as it lives.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARDED, "sh", *command],
        stdin=subprocess.PIPE,  # our end is closed on exec: no process that we start holds it
        stdout=out,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environment,
        start_new_session=True,
        pass_fds=tuple(inherited),
    )


def end_all(commands: Iterable[subprocess.Popen[bytes]], *, graceful_s: float) -> None:
    """End the commands, together: gracefully, and after ``graceful_s`` seconds (0: at once) by kill -9 of their
    sessions, guards included.
    """
    ending = list(commands)
    try:
        if graceful_s > 0:
            for command in ending:
                command.terminate()
            deadline = time.monotonic() + graceful_s
            for command in ending:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    command.wait(max(0.0, deadline - time.monotonic()))
    finally:  # also when a second Ctrl-C ends the waiting
        for command in ending:
            kill_session(command.pid)
            command.wait()
            if command.stdin is not None:
                command.stdin.close()


def of_session(session: int) -> set[int]:
    """Return every process of a session, whatever process group it has made for itself and whoever its parent is by
    now: a JVM that Python started, and Python workers that the JVM started, have groups of their own.
    """
    found = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.add(pid)
    return found


def stop_session(session: int) -> set[int]:
    """Send SIGSTOP to every process of a session, those included that are born meanwhile; return them."""
    stopped: set[int] = set()
    while new := of_session(session) - stopped:
        send(new, signal.SIGSTOP)
        stopped |= new
    return stopped


def kill_session(session: int) -> None:
    """Kill every process of a session with ``kill -9``, all at one moment: they are stopped first, so none sees another
    one's end.

    Raises
    ------
    TimeoutError
        One of them is still there after :data:`GONE_S`.
    """
    end = time.monotonic() + GONE_S
    send(stop_session(session), signal.SIGKILL)
    while left := of_session(session):
        if time.monotonic() > end:
            raise TimeoutError(f"processes {sorted(left)} were killed and did not end within {GONE_S:.0f} s")
        send(left, signal.SIGKILL)
        time.sleep(0.01)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to those of the processes that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a zombie
            os.kill(pid, number)
