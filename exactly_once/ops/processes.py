"""Whether the process of a sink's owner is still alive: for operators. Safety never rests on this answer, but on
Kafka's fencing.
"""

from __future__ import annotations

import socket

import psutil

from exactly_once.protocol.records import Claim

#: A process whose recorded start differs by more than this from the one that has its id now is another process.
_SAME_START_S = 2.0


def owner_alive(claim: Claim) -> bool | None:
    """Whether the process of ``claim`` still runs; None when that cannot be told: it is on another machine, or the
    claim is of a version that did not say when its process had started.
    """
    if claim.host != socket.gethostname() or (not claim.pid_started and psutil.pid_exists(claim.pid)):
        return None
    return process_alive(claim.pid, claim.pid_started)


def belongs_to(pid: int, ancestor: int) -> bool:
    """Whether the process ``pid`` of this machine is ``ancestor``, or was started by it, by its children and so on; not
    when it is gone.
    """
    try:
        return ancestor in (pid, *(p.pid for p in psutil.Process(pid).parents()))
    except psutil.NoSuchProcess:
        return False


def process_alive(pid: int, started: float) -> bool:
    """Whether the process with this id is the one that started then (seconds since the epoch): ids are used again."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started) < _SAME_START_S
        return bool(same and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
