"""A lab made from settings: brokers, workload, machines, outputs, and the stream in a driver or under Dagster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from exactly_once.kafka.connection import Connection
from exactly_once.options import Guarantee
from exactly_once_local.cluster.spark_cluster import SparkCluster
from faultlab.broker import LabBroker
from faultlab.cluster import MachineCluster
from faultlab.file_stores import file_store
from faultlab.history import LabHistory
from faultlab.lab import Lab
from faultlab.machine import Machine
from faultlab.outputs import LabOutputs
from faultlab.settings import DAGSTER, Settings
from faultlab.state import REPEATS
from faultlab.system import SparkSystem
from faultlab.workload import Workload

#: A disk that also holds what a driver works with: RocksDB, shuffles and 10 MB of jars. After kill -9 they stay there.
STATE_DISK_MB = 256


@contextmanager
def lab_of(settings: Settings, seed: int, folder: Path, show: Callable[[str], None]) -> Iterator[Lab]:
    """Brokers, proxies, workload and stream as the settings say; all of it ends with the block."""
    with ExitStack() as stack:
        broker = LabBroker(folder / "broker", nodes=settings.nodes, machines=settings.machines)
        stack.callback(broker.stop)
        stack.callback(broker.kill)  # first: nobody uses the folder again, and an orderly stop is slow
        broker.start()
        workload = Workload(
            Connection(broker.bootstrap_servers),
            folder / "writers",
            seed,
            partitions=settings.parts,
            rate=settings.rate,
            repeats=REPEATS if settings.state else 0.0,
        )
        stack.callback(workload.close)
        outputs = stack.enter_context(_outputs(settings, folder, seed)) if settings.outputs else None
        site = _Site(stack, settings, folder, broker, workload, outputs, LabHistory(folder / "history", show))
        yield _under_dagster(site) if settings.operator == DAGSTER else _in_a_driver(site)


def _outputs(settings: Settings, folder: Path, seed: int) -> LabOutputs:
    if not settings.tables:
        return LabOutputs(folder / "archive")
    from faultlab.tables import Tables  # here: only these rounds need the libraries of the tables

    return LabOutputs(folder / "archive", Tables(folder / "tables", seed))


class _Site(NamedTuple):
    """The servers that a stream runs beside; ``stack`` ends what is started."""

    stack: ExitStack
    settings: Settings
    folder: Path
    broker: LabBroker
    workload: Workload
    outputs: LabOutputs | None
    history: LabHistory

    @property
    def through(self) -> Connection:
        """The cluster as the stream sees it."""
        return Connection(self.broker.system_servers)

    @property
    def options(self) -> dict[str, str]:
        """The options of the sink."""
        options = {"sink.guarantee": self.settings.guarantee}
        if self.settings.guarantee == Guarantee.EXACTLY_ONCE.value:
            options["kafka.transaction.timeout.ms"] = str(self.settings.timeout_ms)
        return options

    @property
    def others(self) -> list[dict[str, Any]]:
        """The descriptions of the outputs beside the topic."""
        return self.outputs.descriptions() if self.outputs is not None else []


def _under_dagster(site: _Site) -> Lab:
    from faultlab.dagster_system import DagsterSystem  # here: its import takes seconds

    origin, state = site.settings.origin, site.settings.state
    system = DagsterSystem(
        site.workload, site.through, site.folder, site.history, site.options, origin, state, site.others
    )
    site.stack.callback(system.close)
    system.points += site.outputs.points if site.outputs is not None else ()
    return Lab(site.broker, site.workload, system, site.history, system.sink_id, outputs=site.outputs)


def _in_a_driver(site: _Site) -> Lab:
    stack, settings, folder = site.stack, site.settings, site.folder
    store = stack.enter_context(file_store(settings.checkpoint, folder / settings.checkpoint))
    cluster = stack.enter_context(_cluster(settings, folder / "spark")) if settings.executors else None
    machine = stack.enter_context(_machine(settings, folder / "machine")) if settings.machines else None
    on_disk = str(machine.disk / "checkpoint") if machine and machine.disk else ""
    system = SparkSystem(
        site.workload,
        site.through,
        folder,
        site.options,
        participants=site.others or None,
        checkpoint=store.checkpoint if store else on_disk,
        conf=store.server.conf if store else {},
        cluster=cluster,
        environment=_environment(settings, machine),
        origin=settings.origin,
        state=settings.state,
    )
    stack.callback(system.close)
    system.points += site.outputs.points if site.outputs is not None else ()
    return Lab(site.broker, site.workload, system, site.history, system.sink_id, machine, site.outputs, store)


def checkpoint_of(lab: Lab) -> str:
    """Return where the checkpoint of a round's stream is."""
    return str(lab.system.checkpoint)  # type: ignore[attr-defined]  # of a sink of ours, as each round has


def _cluster(settings: Settings, folder: Path) -> SparkCluster:
    return MachineCluster(folder) if settings.machines else SparkCluster(folder)


def _machine(settings: Settings, folder: Path) -> Machine:
    return Machine(folder, disk_mb=STATE_DISK_MB) if settings.state else Machine(folder)


def _environment(settings: Settings, machine: Machine | None) -> dict[str, str]:
    """Return the environment of the driver's processes. With state, their local folder is on the machine's disk too."""
    if machine is None:
        return {}
    local = {"SPARK_LOCAL_DIRS": str(machine.disk / "local")} if settings.state and machine.disk else {}
    return {**machine.environment, **local}
