"""The faults: each has a name, is done to a lab with random numbers of its own, and is undone."""

from __future__ import annotations

from faultlab.faults.brokers import AWAY, BROKERS
from faultlab.faults.checkpoints import CHECKPOINTS
from faultlab.faults.clocks import CLOCKS
from faultlab.faults.clusters import CLUSTERS
from faultlab.faults.dagster import DAGSTER
from faultlab.faults.disks import DISKS
from faultlab.faults.driver_network import DRIVER_NETWORK
from faultlab.faults.fault import NOTHING, Fault
from faultlab.faults.file_stores import FILE_STORES
from faultlab.faults.network import NETWORK
from faultlab.faults.processes import PROCESSES
from faultlab.faults.stores import STORES
from faultlab.faults.topics import TOPICS

__all__ = ["FAULTS", "NOTHING", "Fault"]

_ALL = (
    *PROCESSES, *BROKERS, *NETWORK, *CHECKPOINTS, *DISKS, *CLOCKS, *STORES, *FILE_STORES, *CLUSTERS, *DRIVER_NETWORK,
    *DAGSTER, *AWAY, *TOPICS,
)  # fmt: skip

#: Every fault by its name.
FAULTS: dict[str, type[Fault]] = {fault.name: fault for fault in _ALL}
