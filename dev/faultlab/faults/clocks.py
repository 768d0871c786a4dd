"""Clocks that jump forward and backward: the wall clock alone, as NTP, a person or a resumed machine moves it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, ClassVar

from faultlab.faults.clusters import worker_machines
from faultlab.faults.fault import Fault
from faultlab.machine import JAVA, OTHER, Machine

if TYPE_CHECKING:
    from faultlab.lab import Lab

#: Below and above the time-outs of transactions, and past the hour by which a record may be ahead of its broker.
JUMPS_S = (-7200.0, -90.0, -3.0, 3.0, 90.0, 7200.0)


class _Clock(Fault):
    """A jump of some clocks; when the fault ends, they jump back."""

    programs: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return lab.machine is not None and bool(lab.machine.environment)

    def do(self, lab: Lab, random: Random) -> str:
        name, self._machine = self.machine(lab, random)
        seconds = random.choice(JUMPS_S)
        self._machine.jump(seconds, *self.programs)
        return f"{name}: {seconds:+g} s"

    def machine(self, lab: Lab, random: Random) -> tuple[str, Machine]:
        """Return the machine whose clock is struck, with a name for the history."""
        assert lab.machine is not None
        return "stream", lab.machine

    def undo(self, lab: Lab) -> None:
        self._machine.jump(0, *self.programs)


class JumpDriverClock(_Clock):
    """The clock by which Spark plans batches and stamps them."""

    name = "clock-driver"
    what = "the clock of the driver's JVM jumps by 3 s, 90 s or two hours, forward or backward, and back"
    programs = (JAVA,)


class JumpPythonClock(_Clock):
    """The clock by which the coordinator stamps claims, and waits."""

    name = "clock-python"
    what = "the clock of the driver's Python, in which the coordinator is, jumps, and back"
    programs = (OTHER,)


class JumpExecutorClock(_Clock):
    """Executors that are hours apart, from each other and from their driver."""

    name = "clock-executor"
    what = "the clock of one Spark worker's machine, and of its executors, jumps, and back"

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return any(machine.environment for machine in worker_machines(lab).values())

    def machine(self, lab: Lab, random: Random) -> tuple[str, Machine]:
        number, machine = random.choice(sorted(worker_machines(lab).items()))
        return f"worker {number}", machine


class JumpBrokerClock(_Clock):
    """The clock by which transactions time out."""

    name = "clock-broker"
    what = "the clock of one broker jumps, and back"

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return any(machine.environment for machine in lab.broker.machines.values())

    def machine(self, lab: Lab, random: Random) -> tuple[str, Machine]:
        node = random.choice(sorted(lab.broker.machines))
        return f"node {node}", lab.broker.machines[node]


CLOCKS = (JumpDriverClock, JumpPythonClock, JumpExecutorClock, JumpBrokerClock)
