"""The sink of this project under Dagster: its daemon, sensors and recoveries are the operator, the lab is none."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.history import read_history
from dagster_exactly_once.runs.process import FINISHED, WORKING, process_of
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.progress import lag
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.guard import send
from faultlab.dagster_location import LabStream
from faultlab.dagster_processes import Dagster, is_driver
from faultlab.history import LabHistory
from faultlab.points import OF_STREAMS, Points
from faultlab.state import settings_of
from faultlab.system import GONE, LOCAL, Stopped
from faultlab.workload import Workload
from testkit import processes
from testkit.broker import create_topic, fresh_name
from testkit.processes import Timeout, until

#: From the end of a run to the next one in Dagster's queue, on a busy machine: ticks of two sensors and a recovery.
RESTART_S = 120.0

#: From Terminate to the end of a run; 15 s are promised on a machine that does nothing else.
TERMINATE_S = 40.0

#: Small and quick to start, as the lab's other drivers.
_CONF = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
    "spark.sql.shuffle.partitions": "2",
}

#: A round has more failures than any stream should: Dagster must not give it up. The sensors' intervals stay.
_PATIENT = {
    "EXACTLY_ONCE_SENSORS": "running",
    "EXACTLY_ONCE_RESTART_STRATEGY": "fixed-delay",
    "EXACTLY_ONCE_RESTART_ATTEMPTS": "1000",
    "EXACTLY_ONCE_RESTART_DELAY_S": "1",
    "EXACTLY_ONCE_WATCH_MAX_RECOVERIES": "1000",
    "EXACTLY_ONCE_WATCH_STALL_AFTER_S": "30",
}


@dataclass
class DagsterSystem(Points):
    """A stream that a run of Dagster writes, and that Dagster alone recovers and starts again.

    The lab launches the first run, starts a daemon or a code server again that it has killed, and ends the last run.

    Parameters
    ----------
    workload : Workload
    connection : Connection
        The cluster as the stream, the sensors and the recoveries see it: through a proxy.
    folder : Path
        For Dagster's instance and logs, checkpoints, Spark's files and failpoints.
    history : LabHistory
        Gets the runs that Dagster has launched, too.
    options : mapping, optional
        Options of the sink beside connection, id, topic and checkpoint.
    origin : bool
        Whether records have the header :data:`faultlab.workload.ORIGIN`.
    state : str
        One of :data:`faultlab.state.STORES`; empty: the stream has no state.
    participants : list of dict
        Further outputs, as :attr:`testkit.stream.Job.participants`.

    Attributes
    ----------
    dagster : Dagster
        For its own faults.
    checkpoint : str
        Where it is.
    """

    workload: Workload
    connection: Connection
    folder: Path
    history: LabHistory
    options: Mapping[str, str] = field(default_factory=dict)
    origin: bool = False
    state: str = ""
    participants: list[dict[str, Any]] = field(default_factory=list)
    name: str = "kafka_exactly_once under Dagster"
    points: tuple[str, ...] = OF_STREAMS
    #: At most so many offsets in a batch, as in :class:`faultlab.system.SparkSystem`.
    per_batch: int = 1000

    def __post_init__(self) -> None:
        servers = self.workload.connection.bootstrap_servers
        self.sink_id = fresh_name("lab")
        self.topic = create_topic(servers, f"{self.sink_id}-out", 4)
        self.failpoints = self.folder / "failpoints"
        self.failpoints.mkdir(parents=True)
        stream = LabStream(
            self.workload.topic, self.topic, self.sink_id, str(self.folder / "stream"), self.options, self.origin,
            self.state, self.participants,
        )  # fmt: skip
        self.spec = stream.declared().spec
        cluster = KafkaTransactionalProducerFactory(bootstrap_servers=servers).cluster_id()
        self.checkpoint = CheckpointReader(root=stream.checkpoints).location(cluster, self.sink_id)
        conf = {**_CONF, **(settings_of(self.state) if self.state else {})}
        self.dagster = Dagster(
            self.folder,
            {
                **_PATIENT,
                **stream.as_variable(),
                "KAFKA_BOOTSTRAP_SERVERS": self.connection.bootstrap_servers,
                "EXACTLY_ONCE_FAILPOINTS": str(self.failpoints),
                "EXACTLY_ONCE_SPARK_MASTER": LOCAL,
                "EXACTLY_ONCE_SPARK_DRIVER_MEMORY": "512m",
                "EXACTLY_ONCE_SPARK_UI": "false",
                "EXACTLY_ONCE_SPARK_CONF": json.dumps(conf),
            },
        )
        self._launched = False
        self._deserted: set[int] = set()
        self._told: set[str] = set()

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles, as :attr:`faultlab.system.System.roles` has them."""
        return ("run", "driver", *(("worker",) if self.participants else ()))

    # -- what is left of an operator -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Launch the first run; later only wait for the run that Dagster starts."""
        if not self._launched:
            self.dagster.start_all()
            config = {"trigger_interval_s": 0.0, "max_offsets_per_trigger": self.per_batch}
            self.dagster.launch(self.spec.job, {"ops": {self.spec.op: {"config": config}}})
            self._launched = True
        try:
            until("a run that Dagster starts", self._has_run, RESTART_S, every_s=0.5)
        except Timeout as e:
            raise Stopped(f"{e}: {self._story()}") from None
        self._tell()

    def ended(self) -> str | None:
        run = self._newest()
        if run is None:
            return GONE
        if run.status not in FINISHED:
            return None
        why = read_history(self.dagster.instance, self.spec).stream_failure
        return f"{why.code}: {why.sentence[:200]}" if why is not None else f"run {run.run_id[:8]} is {run.status.value}"

    def drain(self, timeout_s: float) -> None:
        """Wait until the stream has caught up with its input, with nobody but Dagster at work on it; then end it,
        in order, and Dagster.
        """
        self.dagster.start_all()
        self._end_deserted()
        try:
            until("the stream to catch up under Dagster", self._caught_up, timeout_s, every_s=0.5)
            self._terminate()
        except Timeout as e:
            raise Stopped(f"{e}: {self._story()}") from None
        self._tell()
        self.dagster.stop()

    def close(self) -> None:
        self.dagster.stop()
        self.dagster.instance.dispose()

    # -- for faults ----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the run's process, its JVM and all below it with ``kill -9``, at one moment."""
        send(self._stopped(), signal.SIGKILL)

    def pause(self) -> None:
        self._stopped()

    def resume(self) -> None:
        send(self.dagster.families() - self._deserted, signal.SIGCONT)

    def desert(self) -> None:
        """SIGSTOP of the run, which a person then marks as failed in Dagster: it starts another one beside it."""
        run = self._newest()
        self._deserted |= self._stopped()
        if run is not None and run.status not in FINISHED:
            self.dagster.instance.report_run_failed(run, "A person marked this run as failed: it does not answer.")

    def wake(self) -> None:
        send(self._deserted, signal.SIGCONT)

    def pids(self, role: str) -> list[int]:
        if role == "run":
            working = self.dagster.instance.get_runs(dg.RunsFilter(statuses=WORKING))
            return sorted(p.pid for p in map(process_of, working) if p.alive)
        mine = self.dagster.of_runs() - self._deserted
        if role == "driver":
            return sorted(filter(is_driver, mine))
        if role == "worker":
            return sorted(filter(_is_worker, mine))
        return []

    def runs(self) -> list[dg.DagsterRun]:
        """Every run of the instance, oldest first."""
        return list(reversed(self.dagster.instance.get_runs()))

    def _stopped(self) -> set[int]:
        """SIGSTOP of the runs that have a JVM, what is born meanwhile included."""
        stopped: set[int] = set()
        while new := self.dagster.families() - self._deserted - stopped:
            send(new, signal.SIGSTOP)
            stopped |= new
        return stopped

    def _end_deserted(self) -> None:
        send(self._deserted, signal.SIGKILL)
        self._deserted.clear()

    # -- what Dagster says ---------------------------------------------------------------------------------------------

    def _newest(self) -> dg.DagsterRun | None:
        found = self.dagster.instance.get_runs(dg.RunsFilter(job_name=self.spec.job), limit=1)
        return found[0] if found else None

    def _has_run(self) -> bool:
        run = self._newest()
        return run is not None and run.status not in FINISHED

    def _caught_up(self) -> bool:
        history = read_history(self.dagster.instance, self.spec)
        at_work = history.stream is not None and history.stream.in_progress
        if not at_work or (history.recovery is not None and history.recovery.in_progress):
            return False
        topic = self.workload.topic
        try:
            with Admin(self.workload.connection) as admin:
                marks = admin.watermarks(topic)
            committed = CheckpointReader(root="").committed_offsets(self.checkpoint)
        except ExactlyOnceError:  # a file of the checkpoint is being written
            return False
        return bool(committed) and lag(committed, topic, marks) == 0

    def _terminate(self) -> None:
        """End the run as *Terminate* does. It does not reach a run whose code server is gone: that gets SIGTERM."""
        run = self._newest()
        assert run is not None
        try:
            asked = self.dagster.instance.run_launcher.terminate(run.run_id)
        except dg.DagsterError:
            asked = False
        if not asked:
            self.history.add("SIGTERM", target=f"run {run.run_id[:8]}, which Terminate does not reach")
            send([process_of(run).pid], signal.SIGTERM)
        until("the end of the last run", lambda: not self._has_run(), TERMINATE_S, every_s=0.2)

    def _tell(self) -> None:
        """Add the runs that are new to the history."""
        for run in self.runs():
            if run.run_id not in self._told:
                self._told.add(run.run_id)
                self.history.add("run", target=_named(run))

    def _story(self) -> str:
        return ", ".join(_named(run) for run in self.runs()[-6:])


def _named(run: dg.DagsterRun) -> str:
    by = run.tags.get("dagster/sensor_name") or run.tags.get("dagster/schedule_name") or "the lab"
    return f"{run.job_name} {run.run_id[:8]} by {by}: {run.status.value}"


def _is_worker(pid: int) -> bool:
    return "pyspark.daemon" in processes.command_of(pid) and processes.parent_is(pid, "pyspark.daemon")
