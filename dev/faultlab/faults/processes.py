"""Processes that are killed and paused."""

from __future__ import annotations

import contextlib
import os
import signal
from random import Random
from typing import TYPE_CHECKING, ClassVar

import psutil

from faultlab.faults.fault import NOTHING, Fault

if TYPE_CHECKING:
    from faultlab.lab import Lab


class KillDriver(Fault):
    """The machine of the driver goes."""

    name = "kill-driver"
    what = "kill -9 of the driver's JVM and its Python, at one moment"

    def do(self, lab: Lab, random: Random) -> str:
        pids = lab.system.pids("driver")
        lab.system.kill()
        return f"process {pids}" if pids else NOTHING


class PauseDriver(Fault):
    """A virtual machine that is frozen, for longer than transactions live or for less."""

    name = "pause-driver"
    what = "SIGSTOP of the driver's JVM and its Python, then SIGCONT"

    def do(self, lab: Lab, random: Random) -> str:
        pids = lab.system.pids("driver")
        lab.system.pause()
        return f"process {pids}" if pids else NOTHING

    def undo(self, lab: Lab) -> None:
        lab.system.resume()


class SecondDriver(Fault):
    """An operator takes the driver for dead, starts another one, and the first one wakes up."""

    name = "second-driver"
    what = "SIGSTOP of the driver; a second one is started on the same checkpoint; then SIGCONT of the first"

    def do(self, lab: Lab, random: Random) -> str:
        pids = lab.system.pids("driver")
        lab.system.desert()
        return f"process {pids}" if pids else NOTHING

    def undo(self, lab: Lab) -> None:
        lab.system.wake()


class OneProcess(Fault):
    """A fault of one process of the stream."""

    role: ClassVar[str]
    sent: ClassVar[signal.Signals]

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return cls.role in lab.system.roles

    def do(self, lab: Lab, random: Random) -> str:
        pids = lab.system.pids(self.role)
        if not pids:
            self._pid = 0
            return NOTHING
        place = random.randrange(len(pids))
        place = next((pids.index(pid) for pid in _upward(self.at) if pid in pids), place)
        self._pid = pids[place]
        self._send(self.sent)
        return f"{self.role} {place + 1} of {len(pids)}"

    def undo(self, lab: Lab) -> None:
        if self.sent is signal.SIGSTOP and self._pid:
            self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)


def _upward(pid: int) -> list[int]:
    """Return a process and those above it: a Python worker, its daemon, its executor. None for 0."""
    with contextlib.suppress(psutil.Error):
        return [pid, *(parent.pid for parent in psutil.Process(pid).parents())] if pid else []
    return []


class KillWorker(OneProcess):
    """A Python task runs out of memory."""

    name = "kill-worker"
    what = "kill -9 of the Python process of one task, on whatever machine: with further outputs, by `foreach_batch`"
    role, sent = "worker", signal.SIGKILL


class PauseWorker(OneProcess):
    """A task that hangs and goes on, perhaps when nobody waits for it."""

    name = "pause-worker"
    what = "SIGSTOP of the Python process of one task, then SIGCONT"
    role, sent = "worker", signal.SIGSTOP


class KillJvm(OneProcess):
    """The JVM crashes; its Python outlives it by a moment."""

    name = "kill-jvm"
    what = "kill -9 of the driver's JVM alone"
    role, sent = "driver", signal.SIGKILL


class KillPython(OneProcess):
    """The coordinator goes in whatever step; the JVM and the executors outlive it by a moment."""

    name = "kill-python"
    what = "kill -9 of the driver's Python alone, in which the coordinator is"
    role, sent = "python", signal.SIGKILL


class PausePython(OneProcess):
    """A coordinator that hangs while its JVM waits for an answer."""

    name = "pause-python"
    what = "SIGSTOP of the driver's Python alone, then SIGCONT"
    role, sent = "python", signal.SIGSTOP


class KillExecutor(OneProcess):
    """A machine of the Spark cluster goes; Spark starts another executor."""

    name = "kill-executor"
    what = "kill -9 of one executor's JVM on a Spark standalone cluster"
    role, sent = "executor", signal.SIGKILL


class PauseExecutor(OneProcess):
    """An executor that hangs: its tasks may end after the driver has given them to another one."""

    name = "pause-executor"
    what = "SIGSTOP of one executor's JVM on a Spark standalone cluster, then SIGCONT"
    role, sent = "executor", signal.SIGSTOP


class KillWriter(Fault):
    """A writer of the input dies in a transaction; its next start fences it."""

    name = "kill-writer"
    what = "kill -9 of one writer of the input; it starts again"

    def do(self, lab: Lab, random: Random) -> str:
        self._writer = random.choice(lab.workload.writers)
        lab.workload.kill_writer(self._writer)
        return self._writer.name

    def undo(self, lab: Lab) -> None:
        lab.workload.start_writer(self._writer)


PROCESSES = (
    KillDriver, PauseDriver, SecondDriver, KillWorker, PauseWorker, KillJvm, KillPython, PausePython, KillExecutor,
    PauseExecutor, KillWriter,
)  # fmt: skip
