"""``liveness``: runs that Dagster shows as running but whose process is gone; a stream that should run but does not."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from resources.run_process import TAG_PID, TAG_SINK, WORKING, process_of, report_dead
from sensors.history import History, Run, read_history, works_on
from sensors.restart import GiveUp, Restart, RestartStrategy, next_restart
from sensors.settings import RestartPolicy
from sensors.stream import TAG_ATTEMPT, TAG_CAUSE, TAG_RESTART_OF, StreamSpec
from sensors.tick import EVERY_5_S, default_status, ended

#: A run of this project first tags itself with its process; loading the code takes seconds.
SIGN_IN_S = 120.0


@dataclass(frozen=True)
class Start:
    """A run of the stream to launch."""

    key: str
    config: dict[str, Any]
    tags: dict[str, str]


@dataclass(frozen=True)
class Verdict:
    """The sentence and the actions of a tick; ``dead`` are the runs to report."""

    message: str
    dead: tuple[str, ...] = ()
    start: Start | None = None


@dataclass(frozen=True)
class Working:
    """A run that Dagster shows as in progress; ``alive`` is None when this host cannot see the run's process."""

    run_id: str
    job: str
    status: str
    host: str
    alive: bool | None
    signed: bool = True
    age_s: float = 0.0

    @property
    def name(self) -> str:
        """The beginning of its id, as in the UI."""
        return self.run_id[:8]


@dataclass(frozen=True)
class Facts:
    """The runs of the instance that have or should have a process of this project, and the history of the stream."""

    history: History
    working: tuple[Working, ...] = field(default=())


def verdict(facts: Facts, strategy: RestartStrategy, stream: StreamSpec) -> Verdict:
    """Decide which runs are dead, and whether to start the stream."""
    dead = tuple(w for w in facts.working if _dead(w))
    if dead:
        names = ", ".join(f"{w.name} of {w.job} ({w.status})" for w in dead)
        return Verdict(f"The process is gone; reported: {names}.", tuple(w.run_id for w in dead))
    said = [
        f"{w.name} of {w.job} is on {w.host} and is left alone" for w in facts.working if w.signed and w.alive is None
    ]
    start = _wanted(facts.history, strategy, stream)
    if isinstance(start, Start):
        return Verdict(f"The stream should run but does not: starting it. {start.tags[TAG_CAUSE]}", start=start)
    alive = sum(w.alive is True for w in facts.working)
    return Verdict(
        "; ".join(["1 run has its process" if alive == 1 else f"{alive} runs have their process", *said, start]) + "."
    )


def liveness_sensor(
    stream: StreamSpec, name: str = "liveness", interval_s: int = EVERY_5_S, own_only: bool = False
) -> dg.SensorDefinition:
    """Make the sensor over :func:`verdict` for one stream. A tick may change the instance: it reports dead runs.

    ``own_only``: only runs on the stream's sink, since another sensor of this kind looks at all runs.
    """
    reported_runs = f"runs on {stream.sink_id}" if own_only else "runs"

    @dg.sensor(
        name=name,
        job_name=stream.job,
        minimum_interval_seconds=interval_s,
        default_status=default_status(),
        description=(
            f"Reports {reported_runs} whose process is gone while Dagster still shows them as running (their code "
            f"server died with them), and starts {stream.job} again after a recovery that asks for a restart. Leaves "
            "runs on other hosts alone."
        ),
    )
    def liveness(context: dg.SensorEvaluationContext, restart_policy: RestartPolicy) -> dg.SensorResult:
        history = read_history(context.instance, stream)
        facts = Facts(history, _working(context.instance, stream, history, own_only))
        found = verdict(facts, restart_policy.chosen(), stream)
        reported = [run_id for run_id in found.dead if report_dead(context.instance, run_id)]
        if found.dead and not reported:
            return ended(context, "A run ended while this tick was checking it.")
        request = dg.RunRequest(found.start.key, found.start.config, found.start.tags) if found.start else None
        return ended(context, found.message, request)

    return liveness


def _dead(w: Working) -> bool:
    return w.alive is False or (not w.signed and w.status == "STARTED" and w.age_s > SIGN_IN_S)


def _working(instance: dg.DagsterInstance, stream: StreamSpec, history: History, own_only: bool) -> tuple[Working, ...]:
    found: list[Working] = []
    for record in instance.get_run_records(dg.RunsFilter(statuses=WORKING)):
        run = record.dagster_run
        signed = TAG_PID in run.tags
        known = run.job_name in (stream.job, stream.recovery_job)
        if not signed and not known:
            continue  # a foreign run: only its launcher knows whether its process lives
        if own_only and not (works_on(run, stream) if known else run.tags.get(TAG_SINK) == stream.sink_id):
            continue
        process = process_of(run)
        age_s = history.now - (record.start_time or history.now)
        found.append(
            Working(run.run_id, run.job_name, run.status.value, process.host or "?", process.alive, signed, age_s)
        )
    return tuple(found)


def _wanted(history: History, strategy: RestartStrategy, stream: StreamSpec) -> Start | str:
    """Return the run to launch, or, for people, why there is none."""
    recovery, newest = history.recovery, history.stream
    busy = next((r for r in (*history.streams, *history.recoveries, *history.others) if r.in_progress), None)
    if busy is not None:
        return f"run {busy.name} of {busy.job} is {busy.status}"
    if newest is None:
        return "the stream has no run yet"
    if recovery is None or recovery.status != "SUCCESS" or recovery.restart_of != newest.run_id:
        return f"no restart is requested (the newest run {newest.name} is {newest.status})"
    if newest.status == "CANCELED" and newest.ended is not None and newest.ended > recovery.created:
        return f"a person cancelled run {newest.name}, so it is not started again"
    attempt = 1
    if not recovery.by_person:  # a person who asks for a restart gets it at once
        decision = _decision(strategy, history)
        if isinstance(decision, GiveUp):
            return f"run {newest.name} is not started again: {decision.reason}"
        if decision.at > history.now:
            return f"restart {decision.attempt} in a row of run {newest.name} in {decision.at - history.now:.0f} s"
        attempt = decision.attempt
    return _start(newest, recovery, attempt, stream)


def _decision(strategy: RestartStrategy, history: History) -> Restart | GiveUp:
    failures = history.failures()
    return next_restart(strategy, failures, history.now) if failures else Restart(history.now, 1)


def _start(newest: Run, recovery: Run, attempt: int, stream: StreamSpec) -> Start:
    who: Sequence[str] = ("a person requested the restart", f"restart {attempt} in a row")
    cause = f"Run {newest.name} ended as {newest.status}, recovery {recovery.name} brought the sink to rest; "
    return Start(
        f"restart/{recovery.run_id}",
        dict(newest.config),
        {
            TAG_CAUSE: f"{cause}{who[0] if recovery.by_person else who[1]}.",
            TAG_RESTART_OF: newest.run_id,
            TAG_ATTEMPT: str(attempt),
        },
    )
