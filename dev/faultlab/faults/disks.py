"""Disks that are full or slow: that of the checkpoint, and those of the brokers."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from faultlab.faults.clusters import worker_machines
from faultlab.faults.fault import NOTHING, Fault
from faultlab.machine import Machine

if TYPE_CHECKING:
    from faultlab.lab import Lab

#: Of each write and each flush: a disk that is shared, one that is busy, and one that is about to fail.
SLOW_S = (0.005, 0.03, 0.2)


class FillCheckpointDisk(Fault):
    """A disk that logs have filled, until somebody deletes them."""

    name = "disk-full"
    what = "the disk of the checkpoint is full, then there is room again"

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return lab.machine is not None and lab.machine.disk is not None and lab.file_store is None

    def do(self, lab: Lab, random: Random) -> str:
        assert lab.machine is not None
        return f"checkpoint: {lab.machine.fill()} bytes"

    def undo(self, lab: Lab) -> None:
        assert lab.machine is not None
        lab.machine.free()


class FillBrokerDisk(Fault):
    """A broker whose only disk is full stops; an operator makes room and starts it again."""

    name = "disk-full-broker"
    what = "the disk of one broker is full; then there is room again, and the broker is started if it has stopped"

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return any(machine.disk for machine in lab.broker.machines.values())

    def do(self, lab: Lab, random: Random) -> str:
        self._node = random.choice(sorted(lab.broker.machines))
        self._fills = self._node in lab.broker.pids
        if not self._fills:
            return NOTHING
        return f"node {self._node}: {lab.broker.machines[self._node].fill()} bytes"

    def undo(self, lab: Lab) -> None:
        if self._fills:
            lab.broker.machines[self._node].free()
            if self._node not in lab.broker.pids:
                lab.broker.launch(self._node)


class SlowDisk(Fault):
    """A disk that others keep busy, under the stream or under a broker."""

    name = "disk-slow"
    what = "each write takes 5, 30 or 200 ms longer: the driver's (checkpoint, state), a Spark worker's or a broker's"

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return bool(_shimmed(lab))

    def do(self, lab: Lab, random: Random) -> str:
        name, self._machine = random.choice(_shimmed(lab))
        seconds = random.choice(SLOW_S)
        self._machine.slow(seconds)
        return f"{name}: {seconds * 1000:g} ms"

    def undo(self, lab: Lab) -> None:
        self._machine.slow(0)


def _shimmed(lab: Lab) -> list[tuple[str, Machine]]:
    """Return the machines whose clocks and disks can be changed, by their names."""
    stream = [("stream", lab.machine)] if lab.machine is not None and lab.machine.environment else []
    workers = [(f"worker {n}", m) for n, m in sorted(worker_machines(lab).items()) if m.environment]
    return [*stream, *((f"node {n}", m) for n, m in sorted(lab.broker.machines.items()) if m.environment), *workers]


DISKS = (FillCheckpointDisk, FillBrokerDisk, SlowDisk)
