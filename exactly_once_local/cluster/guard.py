"""Processes that end with the one that started them, however that dies."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

# A shell leaves a guard in the command's process group and becomes the command. The guard's read ends when the pipe to
# our process does, with our death by whatever signal; then it takes the group down. Linux's parent-death signal would
# follow the thread that forked, not the process, and other systems have none.
_GUARDED = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -9 -$$) & exec 3<&-; exec "$@"'


class Guarded:
    """A command in a session of its own: a Ctrl-C in the terminal comes to us, and we end it in order.

    Parameters
    ----------
    out : file
        Where its standard output and its standard error go.
    inherited : sequence of int
        File descriptors that it holds as long as it lives.
    """

    def __init__(
        self,
        command: Sequence[str],
        out: IO[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ):
        theirs, ours = os.pipe()  # ours is closed on exec: no process that we start holds it
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARDED, "sh", *command],
                stdin=theirs,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=environment,
                start_new_session=True,
                pass_fds=tuple(inherited),
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._guard: int | None = ours

    @property
    def pid(self) -> int:
        """The process id of the command; its session and its process group have the same number."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True while the command runs."""
        return self._process.poll() is None


def end_all(commands: Iterable[Guarded], *, graceful_s: float) -> None:
    """End the commands, together: gracefully, and after ``graceful_s`` seconds (0: at once) by kill -9 of their process
    groups.
    """
    ending = list(commands)
    try:
        if graceful_s > 0:
            for command in ending:
                command._process.terminate()
            deadline = time.monotonic() + graceful_s
            for command in ending:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    command._process.wait(max(0.0, deadline - time.monotonic()))
    finally:  # also when a second Ctrl-C ends the waiting
        for command in ending:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
                os.killpg(command.pid, signal.SIGKILL)  # its guard too
            command._process.wait()
            if command._guard is not None:
                os.close(command._guard)
                command._guard = None
