"""Checks, for operators, whether the process of a sink's owner is alive. Safety depends on Kafka's fencing, never on
these checks.
"""

from __future__ import annotations

import socket
from collections.abc import Callable

import psutil

from exactly_once.coordinator.machine import this_machine
from exactly_once.protocol.records import Claim

#: Says whether the process of a claim runs, as far as whoever operates it knows; None: cannot tell. An exception passes
#: through to the caller.
AliveOf = Callable[[Claim], bool | None]

#: If the recorded start of a process differs by more than this from that of the process with its id, it is another one.
_SAME_START_S = 2.0


def owner_alive(claim: Claim, alive_of: AliveOf | None = None) -> bool | None:
    """Return whether the process of ``claim`` still runs; None when this cannot be told.

    ``alive_of`` is asked first. Where it cannot tell, this host looks for the process. That tells nothing when the
    process is on another machine (a container is a machine of its own), or when an old version wrote the claim without
    the process's start.
    """
    known = alive_of(claim) if alive_of is not None else None
    return _seen_from_here(claim) if known is None else known


def _seen_from_here(claim: Claim) -> bool | None:
    if claim.machine and claim.machine != this_machine():
        return None
    if claim.host != socket.gethostname() or (not claim.pid_started and psutil.pid_exists(claim.pid)):
        return None
    return process_alive(claim.pid, claim.pid_started)


def belongs_to(pid: int, ancestor: int) -> bool:
    """Return whether the process ``pid`` of this machine is ``ancestor`` or a descendant of it; False if it is gone."""
    try:
        return ancestor in (pid, *(p.pid for p in psutil.Process(pid).parents()))
    except psutil.NoSuchProcess:
        return False


def process_alive(pid: int, started: float) -> bool:
    """Return whether the process with this id started then (seconds since the epoch): systems reuse ids."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < _SAME_START_S
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
