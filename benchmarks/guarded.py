"""Processes of other systems, which never outlive this one, however it dies."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

#: A shell leaves a guard in its process group and becomes the command; the guard's read ends with this process.
_GUARDED = 'exec 3<&0 </dev/null; (read -r _ <&3; kill -9 -$$) & exec 3<&-; exec "$@"'

#: To end in order.
_GRACE_S = 15.0


def guarded(command: Sequence[str], log: Path, folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start ``command`` in ``folder`` with its output in ``log``; end it with :func:`stop`."""
    with log.open("w") as console:
        return subprocess.Popen(
            ["/bin/sh", "-c", _GUARDED, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=console,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environment),
            start_new_session=True,  # its process group is its own
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process in order, after 15 s by force, and its guard."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
