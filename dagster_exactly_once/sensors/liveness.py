"""``exactly_once_liveness``: runs in progress whose process is gone or frozen; streams that should run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import dagster as dg

from dagster_exactly_once.names import LIVENESS_SENSOR, RECOVERY_JOB
from dagster_exactly_once.runs.history import Histories, StreamHistory, attempt_of
from dagster_exactly_once.runs.operator import frozen as diagnosis_of_frozen
from dagster_exactly_once.runs.process import WORKING, report_dead, signed
from dagster_exactly_once.runs.runs import Run, run_of
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.runs.tags import (
    TAG_CAUSE,
    TAG_CONTINUES,
    TAG_JOB,
    TAG_NOT_BEFORE,
    TAG_ROTATES,
    TAG_STREAM,
)
from dagster_exactly_once.sensors.restarts import restart_after, restart_config
from dagster_exactly_once.sensors.tick import Job, Judged, Tick, check_jobs, sensor_over
from exactly_once.inspection.processes import Frozen, State, end_command, end_frozen, resume_stopped, state_of
from exactly_once.inspection.words import duration

#: Seconds until a run of this project has tagged itself with its process; loading the code takes seconds.
SIGN_IN_S = 120.0

#: The key in place of a sink id for runs that are of no stream: recoveries, feeds.
NO_STREAM = ""


def verdict(
    history: StreamHistory,
    working: Sequence[Run],
    stream: StreamSpec | None,
    end_frozen_after_s: float = 0.0,
    frozen_since: Mapping[str, float] | None = None,
) -> Judged:
    """Decide which runs are dead, what becomes of frozen ones, and whether to start the stream.

    ``working`` have or should have a process of this project; without a ``stream`` they belong to none.
    ``frozen_since`` says, by run id, since when ticks have seen a run frozen: now if it is not there.
    """
    if dead := [r for r in working if _dead(r, history.now)]:
        return Judged(_reported(dead), True, dead=tuple(r.run_id for r in dead))
    if frozen := [r for r in working if r.frozen]:
        since = frozen_since or {}
        frozen_s = [max(0.0, history.now - since.get(r.run_id, history.now)) for r in frozen]
        return _of_frozen(frozen, frozen_s, end_frozen_after_s, stream.sink_id if stream else None)
    if stream is None:
        said = f"Among the runs that belong to no stream, {'; '.join(_alive(working))}."
        return Judged(said if working else "")
    start = _wanted(history, stream)
    if isinstance(start, dg.RunRequest):
        said = f"The stream should run but does not, so this sensor starts it. {start.tags[TAG_CAUSE]}"
        return Judged(said, True, [start])
    return Judged("; ".join([*_alive(working), start]) + ".")


def _of_frozen(runs: Sequence[Run], frozen_s: Sequence[float], end_after_s: float, sink_id: str | None) -> Judged:
    """Decide about frozen runs.

    One that a person has asked to end goes on at once, and ends as it was told: until it has taken the message, Dagster
    starts no other run of the code location, not even if it is killed.
    """
    sentences: list[str] = []
    end: list[Frozen] = []
    resume: list[Frozen] = []
    for run, its_s in zip(runs, frozen_s, strict=True):
        found = diagnosis_of_frozen(f"run {run.name}", run.frozen, sink_id)
        what = f"Run {run.name} of {run.job} is frozen. {found.code}: {found.text}"
        if run.status == "CANCELING":
            resume += run.frozen
        elif 0 < end_after_s <= its_s:
            end += run.frozen
            what += f" It has been so for {duration(its_s)}."
        elif end_after_s:
            what += f" This sensor kills that process in {duration(end_after_s - its_s)}."
        sentences.append(what)
    return Judged(" ".join(sentences), True, end=tuple(end), resume=tuple(resume))


def liveness_sensor(
    streams: Sequence[StreamSpec],
    jobs: Sequence[Job],
    every_s: int = 5,
) -> dg.SensorDefinition:
    """Make the sensor over :func:`verdict` for all streams. A tick may change the instance: it reports dead runs.

    Dagster lets it request only runs of ``jobs``; raises DagsterInvalidDefinitionError if a stream's job is missing.
    """
    check_jobs(LIVENESS_SENSOR, [s.job for s in streams], jobs)

    @sensor_over(
        streams,
        LIVENESS_SENSOR,
        every_s,
        ["restart_policy"],
        jobs=list(jobs),
        description=(
            "Reports runs whose process is gone while Dagster still shows them as running (their code server died with "
            "them), ends processes of streams that stay frozen, and starts a stream again when a recovery of it "
            "requests that. Does nothing to runs on other hosts."
        ),
    )
    def liveness(tick: Tick) -> dg.SensorResult:
        histories, summaries = tick.histories, tick.summaries
        end_after_s = tick.context.resources.restart_policy.end_frozen_after_s
        working = _working(histories, streams)
        for stream in tick.streams:
            if tick.deadline.over:
                tick.missed(stream)
                continue
            history, its = summaries[stream.sink_id], working[stream.sink_id]
            if history.stream is not None and any(r.restart_of == history.stream.run_id for r in history.recoveries):
                history = histories.whole(stream)
            before = tick.memory[stream.sink_id].get("frozen", {})
            since = {r.run_id: before.get(r.run_id, histories.now) for r in its if r.frozen}
            found = verdict(history, its, stream, end_after_s, since)
            tick.add(stream, replace(_done(tick.context.instance, found), memory={"frozen": since}))
        others = verdict(StreamHistory(histories.now), working[NO_STREAM], None)
        return tick.result(list(filter(None, [_done(tick.context.instance, others).message])))

    return liveness


def _done(instance: dg.DagsterInstance, judged: Judged) -> Judged:
    """Do what a verdict says, and say what became of it."""
    reported = [run_id for run_id in judged.dead if report_dead(instance, run_id)]
    if judged.dead and not reported:
        return Judged("A run ended while this tick was checking it.")
    return replace(judged, message=" ".join([judged.message, *_signals(judged)]))


def _signals(judged: Judged) -> list[str]:
    """Kill and resume the frozen processes of a verdict; return what became of each."""
    said = []
    for frozen in judged.end:
        then = ", which dies as soon as the kernel releases it" if frozen.state is State.STUCK else ""
        sent = f"This sensor sent SIGKILL to process {frozen.process.pid}{then}."
        said.append(sent if end_frozen(frozen) else _unsent(frozen, "kill", end_command([frozen])))
    for frozen in judged.resume:
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


def _dead(run: Run, now: float) -> bool:
    silent = run.status == "STARTED" and not signed(run) and now - (run.started or now) > SIGN_IN_S
    return run.alive is False or silent


def _reported(dead: Sequence[Run]) -> str:
    names = ", ".join(f"{r.name} of {r.job} ({r.status})" for r in dead)
    gone = "Runs {}: their processes are gone" if len(dead) > 1 else "Run {}: its process is gone"
    return f"{gone.format(names)}. This sensor reported that to Dagster."


def _alive(working: Sequence[Run]) -> list[str]:
    alive = sum(r.alive is True for r in working)
    of_several = f"the processes of {alive} runs are alive" if alive else "no run has a live process here"
    return [
        "the process of 1 run is alive" if alive == 1 else of_several,
        *(
            f"this sensor cannot see the process of run {r.name} of {r.job} on {r.host or '?'}, and does nothing to "
            "that run"
            for r in working
            if signed(r) and r.alive is None
        ),
    ]


def _working(histories: Histories, streams: Sequence[StreamSpec]) -> dict[str, list[Run]]:
    """Return the runs that have or should have a process of this project, by sink; a single stream has them all."""
    found: dict[str, list[Run]] = {NO_STREAM: [], **{s.sink_id: [] for s in streams}}
    for record in histories.runs.unfinished:
        run = record.dagster_run
        its = _stream_of(run, streams)
        if run.status not in WORKING or not (signed(run) or its is not None or run.job_name == RECOVERY_JOB):
            continue  # a foreign run: only its launcher knows whether its process lives
        stream = streams[0] if len(streams) == 1 else its
        found[stream.sink_id if stream is not None else NO_STREAM].append(run_of(record))
    return found


def _stream_of(run: dg.DagsterRun, streams: Sequence[StreamSpec]) -> StreamSpec | None:
    """Return the stream of a run: by its tag, else by its job, else because it was launched over that stream's assets
    alone (over more, it may work on others for hours before it tags itself).
    """
    if run.job_name == RECOVERY_JOB:
        return None
    if TAG_STREAM in run.tags:
        return next((s for s in streams if s.name == run.tags[TAG_STREAM]), None)
    selected = {key.to_user_string() for key in run.asset_selection or ()}
    return next((s for s in streams if run.job_name == s.job or (selected and selected <= set(s.asset_keys))), None)


def _wanted(history: StreamHistory, stream: StreamSpec) -> dg.RunRequest | str:
    """Return the run to launch, or, for people, why there is none."""
    recovery, newest = history.recovery, history.stream
    if (rotating := _rotating(history)) is not None:
        return _successor(rotating, stream)
    busy = next((r for r in (*history.streams, *history.recoveries, *history.others) if r.in_progress), None)
    if busy is not None:
        return f"run {busy.name} of {busy.job} is {busy.status}"
    if newest is None:
        return "the stream has no run yet"
    if recovery is None or recovery.status != "SUCCESS" or recovery.restart_of != newest.run_id:
        return f"no restart is requested (the newest run {newest.name} is {newest.status})"
    if newest.status == "CANCELED" and newest.ended is not None and newest.ended > recovery.created:
        return f"a person canceled run {newest.name}, so no sensor starts the stream again"
    attempt = 1 if recovery.by_person else attempt_of(recovery)
    wait_s = float(recovery.tags.get(TAG_NOT_BEFORE, 0.0)) - history.now
    if wait_s > 0 and not recovery.by_person:  # a person who asks for a restart gets it at once
        again = f"this sensor starts the stream again in {duration(wait_s)}"
        return f"{again}, after run {newest.name} (restart attempt {attempt})"
    return restart_after(newest, recovery, attempt, stream)


def _rotating(history: StreamHistory) -> Run | None:
    """Return the run in progress that asks for one to continue it, unless that one is in progress too."""
    alive = [run for run in history.streams if run.in_progress]
    continued = {run.tags.get(TAG_CONTINUES) for run in alive}
    return next((r for r in alive if _attempt(r) and r.run_id not in continued), None)


def _attempt(run: Run) -> str:
    """Return the number of the run's attempt to rotate; empty where it made none."""
    run_id, _, attempt = run.tags.get(TAG_ROTATES, "").partition("/")
    return attempt if run_id == run.run_id else ""


def _successor(rotating: Run, stream: StreamSpec) -> dg.RunRequest:
    """Return the run that continues a long one. Its value of the job's tag lets the two wait side by side."""
    config, _ = restart_config(rotating, stream)
    return dg.RunRequest(
        f"rotated/{rotating.run_id}/{_attempt(rotating)}",
        config,
        {
            TAG_STREAM: stream.name,
            TAG_CAUSE: f"Rotation: run {rotating.name} ends once this run, which has the code deployed now, is ready.",
            TAG_CONTINUES: rotating.run_id,
            TAG_JOB: f"{stream.job}/continues/{rotating.run_id}",
        },
        stream.job,
    )
