"""Checks, for operators, whether a process is alive: the owner of a sink, a run of Dagster. Safety depends on Kafka's
fencing, never on these checks.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import psutil

from exactly_once.coordinator.machine import this_machine
from exactly_once.protocol.records import Claim

#: Function that says whether the process of a claim runs, as far as whoever operates it knows; None: cannot tell. An
#: exception passes through to the caller.
AliveOf = Callable[[Claim], bool | None]

#: Largest difference between the recorded start of a process and that of the process with its id; beyond it, the latter
#: is another one.
_SAME_START_S = 2.0

#: Time without running after which a process in a system call that cannot be interrupted hangs there: such a call waits
#: for a disk, for milliseconds. Only the main thread counts: a slow disk holds one of the many threads of a healthy JVM
#: for longer, and a process whose main thread works takes messages, so that nobody need kill it.
_STUCK_AFTER_S = 1.0


class State(Enum):
    """The state of a process, in words that follow "is"."""

    RUNS = "running"
    STOPPED = "stopped by a signal"
    STUCK = "stuck in the kernel"  # with its main thread
    GONE = "gone"

    @property
    def frozen(self) -> bool:
        """True when the process exists and cannot react to anything, not even to a signal that asks it to end."""
        return self in (State.STOPPED, State.STUCK)


@dataclass(frozen=True)
class Process:
    """A process, by all that tells it from every other one.

    Attributes
    ----------
    host, machine : str
        The host's name, and its process table (:func:`exactly_once.coordinator.machine.this_machine`); containers may
        share the first.
    pid : int
    started : float
        Seconds since the epoch: systems reuse ids. 0 when unknown.
    """

    host: str
    machine: str
    pid: int
    started: float

    @classmethod
    def here(cls, pid: int | None = None) -> Process:
        """Return a process of this machine, by default this one; raise psutil.NoSuchProcess."""
        found = psutil.Process(pid)
        return cls(socket.gethostname(), this_machine(), found.pid, found.create_time())

    @classmethod
    def of(cls, claim: Claim) -> Process:
        """Return the process that a claim names."""
        return cls(claim.host, claim.machine, claim.pid, claim.pid_started)


@dataclass(frozen=True)
class Frozen:
    """A process that is frozen, and how."""

    process: Process
    state: State

    def __str__(self) -> str:
        return f"process {self.process.pid} on {self.process.host} is {self.state.value}"


def state_of(process: Process) -> State | None:
    """Return what a process does; None where this one cannot tell: it is on another machine (a container is a machine
    of its own), or the record of it does not say when it started.
    """
    if (process.host, process.machine) != (socket.gethostname(), this_machine()):
        return None
    try:
        found = psutil.Process(process.pid)
        if not process.started:
            return None
        if abs(found.create_time() - process.started) >= _SAME_START_S:
            return State.GONE
        return _state(found)
    except psutil.NoSuchProcess:
        return State.GONE


def _state(found: psutil.Process) -> State:
    match found.status():
        case psutil.STATUS_ZOMBIE | psutil.STATUS_DEAD:
            return State.GONE
        case psutil.STATUS_STOPPED:
            return State.STOPPED
        case psutil.STATUS_DISK_SLEEP:
            before = found.num_ctx_switches()
            time.sleep(_STUCK_AFTER_S)
            stays = found.status() == psutil.STATUS_DISK_SLEEP and found.num_ctx_switches() == before
            return State.STUCK if stays else State.RUNS
        case _:
            return State.RUNS


def alive(process: Process) -> bool | None:
    """Return whether a process is there, frozen or not; None where this one cannot tell."""
    state = state_of(process)
    return None if state is None else state is not State.GONE


def cpu_s(process: Process) -> float | None:
    """Return the seconds of processor time of a process and its descendants; None where this one cannot tell."""
    if not alive(process):
        return None
    try:
        found = psutil.Process(process.pid)
        times = [p.cpu_times() for p in (found, *found.children(recursive=True))]
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None
    return float(sum(t.user + t.system for t in times))


def owner_alive(claim: Claim, alive_of: AliveOf | None = None) -> bool | None:
    """Return whether the process of ``claim`` still runs; None when this cannot be told.

    ``alive_of`` is asked first. Where it cannot tell, this host looks for the process.
    """
    known = alive_of(claim) if alive_of is not None else None
    return alive(Process.of(claim)) if known is None else known


def frozen_among(processes: Iterable[Process]) -> tuple[Frozen, ...]:
    """Return those of the processes that are frozen, as far as this one can tell."""
    states = {process: state_of(process) for process in processes}
    return tuple(Frozen(process, state) for process, state in states.items() if state is not None and state.frozen)


def describe_frozen(frozen: Sequence[Frozen]) -> str:
    """Say which processes are frozen, as a clause."""
    return " and ".join(map(str, frozen))


def end_command(frozen: Sequence[Frozen]) -> str:
    """Return the command that ends frozen processes: no other signal reaches them."""
    return f"kill -9 {' '.join(str(f.process.pid) for f in frozen)}"


def end_frozen(frozen: Frozen) -> bool:
    """Kill exactly this process (SIGKILL), unless it is gone or runs again; return whether it was killed."""
    return _signal(frozen, psutil.Process.kill)


def resume_stopped(frozen: Frozen) -> bool:
    """Let exactly this process run again (SIGCONT) if a signal has stopped it; return whether it was."""
    return frozen.state is State.STOPPED and _signal(frozen, psutil.Process.resume)


def _signal(frozen: Frozen, send: Callable[[psutil.Process], None]) -> bool:
    state = state_of(frozen.process)
    if state is None or not state.frozen:
        return False
    try:
        send(psutil.Process(frozen.process.pid))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return True


def belongs_to(pid: int, ancestor: int) -> bool:
    """Return whether the process ``pid`` of this machine is ``ancestor`` or a descendant of it; False if it is gone."""
    try:
        return ancestor in (pid, *(p.pid for p in psutil.Process(pid).parents()))
    except psutil.NoSuchProcess:
        return False


def is_mine(process: Process) -> bool:
    """Return whether a process is this one, or a descendant of it."""
    return state_of(process) not in (None, State.GONE) and belongs_to(process.pid, os.getpid())
