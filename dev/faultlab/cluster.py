"""A Spark standalone cluster of machines: each worker has a clock and a disk that faults reach."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from exactly_once_local.cluster.spark_cluster import SparkCluster
from faultlab.machine import Machine


class MachineCluster(SparkCluster):
    """The cluster of a lab with machines. Executors see what their Spark worker sees.

    Attributes
    ----------
    machines : dict
        That of each worker, by the worker's number.
    """

    def __init__(self, folder: Path, *, workers: int = 2):
        super().__init__(folder, workers=workers)
        self._stack = ExitStack()
        self.machines = {n: Machine(self._place(n) / "machine", disk_mb=0) for n in range(1, workers + 1)}
        for machine in self.machines.values():
            self._stack.enter_context(machine)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            super().__exit__(kind, error, trace)

    def _variables(self, number: int) -> Mapping[str, str]:
        return self.machines[number].environment
