"""One round: a lab made from settings, a plan, a run, and its folder, which stays when the run is not clean."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

from exactly_once.kafka.connection import Connection
from exactly_once.local.spark_cluster import SparkCluster
from exactly_once.options import PRODUCERS, Guarantee
from faultlab.broker import LabBroker
from faultlab.checker import BY_CHECKER, check, sentence
from faultlab.checkpoint_files import CheckpointFiles
from faultlab.cluster import MachineCluster
from faultlab.faults import FAULTS
from faultlab.faults import dagster as faults_of_dagster
from faultlab.file_stores import DISK, file_store
from faultlab.history import History
from faultlab.judge import Verdict
from faultlab.lab import Lab
from faultlab.machine import Machine
from faultlab.outputs import POINTS, Outputs
from faultlab.plan import Plan, load_plan, make_plan, save_plan
from faultlab.state import REPEATS, STORES
from faultlab.system import SparkSystem
from faultlab.workload import Workload

#: The least that the sink takes, and what comes near a batch's time with faults in it.
TIMEOUTS_MS = (5_000, 8_000, 15_000)

#: A disk that also holds what a driver works with: RocksDB, shuffles and 10 MB of jars. After kill -9 they stay there.
STATE_DISK_MB = 256

#: Who operates the stream, when it is not the lab.
DAGSTER = "dagster"

#: Drawn three times as often as the others, where they fit: such a round is run for their sake.
OFTEN = [fault.name for fault in faults_of_dagster.DAGSTER] * 2


@dataclass(frozen=True)
class Settings:
    """What a round runs on.

    Attributes
    ----------
    producer, guarantee : str
        ``sink.producer`` and ``sink.guarantee``.
    nodes : int
        Brokers: 1 or 3.
    executors : bool
        Tasks on a Spark standalone cluster of two workers instead of in the driver.
    timeout_ms : int
        ``kafka.transaction.timeout.ms``.
    parts : int
        Partitions of the input, and so tasks of a batch.
    rate : float
        Records a second.
    origin : bool
        Records have a header that names their input record, by which the checker compares all of them.
    machines : bool
        Driver, Spark workers and brokers each on a machine of its own: with a clock and a disk that faults reach, and a
        small disk under the driver's checkpoint and under each broker.
    outputs : bool
        Files and a table of PostgreSQL beside the topic, with exactly_once.
    state : str
        The stream has state in one of :data:`faultlab.state.STORES`, with exactly_once: its input has a fifth of the
        records twice, its output each of them once. Empty: no state.
    operator : str
        :data:`DAGSTER`: Dagster launches the stream's runs, recovers it and starts it again. Empty: the lab does.
    checkpoint : str
        What the checkpoint is on: one of :data:`faultlab.file_stores.PLACES`. No seed draws it.
    """

    producer: str = PRODUCERS[0]
    guarantee: str = Guarantee.EXACTLY_ONCE.value
    nodes: int = 1
    executors: bool = False
    timeout_ms: int = 8_000
    parts: int = 3
    rate: float = 200.0
    origin: bool = False
    machines: bool = False
    outputs: bool = False
    state: str = ""
    operator: str = ""
    checkpoint: str = DISK


def under_dagster(drawn: Settings) -> Settings:
    """The same settings as far as a round under Dagster has them: exactly_once, without a cluster or machines."""
    kept = replace(drawn, executors=False, machines=False)
    return replace(kept, guarantee=Guarantee.EXACTLY_ONCE.value, operator=DAGSTER)


def draw_settings(seed: int) -> Settings:
    """Settings for a seed: mostly exactly_once with the default producer on one broker, and all the others too."""
    random = Random(f"settings/{seed}")
    drawn = Settings(
        producer=random.choice((PRODUCERS[0], PRODUCERS[0], PRODUCERS[1])),
        guarantee=random.choice((*["exactly_once"] * 8, "at_least_once", "none")),
        nodes=random.choice((1, 1, 3)),
        executors=random.random() < 0.25,
        timeout_ms=random.choice(TIMEOUTS_MS),
        parts=random.randint(2, 4),
        machines=random.random() < 0.5,
    )
    # without a commit log, the checker has the origin alone
    drawn = replace(drawn, origin=random.random() < 0.5 or drawn.guarantee != Guarantee.EXACTLY_ONCE.value)
    if drawn.guarantee != Guarantee.EXACTLY_ONCE.value:
        return drawn
    drawn = replace(drawn, outputs=random.random() < 0.25)
    if random.random() < 0.25:  # of records that come twice, the checker would call one of the two lost
        drawn = replace(drawn, state=random.choice(STORES), origin=False)
    return drawn


@dataclass(frozen=True)
class Round:
    """What a round was and how it ended.

    Attributes
    ----------
    verdict : Verdict, optional
        None when the stream could not be drained, which ``failure`` tells.
    checked : str
        What the product's checker read.
    replay : str
        The command that runs it again.
    """

    plan: Plan
    settings: Settings
    history: History
    verdict: Verdict | None
    failure: str
    batches: int
    replay: str
    checked: str = ""

    @property
    def clean(self) -> bool:
        """Drained, and without an anomaly that its guarantee forbids."""
        return self.verdict is not None and self.verdict.clean

    def __str__(self) -> str:
        faults = ", ".join(f"{n} {fault}" for fault, n in sorted(self.history.done.items())) or "no fault"
        ends = ", ".join(f"{n} {code}" for code, n in sorted(self.history.seen.items())) or "none"
        how = str(self.verdict) if self.verdict else f"NOT CLEAN: {self.failure}"
        lines = [f"seed {self.plan.seed}: {how}", f"  {self.settings}", f"  faults: {faults}"]
        lines += [f"  ends of the stream: {ends}", f"  {self.batches} batches{self.checked and f'; {self.checked}'}"]
        return "\n".join(lines if self.clean else [*lines, f"  replay: {self.replay}"])


def run_round(
    folder: Path,
    seed: int,
    faults_s: float,
    faults: Sequence[str] = (),
    *,
    settings: Settings | None = None,
    plan: Plan | None = None,
    show: Callable[[str], None] = print,
    keep: bool = False,
) -> Round:
    """Run one round in a fresh folder. The folder of a clean round is removed in the end.

    Parameters
    ----------
    folder : Path
        Whatever is in it is removed.
    faults_s : float
        Faults begin in so many seconds.
    faults : sequence of str
        Names to draw from; empty: all.
    settings : Settings, optional
        Instead of those drawn for the seed.
    plan : Plan, optional
        Instead of the one drawn for the seed.
    keep : bool
        Keep the folder of a clean round too.
    """
    settings = settings or draw_settings(seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    show(f"seed {seed}: {settings}")
    with lab_of(settings, seed, folder, show) as lab:
        names = [name for name in faults or (*FAULTS, *OFTEN) if FAULTS[name].fits(lab)]
        plan = plan or make_plan(seed, faults_s, names, lab.system.points)
        save_plan(plan, asdict(settings), folder / "plan.json")
        verdict, failure, checked = None, "", ""
        try:
            verdict = lab.run(plan)
            checked = check_too(verdict, lab, settings)
        except Exception as e:  # the next seed is run all the same
            failure = f"{type(e).__name__}: {e}"
        done = replace(plan, steps=tuple(lab.done))
        save_plan(done, asdict(settings), folder / "history.json")
        done_batches = len(CheckpointFiles(checkpoint_of(lab)).batches("commits"))
        command = f"python -m faultlab --replay {folder / 'history.json'}"
        ended = Round(done, settings, lab.history, verdict, failure, done_batches, command, checked)
    if ended.clean and not keep:
        shutil.rmtree(folder)
    return ended


def replay(path: Path, folder: Path, show: Callable[[str], None] = print) -> Round:
    """Run a round again, by the history that it left: the same faults at the moments when they were done."""
    plan, settings = load_plan(path)
    return run_round(folder, plan.seed, plan.duration_s, settings=Settings(**settings), plan=plan, show=show)


def check_too(verdict: Verdict, lab: Lab, settings: Settings) -> str:
    """Let the product's checker look at a lab at rest, too, and add what it finds to the verdict of the lab's reader;
    then allow what the settings do not rule out. Returns what the checker read.
    """
    assert lab.sink_id is not None
    past, topic = lab.workload.connection, lab.system.topic
    others = lab.outputs.participants() if lab.outputs is not None else []
    report = check(verdict, past, lab.sink_id, topic, checkpoint_of(lab), settings.origin, others)
    verdict.forgive(ALLOWED[settings.guarantee] | _by_clocks(lab) | _by_state(settings))
    return sentence(report)


def checkpoint_of(lab: Lab) -> str:
    """Where the checkpoint of a round's stream is."""
    return str(lab.system.checkpoint)  # type: ignore[attr-defined]  # of a sink of ours, as each round has


def _by_clocks(lab: Lab) -> frozenset[str]:
    """What the checker tells by the brokers' clocks, once one of them has jumped."""
    return frozenset({f"{BY_CHECKER}precommitted read"} if lab.history.done["clock-broker"] else ())


def _by_state(settings: Settings) -> frozenset[str]:
    """What Spark gives up: it sends the records of one key to several tasks, by their ids."""
    return frozenset({"key reorder"} if settings.state else ())


def _by_both(*anomalies: str) -> frozenset[str]:
    return frozenset(anomalies) | {BY_CHECKER + anomaly for anomaly in anomalies}


#: Anomalies that a guarantee does not rule out.
ALLOWED = {
    # after a refusal the input's offsets are left out for a minute, as EO-WARN-GROUP says: the group stands behind
    "exactly_once": frozenset({f"{BY_CHECKER}offset skew"}),
    "at_least_once": _by_both("duplicate", "key reorder"),
    "none": _by_both("duplicate", "key reorder", "lost", "torn batch"),
}


def _cluster(settings: Settings, folder: Path) -> SparkCluster:
    return MachineCluster(folder) if settings.machines else SparkCluster(folder)


def _machine(settings: Settings, folder: Path) -> Machine:
    return Machine(folder, disk_mb=STATE_DISK_MB) if settings.state else Machine(folder)


def _environment(settings: Settings, machine: Machine | None) -> dict[str, str]:
    """For the driver's processes. With state, their local folder is on the machine's disk too."""
    if machine is None:
        return {}
    local = {"SPARK_LOCAL_DIRS": str(machine.disk / "local")} if settings.state and machine.disk else {}
    return {**machine.environment, **local}


@contextmanager
def lab_of(settings: Settings, seed: int, folder: Path, show: Callable[[str], None]) -> Iterator[Lab]:
    """Brokers, proxies, workload and stream as the settings say; all of it ends with the block."""
    with ExitStack() as stack:
        broker = LabBroker(folder / "broker", nodes=settings.nodes, machines=settings.machines)
        stack.callback(broker.stop)
        stack.callback(broker.kill)  # first: nobody uses the folder again, and an orderly stop is slow
        broker.start()
        past, through = Connection(broker.bootstrap_servers), Connection(broker.system_servers)
        sent = {"partitions": settings.parts, "rate": settings.rate, "repeats": REPEATS if settings.state else 0.0}
        workload = Workload(past, folder / "writers", seed, **sent)
        stack.callback(workload.close)
        store = stack.enter_context(file_store(settings.checkpoint, folder / settings.checkpoint))
        cluster = stack.enter_context(_cluster(settings, folder / "spark")) if settings.executors else None
        options = {"sink.producer": settings.producer, "sink.guarantee": settings.guarantee}
        if settings.guarantee == Guarantee.EXACTLY_ONCE.value:
            options["kafka.transaction.timeout.ms"] = str(settings.timeout_ms)
        machine = stack.enter_context(_machine(settings, folder / "machine")) if settings.machines else None
        checkpoint = str(machine.disk / "checkpoint") if machine and machine.disk else ""
        environment = _environment(settings, machine)
        outputs = stack.enter_context(Outputs(folder / "archive")) if settings.outputs else None
        if settings.operator == DAGSTER:
            from faultlab.dagster_system import DagsterSystem  # here: its import takes seconds

            history, others = History(folder / "history", show), outputs.descriptions() if outputs is not None else []
            dagster = DagsterSystem(
                workload, through, folder, history, options, settings.origin, settings.state, others
            )
            dagster.points += POINTS if others else ()
            stack.callback(dagster.close)
            yield Lab(broker, workload, dagster, history, dagster.sink_id, outputs=outputs)
            return
        system = SparkSystem(
            workload,
            through,
            folder,
            options,
            checkpoint=store.checkpoint if store else checkpoint,
            conf=store.server.conf if store else {},
            cluster=cluster,
            environment=environment,
            origin=settings.origin,
            state=settings.state,
        )
        if outputs is not None:
            system.participants = outputs.descriptions()
            system.points += POINTS
        stack.callback(system.close)
        yield Lab(broker, workload, system, History(folder / "history", show), system.sink_id, machine, outputs, store)
