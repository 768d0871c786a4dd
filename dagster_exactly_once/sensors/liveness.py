"""``exactly_once_liveness``: runs in progress whose process is gone or frozen; streams that should run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from dagster_exactly_once.names import LIVENESS_SENSOR, RECOVERY_JOB
from dagster_exactly_once.private import UnresolvedAssetJobDefinition
from dagster_exactly_once.runs.facts import frozen as diagnosis_of_frozen
from dagster_exactly_once.runs.history import Histories, StreamHistory, attempt_of
from dagster_exactly_once.runs.process import WORKING, process_of, report_dead, signed
from dagster_exactly_once.runs.runs import Run, op_config
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import (
    TAG_ATTEMPT,
    TAG_BESIDE,
    TAG_CAUSE,
    TAG_CONTINUES,
    TAG_JOB,
    TAG_RESTART,
    TAG_RESTART_OF,
    TAG_ROTATES,
    TAG_STREAM,
)
from dagster_exactly_once.sensors.settings import RestartPolicy
from dagster_exactly_once.sensors.tick import Judged, Memory, Tick, default_status, interval
from exactly_once.inspection.processes import (
    Frozen,
    State,
    end_command,
    end_frozen,
    resume_stopped,
    state_of,
)

#: A run of this project first tags itself with its process; loading the code takes seconds.
SIGN_IN_S = 120.0

#: In place of a sink id, for runs that are of no stream: recoveries, feeds.
NO_STREAM = ""


@dataclass(frozen=True)
class Start:
    """A run of the stream to launch."""

    key: str
    config: dict[str, Any]
    tags: dict[str, str]


@dataclass(frozen=True)
class LivenessVerdict:
    """The sentence and the actions of a tick.

    ``dead`` are the runs to report; of the frozen processes, ``end`` are those to kill, ``resume`` those to let go on.
    """

    message: str
    dead: tuple[str, ...] = ()
    start: Start | None = None
    end: tuple[Frozen, ...] = ()
    resume: tuple[Frozen, ...] = ()


@dataclass(frozen=True)
class Working:
    """A run that Dagster shows as in progress.

    ``alive`` is None when this host cannot see the run's process. ``frozen`` are its processes that are alive and do
    nothing, and ``frozen_s`` says for how long ticks have seen that.
    """

    run_id: str
    job: str
    status: str
    host: str
    alive: bool | None
    signed: bool = True
    age_s: float = 0.0
    frozen: tuple[Frozen, ...] = ()
    frozen_s: float = 0.0

    @property
    def canceling(self) -> bool:
        """True when a person has asked the run to end."""
        return self.status == "CANCELING"

    @property
    def name(self) -> str:
        """The beginning of its id, as in the UI."""
        return self.run_id[:8]


@dataclass(frozen=True)
class LivenessFacts:
    """The runs of the instance that have or should have a process of this project, and the history of the stream."""

    history: StreamHistory
    working: tuple[Working, ...] = field(default=())


def verdict(facts: LivenessFacts, stream: StreamSpec, end_frozen_after_s: float = 0.0) -> LivenessVerdict:
    """Decide which runs are dead, what becomes of frozen ones, and whether to start the stream."""
    dead = tuple(w for w in facts.working if _dead(w))
    if dead:
        return LivenessVerdict(_reported(dead), tuple(w.run_id for w in dead))
    frozen = tuple(w for w in facts.working if w.frozen)
    if frozen:
        return _of_frozen(frozen, end_frozen_after_s, stream.sink_id)
    start = _wanted(facts.history, stream)
    if isinstance(start, Start):
        said = f"The stream should run but does not, so this sensor starts it. {start.tags[TAG_CAUSE]}"
        return LivenessVerdict(said, start=start)
    return LivenessVerdict("; ".join([*_alive(facts.working), start]) + ".")


def _of_frozen(working: Sequence[Working], end_after_s: float, sink_id: str | None = None) -> LivenessVerdict:
    """Decide about frozen runs.

    One that a person has asked to end goes on at once, and ends as it was told: until it has taken the message, Dagster
    starts no other run of the code location, not even if it is killed.
    """
    said: list[str] = []
    end: list[Frozen] = []
    resume: list[Frozen] = []
    for w in working:
        found = diagnosis_of_frozen(f"run {w.name}", w.frozen, sink_id)
        what = f"Run {w.name} of {w.job} is frozen. {found.code}: {found.text}"
        if w.canceling:
            resume += w.frozen
        elif 0 < end_after_s <= w.frozen_s:
            end += w.frozen
            what += f" It has been so for {w.frozen_s:.0f} s."
        elif end_after_s:
            what += f" This sensor kills that process in {end_after_s - w.frozen_s:.0f} s."
        said.append(what)
    return LivenessVerdict(" ".join(said), end=tuple(end), resume=tuple(resume))


def liveness_sensor(
    streams: Sequence[StreamSpec],
    jobs: Sequence[dg.JobDefinition | UnresolvedAssetJobDefinition],
    every_s: int = 5,
) -> dg.SensorDefinition:
    """Make the sensor over :func:`verdict` for all streams. A tick may change the instance: it reports dead runs.

    Parameters
    ----------
    jobs : sequence of job definitions
        The jobs of all streams: Dagster lets a sensor request only runs of jobs that it was given.

    Raises
    ------
    DagsterInvalidDefinitionError
        The job of a stream is not among ``jobs``.
    """
    if missing := sorted({s.job for s in streams} - {job.name for job in jobs}):
        raise dg.DagsterInvalidDefinitionError(f"liveness cannot start {', '.join(missing)}: pass each stream's job")

    @dg.sensor(
        name=LIVENESS_SENSOR,
        jobs=list(jobs),
        minimum_interval_seconds=interval(every_s),
        default_status=default_status(),
        description=(
            "Reports runs whose process is gone while Dagster still shows them as running (their code server died with "
            "them), ends processes of streams that stay frozen, and starts a stream again when a recovery of it "
            "requests that. Does nothing to runs on other hosts."
        ),
    )
    def liveness(context: dg.SensorEvaluationContext, restart_policy: RestartPolicy) -> dg.SensorResult:
        tick, histories = Tick(context, streams), Histories(context.instance)
        working, summaries = _working(histories, streams), histories.summaries(streams)
        for stream in tick.streams:
            if tick.deadline.over:
                tick.missed(stream)
                continue
            history = summaries[stream.sink_id]
            if history.stream is not None and any(r.restart_of == history.stream.run_id for r in history.recoveries):
                history = histories.whole(stream)
            its, memory = _timed(working[stream.sink_id], tick.memory(stream), histories.now)
            facts = LivenessFacts(history, its)
            found = verdict(facts, stream, restart_policy.end_frozen_after_s)
            tick.add(stream, _reaction(context.instance, stream, found, memory))
        return tick.result(_others(context.instance, working[NO_STREAM]))

    return liveness


def _timed(working: Sequence[Working], last: Memory, now: float) -> tuple[tuple[Working, ...], Memory]:
    """Say for how long ticks have seen each run frozen, and what the next tick should know of that."""
    before = last.get("frozen", {})
    since = {w.run_id: before.get(w.run_id, now) for w in working if w.frozen}
    return tuple(replace(w, frozen_s=max(0.0, now - since.get(w.run_id, now))) for w in working), {"frozen": since}


def _reaction(instance: dg.DagsterInstance, stream: StreamSpec, found: LivenessVerdict, memory: Memory) -> Judged:
    """Do what a verdict says."""
    message = " ".join([found.message, *_signals(found)])
    reported = [run_id for run_id in found.dead if report_dead(instance, run_id)]
    if found.dead and not reported:
        return Judged("A run ended while this tick was checking it.", memory=memory)
    start = found.start
    request = dg.RunRequest(start.key, start.config, start.tags, stream.job) if start else None
    attention = bool(found.dead or start or memory["frozen"])
    return Judged(message, attention, request, memory=memory)


def _signals(found: LivenessVerdict) -> list[str]:
    """Kill and resume the frozen processes of a verdict; return what became of each."""
    said = []
    for frozen in found.end:
        then = ", which dies as soon as the kernel releases it" if frozen.state is State.STUCK else ""
        sent = f"This sensor sent SIGKILL to process {frozen.process.pid}{then}."
        said.append(sent if end_frozen(frozen) else _unsent(frozen, "kill", end_command([frozen])))
    for frozen in found.resume:
        if frozen.state is State.STOPPED:
            sent = f"This sensor sent SIGCONT to process {frozen.process.pid}, so that it ends as it was asked to."
            again = f"kill -CONT {frozen.process.pid}"
            said.append(sent if resume_stopped(frozen) else _unsent(frozen, "resume", again))
    return said


def _unsent(frozen: Frozen, verb: str, command: str) -> str:
    """Say why a signal was not sent, from what the process does now."""
    match state_of(frozen.process):
        case State.GONE:
            return f"Process {frozen.process.pid} was gone before this sensor could {verb} it."
        case State.RUNS:
            return f"Process {frozen.process.pid} runs again, so this sensor sent it no signal."
        case _:
            way_out = f"run {command} on its host, as the user of the run or as root"
            return f"This sensor's user may not {verb} process {frozen.process.pid}: {way_out}."


def _others(instance: dg.DagsterInstance, working: Sequence[Working]) -> list[str]:
    """Report the dead among the runs of no stream, and let the frozen ones go on that a person has asked to end; return
    what the tick says about these runs.
    """
    dead = [w for w in working if _dead(w) and report_dead(instance, w.run_id)]
    if dead:
        return [_reported(dead)]
    if frozen := [w for w in working if w.frozen]:
        found = _of_frozen(frozen, 0.0)
        return [" ".join([found.message, *_signals(found)])]
    said = "; ".join(_alive(working))
    return [f"Among the runs that belong to no stream, {said}."] if working else []


def _dead(w: Working) -> bool:
    return w.alive is False or (not w.signed and w.status == "STARTED" and w.age_s > SIGN_IN_S)


def _reported(dead: Sequence[Working]) -> str:
    names = ", ".join(f"{w.name} of {w.job} ({w.status})" for w in dead)
    if len(dead) > 1:
        return f"Runs {names}: their processes are gone. This sensor reported that to Dagster."
    return f"Run {names}: its process is gone. This sensor reported that to Dagster."


def _alive(working: Sequence[Working]) -> list[str]:
    alive = sum(w.alive is True for w in working)
    of_several = f"the processes of {alive} runs are alive" if alive else "no run has a live process here"
    return [
        "the process of 1 run is alive" if alive == 1 else of_several,
        *(
            f"this sensor cannot see the process of run {w.name} of {w.job} on {w.host}, and does nothing to that run"
            for w in working
            if w.signed and w.alive is None
        ),
    ]


def _working(histories: Histories, streams: Sequence[StreamSpec]) -> dict[str, tuple[Working, ...]]:
    """Return the runs that have or should have a process of this project, by the sink of their stream. A single stream
    has them all.
    """
    found: dict[str, list[Working]] = {NO_STREAM: [], **{s.sink_id: [] for s in streams}}
    for record in histories.runs.unfinished:
        run = record.dagster_run
        its = _stream_of(run, streams)
        if run.status not in WORKING or not (signed(run) or its is not None or run.job_name == RECOVERY_JOB):
            continue  # a foreign run: only its launcher knows whether its process lives
        process = process_of(run)
        age_s = histories.now - (record.start_time or histories.now)
        host, status = process.host or "?", run.status.value
        w = Working(
            run.run_id,
            run.job_name,
            status=status,
            host=host,
            alive=process.alive,
            signed=signed(run),
            age_s=age_s,
            frozen=process.frozen,
        )
        stream = streams[0] if len(streams) == 1 else its
        found[stream.sink_id if stream is not None else NO_STREAM].append(w)
    return {sink_id: tuple(some) for sink_id, some in found.items()}


def _stream_of(run: dg.DagsterRun, streams: Sequence[StreamSpec]) -> StreamSpec | None:
    """Return the stream of a run: by its tag; without one by its job, or because it was launched over that stream's
    assets alone.

    A run over more assets may work on others for hours before it begins with the stream and tags itself.
    """
    if run.job_name == RECOVERY_JOB:
        return None
    if TAG_STREAM in run.tags:
        return next((s for s in streams if s.name == run.tags[TAG_STREAM]), None)
    selected = {key.to_user_string() for key in run.asset_selection or ()}
    return next((s for s in streams if run.job_name == s.job or (selected and selected <= set(s.asset_keys))), None)


def _wanted(history: StreamHistory, stream: StreamSpec) -> Start | str:
    """Return the run to launch, or, for people, why there is none."""
    recovery, newest = history.recovery, history.stream
    rotating = _rotating(history)
    if rotating is not None:
        return _successor(rotating, stream)
    beside = recovery is not None and _requests(recovery, newest) and recovery.in_progress
    others = history.recoveries[1:] if beside else history.recoveries
    busy = next((r for r in (*history.streams, *others, *history.others) if r.in_progress), None)
    if busy is not None:
        return f"run {busy.name} of {busy.job} is {busy.status}"
    if newest is None:
        return "the stream has no run yet"
    if recovery is None or not (beside or (recovery.status == "SUCCESS" and recovery.restart_of == newest.run_id)):
        return f"no restart is requested (the newest run {newest.name} is {newest.status})"
    if newest.status == "CANCELED" and newest.ended is not None and newest.ended > recovery.created:
        return f"a person canceled run {newest.name}, so no sensor starts the stream again"
    attempt = 1 if recovery.by_person else attempt_of(recovery)
    wait_s = recovery.not_before - history.now
    if wait_s > 0 and not recovery.by_person:  # a person who asks for a restart gets it at once
        again = f"this sensor starts the stream again in {wait_s:.0f} s"
        return f"{again}, after run {newest.name} (restart attempt {attempt})"
    return _start(newest, recovery, attempt, stream)


def _requests(recovery: Run, newest: Run | None) -> bool:
    """Return whether a sensor's recovery is to be followed by a restart of the newest run, which failed.

    A person's recovery says so at its end: until then that person may want to look first.
    """
    return newest is not None and newest.status == "FAILURE" and recovery.restart_of == newest.run_id


def _rotating(history: StreamHistory) -> Run | None:
    """Return the run in progress that asks for one to continue it, unless that one is in progress too."""
    alive = [run for run in history.streams if run.in_progress]
    continued = {run.tags.get(TAG_CONTINUES) for run in alive}
    return next((r for r in alive if _attempt(r) and r.run_id not in continued), None)


def _attempt(run: Run) -> str:
    """Return the number of the run's attempt to rotate; empty where it made none."""
    run_id, _, attempt = run.tags.get(TAG_ROTATES, "").partition("/")
    return attempt if run_id == run.run_id else ""


def _successor(rotating: Run, stream: StreamSpec) -> Start:
    """Return the run that continues a long one. Its value of the job's tag lets the two wait side by side."""
    config, _ = restart_config(rotating, stream)
    return Start(
        f"rotated/{rotating.run_id}/{_attempt(rotating)}",
        config,
        {
            TAG_STREAM: stream.name,
            TAG_CAUSE: f"Run {rotating.name} ends once this run, which has the code that is deployed now, is ready.",
            TAG_CONTINUES: rotating.run_id,
            TAG_JOB: f"{stream.job}/continues/{rotating.run_id}",
        },
    )


def _start(newest: Run, recovery: Run, attempt: int, stream: StreamSpec) -> Start:
    who = "A person requested this start" if recovery.by_person else f"This is restart attempt {attempt}"
    beside = recovery.in_progress
    does = "is recovering" if beside else "recovered"
    cause = f"Run {newest.name} ended as {newest.status}, and recovery {recovery.name} {does} the sink. {who}."
    config, dropped = restart_config(newest, stream)
    if dropped:
        cause += f" This start drops a consent that a person gave run {newest.name} for its own start: {dropped}."
    return Start(
        f"restart/{recovery.run_id}",
        config,
        {
            TAG_STREAM: stream.name,
            TAG_CAUSE: cause,
            TAG_RESTART_OF: newest.run_id,
            TAG_ATTEMPT: str(attempt),
            **({} if recovery.by_person else {TAG_RESTART: recovery.tags.get(TAG_RESTART, f"{attempt}")}),
            **({TAG_BESIDE: recovery.run_id} if beside else {}),
        },
    )


def restart_config(run: Run, stream: StreamSpec) -> tuple[dict[str, Any], str]:
    """Return the configuration with which a run of the stream's job replaces ``run``, and the consents that it leaves
    out, as text: a person gave them for one start.

    Of a run of another job (the button Materialize), only the configuration of the stream's op fits the stream's job.
    """
    ops = run.config.get("ops", {})
    mine = ops.get(stream.op) if isinstance(ops, Mapping) else None
    config = dict(run.config) if run.job == stream.job else {"ops": {stream.op: mine} if mine is not None else {}}
    once = op_config(run.config, stream.op).get("once")
    if once is None or not isinstance(mine, Mapping):
        return config, ""
    kept = {key: value for key, value in mine["config"].items() if key != "once"}
    config["ops"] = {**config["ops"], stream.op: {**mine, "config": kept}}
    given = once if isinstance(once, Mapping) else {"once": once}
    return config, ", ".join(f"{name}={word}" for name, word in given.items() if word)
