"""A machine of the Spark cluster that goes, with everything on it."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING

from faultlab.faults.fault import NOTHING, Fault
from testkit.processes import kill_session, of_session

if TYPE_CHECKING:
    from exactly_once_local.cluster.spark_cluster import SparkCluster
    from faultlab.lab import Lab
    from faultlab.machine import Machine


def cluster_of(lab: Lab) -> SparkCluster | None:
    """Return the Spark cluster on which the tasks run, if they do on one."""
    return getattr(lab.system, "cluster", None)


def worker_machines(lab: Lab) -> Mapping[int, Machine]:
    """Return the machines of its workers, by their numbers, where they have some."""
    return getattr(cluster_of(lab), "machines", {})


class KillSparkWorker(Fault):
    """The machine of a Spark worker goes, and its executors with it; later it comes back."""

    name = "kill-spark-worker"
    what = "kill -9 of one Spark standalone worker and its executors, at one moment"

    @classmethod
    def fits(cls, lab: Lab) -> bool:
        return cluster_of(lab) is not None

    def do(self, lab: Lab, random: Random) -> str:
        cluster = cluster_of(lab)
        assert cluster is not None
        workers = cluster.workers
        self._number = random.choice(sorted(workers)) if workers else 0
        self._number = next((n for n, pid in workers.items() if self.at in of_session(pid)), self._number)
        if not workers:
            return NOTHING
        executors = len(lab.system.pids("executor"))
        kill_session(workers[self._number])
        gone = executors - len(lab.system.pids("executor"))
        return f"worker {self._number} of {sorted(workers)}, {gone} of {executors} executors"

    def undo(self, lab: Lab) -> None:
        cluster = cluster_of(lab)
        if cluster is not None and self._number:
            cluster.start_worker(self._number)


CLUSTERS = (KillSparkWorker,)
