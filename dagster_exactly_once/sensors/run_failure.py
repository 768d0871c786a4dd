"""``exactly_once_run_failure``: a stream whose newest run failed is recovered, and started by the restart strategy."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from dagster_exactly_once.names import FAILURE_SENSOR, NOTIFY, RECOVERY_JOB
from dagster_exactly_once.notify import Notice
from dagster_exactly_once.private import may_hold_a_thread
from dagster_exactly_once.runs.failures import Failure
from dagster_exactly_once.runs.history import StreamHistory, attempt_of
from dagster_exactly_once.runs.operator import alive_of, frozen
from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.incidents import OVER_AFTER_S, NoticeSender
from dagster_exactly_once.sensors.recovery_requests import (
    REQUESTED,
    RecoveryNeed,
    next_restart,
    recovery_request,
    refusal,
    withheld,
)
from dagster_exactly_once.sensors.restarts import restart_with
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from dagster_exactly_once.sensors.tick import BUDGET_S, Job, Judged, Memory, Tick, ask_each, check_jobs, sensor_over
from exactly_once.commitlog.commit_log import read_log
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.findings import Inspection, Owner
from exactly_once.inspection.sink import owner_of
from exactly_once.inspection.words import duration
from exactly_once.tools.diagnosis import SinkFacts, Thresholds
from exactly_once.tools.diagnosis.facts import StreamFacts
from exactly_once.tools.diagnosis.registry import SYMPTOMS

#: The errors of a driver whose sink a newer one has taken: not always EO-FENCED, since its transactions vanish first.
SUPERSEDED = ("EO-FENCED", "EO-PREPARE", "EO-EXPIRING")

#: Seconds of a pause that is over before Spark has started: the run is requested with its recovery.
SOON_S = 3.0

#: Seconds from the beginning of a tick until which it waits for a failure, and between its questions. The daemon looks
#: at its sensors every 5 s, and leaves out one whose tick has not ended.
WAIT_S = 4.0
READ_EVERY_S = 0.5


def verdict(
    stream: StreamSpec,
    history: StreamHistory,
    restart: RestartPolicy,
    watch: WatchPolicy,
    owner: Owner | None = None,
) -> Judged:
    """Judge the newest run of the stream; the sink's owner matters only for failures that a superseded driver has."""
    run, why = history.stream, history.stream_failure
    if run is None:
        return Judged("The stream has no run yet.")
    if run.in_progress and run.frozen:
        return Judged(_frozen(run, restart.end_frozen_after_s), True)
    if run.in_progress:
        attempt = attempt_of(run)
        return Judged(f"Run {run.name} is {run.status}{f' (restart attempt {attempt})' if attempt else ''}.")
    if run.status != "FAILURE" or why is None:
        return Judged(f"The newest run {run.name} ended as {run.status}: there is nothing to recover.")
    failed = f"Run {run.name} failed ({why.code})"
    if why.unwanted:
        return Judged(f"{failed} after a person had asked it to end, so no sensor starts the stream again.")
    since, retried = history.recovery_since(run), False
    if since is not None:
        if settled := _settled(since):
            return Judged(f"{failed}{settled}")
        problem = history.recovery_failure
        if since.status == "FAILURE" and problem is not None:
            if not problem.heals:
                return _raise(f"{failed}, and so did its recovery. ", problem, since, run)
            retried = since.restart_of is not None
    if not _heals(why, owner):
        return _raise("", why, run, run)
    decision = next_restart(restart, history.failures(), history.now)
    if isinstance(decision, str):
        then = f"No sensor starts the stream again: {decision}. Fix the cause, then launch {_job(run)}."
        return Judged(f"{_text(why)} {then}", True, why=replace(why, subject=run.run_id))
    wait_s = decision.at - history.now
    if retried and wait_s > 0:
        return Judged(
            f"{failed}; this sensor requests the recovery again in {duration(wait_s)} "
            f"(restart attempt {decision.attempt})."
        )
    need = RecoveryNeed(
        f"failure/{run.run_id}",
        f"{why.code}: run {run.name} failed. {why.sentence.removeprefix(f'{why.code}: ')}",
        run,
        decision,
        restart.limit,
    )
    refused = refusal(history, need, watch, owner.works if owner is not None else None)
    if refused is not None:
        return Judged(f"{failed}. {withheld(refused)}")
    recovery, nth = recovery_request(stream, history, need), f"(restart attempt {decision.attempt})"
    if wait_s > SOON_S:
        then = f"the sensor exactly_once_liveness then starts the stream {nth}"
        return Judged(f"{failed}. {REQUESTED}; {then}.", True, [recovery])
    then = f"the next run of the stream {nth}, which waits for it"
    return Judged(f"{failed}. {REQUESTED}, and {then}.", True, [recovery, restart_with(run, recovery, stream)])


def run_failure_sensor(
    streams: Sequence[StreamSpec],
    jobs: Sequence[Job],
    every_s: int = 5,
) -> dg.SensorDefinition:
    """Make the sensor over :func:`verdict` for all streams.

    Dagster lets it request only runs of ``jobs``; raises DagsterInvalidDefinitionError if a stream's job, or the
    recovery's, is missing.
    """
    check_jobs(FAILURE_SENSOR, [RECOVERY_JOB, *(s.job for s in streams)], jobs)

    @sensor_over(
        streams,
        FAILURE_SENSOR,
        every_s,
        ["kafka", "restart_policy", "watch_policy", NOTIFY],
        jobs=list(jobs),
        description=(
            "When the newest run of a stream fails, requests a recovery of its sink at once, and the next run of the "
            "stream, unless the restart policy makes that wait. CANCELED is a person's decision and restarts "
            "nothing; a failure that a restart cannot fix is reported and left to a person. A tick with nothing to do "
            "waits up to 4 s for a failure, where the instance evaluates its sensors with enough threads."
        ),
    )
    def run_failure(tick: Tick) -> dg.SensorResult:
        judge(tick, tick.streams)
        settled = not tick.requests and tick.memory == tick.before  # what a tick has told is kept when it ends
        if settled and (failed := wait_for_failures(tick)):
            tick.read_again()
            judge(tick, failed)
        return tick.result()

    def judge(tick: Tick, streams: Sequence[StreamSpec]) -> None:
        at, histories = tick.context.resources, _histories(tick, streams)
        sender = NoticeSender(getattr(at, NOTIFY), location=tick.location)
        whys = {sink_id: history.stream_failure for sink_id, history in histories.items()}
        doubtful = [s for s in streams if (why := whys.get(s.sink_id)) and why.code in SUPERSEDED]

        def owner_now(stream: StreamSpec, budget_s: float) -> Owner | None:
            return owner_of(read_log(at.kafka.connection(), stream.sink_id, budget_s), alive_of(tick.context.instance))

        owners = ask_each(doubtful, owner_now, tick.deadline)
        for stream in streams:
            owner = owners.get(stream.sink_id)
            if isinstance(owner, ExactlyOnceError):
                tick.failed(stream, owner, ": it cannot tell whether the sink has a new owner")
            elif stream.sink_id not in histories or (stream in doubtful and stream.sink_id not in owners):
                tick.missed(stream)
            else:
                history = histories[stream.sink_id]
                judged = verdict(stream, history, at.restart_policy, at.watch_policy, owner)
                tick.add(stream, _reaction(stream, history, judged, tick.memory[stream.sink_id], sender))

    return run_failure


def wait_for_failures(tick: Tick) -> list[StreamSpec]:
    """Return the streams whose run fails while this tick waits for it: none where it may not hold a thread so long."""
    instance = tick.context.instance
    at_work = {run.run_id: s for s in tick.streams if (run := tick.summaries[s.sink_id].stream) and run.in_progress}
    if not at_work or not may_hold_a_thread(instance, FAILURE_SENSOR):
        return []
    failures = dg.RunsFilter(run_ids=list(at_work), statuses=[dg.DagsterRunStatus.FAILURE])
    while not (failed := instance.get_runs(failures)) and tick.deadline.left > BUDGET_S - WAIT_S:
        time.sleep(READ_EVERY_S)
    return [at_work[run.run_id] for run in failed]


def _frozen(run: Run, end_after_s: float) -> str:
    """Say what Dagster shows of a frozen run, what is true, and what happens next."""
    why, then = frozen(f"run {run.name}", run.frozen, run.sink_id), ""
    if run.status == "CANCELING":
        then = "The sensor exactly_once_liveness resumes a process that a signal has stopped. "
    elif end_after_s:
        then = (
            "The sensor exactly_once_liveness kills that process once it has been frozen for "
            f"{duration(end_after_s)}; the run then counts as failed. "
        )
    return (
        f"Dagster still shows run {run.name} as {run.status}, but it is frozen and commits nothing. {then}{why.code}: "
        f"{why.text}"
    )


def _histories(tick: Tick, streams: Sequence[StreamSpec]) -> dict[str, StreamHistory]:
    """Read as much of each history as its newest run makes necessary, as far as the time goes; by sink id."""
    histories = {stream.sink_id: tick.summaries[stream.sink_id] for stream in streams}
    for stream in streams:
        newest = histories[stream.sink_id].stream
        if newest is not None and newest.status == "FAILURE":
            if tick.deadline.over:
                del histories[stream.sink_id]
            else:
                histories[stream.sink_id] = tick.histories.whole(stream)
    return histories


def _reaction(stream: StreamSpec, history: StreamHistory, judged: Judged, last: Memory, sender: NoticeSender) -> Judged:
    """Return a verdict with its events; a person is told once of a failure, and once more when it is over."""
    raised, notified, code = last.get("raised"), last.get("notified"), last.get("code", "")
    incident = last.get("incident") or notified  # a stream that fails again at once is in the same incident
    events, notice, why = [], None, judged.why
    if why is not None:
        if why.subject != raised:
            page = dg.MetadataValue.dagster_run(why.subject)
            metadata: dict[str, Any] = {"needs_a_person": judged.message, "failed_run": page, "code": why.code}
            metadata["way_out"] = why.remedy
            events.append(dg.AssetObservation(stream.asset, description=judged.message, metadata=metadata))
        if why.subject != notified:
            incident = incident or why.subject
            place = (why.code, f"{stream.sink_id}/{incident}", why.subject)
            notice = Notice(stream.name, stream.sink_id, judged.message, *place)
    elif notified and incident and (newest := _over(history)) is not None:
        place = (code or "UNCLASSIFIED", f"{stream.sink_id}/{incident}", newest.run_id)
        notice = Notice(stream.name, stream.sink_id, judged.message, *place, resolved=True)
    unsaid = sender.send(notice) if notice is not None else ""
    if notice is not None and not unsaid:
        notified, incident, code = (None, None, code) if notice.resolved else (notice.run_id, incident, notice.code)
    memory = {"raised": why.subject if why else raised, "notified": notified, "incident": incident, "code": code}
    attention = judged.attention or bool(unsaid)
    return replace(judged, message=f"{judged.message}{unsaid}", attention=attention, events=events, memory=memory)


def _over(history: StreamHistory) -> Run | None:
    """Return the newest run if it shows that an earlier failure is over: it works, and has not just begun, or it has
    caught up. One that a person canceled leaves the stream down.
    """
    run = history.stream
    if run is None or run.status in ("FAILURE", "CANCELED") or run.waits:
        return None
    return run if not run.in_progress or history.now - (run.started or history.now) >= OVER_AFTER_S else None


def _settled(recovery: Run) -> str:
    """Return the end of the sentence after a recovery that leaves nothing to request; "" after any other."""
    if recovery.in_progress:
        return f"; recovery {recovery.name} is {recovery.status}."
    if recovery.status == "CANCELED":
        return f"; a person canceled its recovery {recovery.name}, so no sensor starts the stream again."
    if recovery.by_person and recovery.restart_of is None:
        theirs = f"a person launched recovery {recovery.name} without a restart"
        return f"; {theirs}, so a person must also start the stream."
    if recovery.status == "SUCCESS" and recovery.restart_of is not None:
        return f" and was recovered by {recovery.name}; the sensor exactly_once_liveness starts the stream again."
    return ""


def _heals(why: Failure, owner: Owner | None) -> bool:
    """Return whether a restart is right. A superseded driver must not take the sink back from a live successor."""
    if why.code not in SUPERSEDED or owner is None:
        return why.heals
    if why.code == "EO-FENCED":  # a driver on another host? then both would fence each other forever
        return owner.works is False
    return why.heals and not owner.works


def _job(run: Run) -> str:
    """Return what a person launches again: Dagster starts a materialization by a job that no page lists."""
    return "the stream" if run.job.startswith("__") else f"the job {run.job}"


def _raise(before: str, why: Failure, failed: Run, run: Run) -> Judged:
    said = f"{before}{_text(why)} A restart does not fix {why.code}: then launch {_job(run)}."
    return Judged(said, True, why=replace(why, subject=failed.run_id))


def _text(why: Failure) -> str:
    """Return what all screens say of a failed run."""
    facts = SinkFacts(Inspection(""), stream=StreamFacts(failed=why))
    failed = next(SYMPTOMS["HEALTH-FAILED"].find(facts, Thresholds()))
    return f"{failed.code}: {failed.text}"
