"""Checks, for operators, whether the process of a sink's owner is alive. Safety depends on Kafka's fencing, never on
these checks.
"""

from __future__ import annotations

import socket

import psutil

from exactly_once.protocol.records import Claim

#: If the recorded start of a process differs by more than this from that of the process with its id, it is another one.
_SAME_START_S = 2.0


def owner_alive(claim: Claim) -> bool | None:
    """Return whether the process of ``claim`` still runs; None when this cannot be told: the process is on another
    machine, or an old version wrote the claim without the process's start.
    """
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
