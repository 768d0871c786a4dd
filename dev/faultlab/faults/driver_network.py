"""The network between Spark's driver and its executors: one direction, one Spark worker or all of them."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from faultlab.faults.clusters import cluster_of
from faultlab.faults.fault import NOTHING, Fault
from faultlab.proxy import Direction, ProxyAction, Rule
from testkit.processes import of_session

if TYPE_CHECKING:
    from faultlab.driver_line import DriverLine
    from faultlab.lab import Lab

#: Which way bytes go, for the history.
WAYS = {Direction.REQUESTS: "executors to driver", Direction.ANSWERS: "driver to executors"}


def _line(lab: Lab) -> DriverLine | None:
    return getattr(lab.system, "line", None)


class _DriverNetwork(Fault):
    """A rule of the line. At a point on an executor, it is about the Spark worker of this executor."""

    action: ProxyAction

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return _line(lab) is not None

    def do(self, lab: Lab, random: Random) -> str:
        line, cluster = _line(lab), cluster_of(lab)
        assert line is not None and cluster is not None
        workers = cluster.workers
        drawn = [random.choice(sorted(workers))] if workers and random.random() < 0.5 else sorted(workers)
        direction = random.choice(tuple(Direction))
        struck = [n for n, pid in workers.items() if self.at in of_session(pid)] or drawn
        self._rule = Rule(direction, self.action, origins=frozenset(struck))
        had = len(lab.system.pids("executor"))
        cut = line.add(self._rule)
        return self.said(struck, cut, direction) if had else f"{NOTHING}: no executor"

    def said(self, workers: list[int], cut: int, direction: Direction) -> str:
        """Return what it struck."""
        return f"workers {workers}: {self.action.value} {WAYS[direction]}"

    def undo(self, lab: Lab) -> None:
        line = _line(lab)
        assert line is not None
        line.remove(self._rule)


class HoldDriver(_DriverNetwork):
    """The driver gives executors up that go on writing to Kafka, and hears of their work later; or they hear of its
    commands later.
    """

    name = "net-driver-hold"
    what = "what executors send to the driver, or the driver to them, waits until the fault ends and then arrives late"
    action = ProxyAction.HOLD


class CutDriver(_DriverNetwork):
    """Executors lose their driver and end, in the middle of their tasks; new ones do not reach it."""

    name = "net-driver-cut"
    what = "connections of executors to the driver are closed, and new ones refused until the fault ends"
    action = ProxyAction.CUT

    def said(self, workers: list[int], cut: int, direction: Direction) -> str:
        return f"workers {workers}: {cut} connections"


DRIVER_NETWORK = (HoldDriver, CutDriver)
