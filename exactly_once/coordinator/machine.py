"""The machine of a process, as far as process ids go: the same id on another machine is another process."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PID_NAMESPACE = "/proc/self/ns/pid"


def this_machine() -> str:
    """Return the identity of the machine that this process runs on; "" where the system has none (only Linux has).

    Containers may share a host name, and each of them has a process 1: a host name does not identify a process table.
    """
    try:
        return identity(Path(_BOOT_ID).read_text(encoding="ascii").strip(), os.readlink(_PID_NAMESPACE))
    except OSError:
        return ""


def identity(boot_id: str, pid_namespace: str) -> str:
    """Return a short text that is another one for each boot of a kernel and for each of its PID namespaces."""
    return hashlib.sha256(f"{boot_id} {pid_namespace}".encode()).hexdigest()[:16]
