"""``exactly_once_run_failure``: a stream whose newest run failed is recovered, and started by the restart strategy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import dagster as dg

from dagster_exactly_once.names import FAILURE_SENSOR, RECOVERY_JOB
from dagster_exactly_once.notify import Notice, Notifier
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.facts import frozen
from dagster_exactly_once.runs.failures import Failure
from dagster_exactly_once.runs.history import Histories, StreamHistory, attempt_of
from dagster_exactly_once.runs.operator import alive_of
from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.fan_out import ask_each
from dagster_exactly_once.sensors.incidents import OVER_AFTER_S, Teller
from dagster_exactly_once.sensors.recovery_requests import REQUESTED, RecoveryNeed, recovery_request, refusal, withheld
from dagster_exactly_once.sensors.restart import GiveUp, next_restart
from dagster_exactly_once.sensors.settings import RestartPolicy, WatchPolicy
from dagster_exactly_once.sensors.tick import Judged, Memory, Tick, default_status, interval
from exactly_once.commitlog.commit_log import read_log
from exactly_once.diagnosis import SinkFacts, Thresholds
from exactly_once.diagnosis.facts import StreamFacts
from exactly_once.diagnosis.registry import SYMPTOMS
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.findings import Inspection, Owner
from exactly_once.inspection.sink import owner_of

#: The errors of a driver whose sink a newer one has taken: not always EO-FENCED, since its transactions vanish first.
SUPERSEDED = ("EO-FENCED", "EO-PREPARE", "EO-EXPIRING")


@dataclass(frozen=True)
class FailureVerdict:
    """The sentence and the actions of a tick.

    Attributes
    ----------
    raised : str or None
        The failed run that needs a person.
    why : Failure or None
        Why that run failed.
    """

    message: str
    need: RecoveryNeed | None = None
    raised: str | None = None
    why: Failure | None = None


def verdict(
    history: StreamHistory,
    restart: RestartPolicy,
    watch: WatchPolicy,
    owner: Owner | None = None,
) -> FailureVerdict:
    """Judge the newest run of the stream.

    Parameters
    ----------
    owner : Owner or None
        The sink's owner; matters only for failures that a superseded driver has.
    """
    run, why = history.stream, history.stream_failure
    if run is None:
        return FailureVerdict("The stream has no run yet.")
    if run.in_progress and run.frozen:
        return FailureVerdict(_frozen(run, restart.end_frozen_after_s))
    if run.in_progress:
        attempt = attempt_of(run)
        return FailureVerdict(f"Run {run.name} is {run.status}{f' (restart attempt {attempt})' if attempt else ''}.")
    if run.status != "FAILURE" or why is None:
        return FailureVerdict(f"The newest run {run.name} ended as {run.status}: there is nothing to recover.")
    failed = f"Run {run.name} failed ({why.code})"
    if why.unwanted:
        return FailureVerdict(f"{failed} after a person had asked it to end, so no sensor starts the stream again.")
    recovery, since = history.recovery, history.recovery_since(run)
    retried = False
    if since is not None and recovery is not None:
        settled = _settled(failed, since)
        if settled is not None:
            return settled
        problem = history.recovery_failure
        if since.status == "FAILURE" and problem is not None:
            if not problem.heals:
                return _raise(f"{failed}, and so did its recovery.", problem, since, _job(run))
            retried = since.restart_of is not None
    if not _heals(why, owner):
        return _raise("", why, run, _job(run))
    decision = next_restart(restart, history.failures(), history.now)
    if isinstance(decision, GiveUp):
        return FailureVerdict(
            f"{_text(why)} No sensor starts the stream again: {decision.reason}. Fix the cause, then launch "
            f"{_job(run)}.",
            raised=run.run_id,
            why=why,
        )
    wait_s = decision.at - history.now
    if retried and wait_s > 0:
        return FailureVerdict(
            f"{failed}; this sensor requests the recovery again in {wait_s:.0f} s (restart attempt {decision.attempt})."
        )
    need = RecoveryNeed(f"failure/{run.run_id}", f"{failed}: {why.sentence}", run, decision, restart.limit)
    refused = refusal(history, need, watch, owner.works if owner is not None else None)
    if refused is not None:
        return FailureVerdict(f"{failed}. {withheld(refused)}")
    return FailureVerdict(
        f"{failed}. {REQUESTED}; the sensor exactly_once_liveness then starts the stream (restart attempt "
        f"{decision.attempt}).",
        need,
    )


def run_failure_sensor(streams: Sequence[StreamSpec], every_s: int = 5) -> dg.SensorDefinition:
    """Make the sensor over :func:`verdict` for all streams."""

    @dg.sensor(
        name=FAILURE_SENSOR,
        job_name=RECOVERY_JOB,
        minimum_interval_seconds=interval(every_s),
        default_status=default_status(),
        description=(
            "When the newest run of a stream fails, requests a recovery of its sink at once; the restart policy "
            "decides when and how often the stream is started again. CANCELED is a person's decision and restarts "
            "nothing; a failure that a restart cannot fix is reported and left to a person."
        ),
    )
    def run_failure(
        context: dg.SensorEvaluationContext,
        kafka: KafkaTransactionalProducerFactory,
        restart_policy: RestartPolicy,
        watch_policy: WatchPolicy,
        exactly_once_notify: Notifier,
    ) -> dg.SensorResult:
        tick, histories, teller = Tick(context, streams), Histories(context.instance), Teller(exactly_once_notify)
        found = _histories(tick, histories)
        doubtful = [
            s
            for s in tick.streams
            if s.sink_id in found and (why := found[s.sink_id].stream_failure) and why.code in SUPERSEDED
        ]
        owners = ask_each(doubtful, lambda stream, left: _owner(context.instance, kafka, stream, left), tick.deadline)
        for stream in tick.streams:
            owner = owners.get(stream.sink_id)
            if isinstance(owner, ExactlyOnceError):
                tick.failed(stream, owner, ": it cannot tell whether the sink has a new owner")
            elif stream.sink_id not in found or (stream in doubtful and stream.sink_id not in owners):
                tick.missed(stream)
            else:
                history = found[stream.sink_id]
                judged = verdict(history, restart_policy, watch_policy, owner)
                tick.add(stream, _reaction(stream, history, judged, tick.memory(stream), teller))
        return tick.result()

    return run_failure


def _frozen(run: Run, end_after_s: float) -> str:
    """Say what Dagster shows of a frozen run, what is true, and what happens next."""
    why = frozen(f"run {run.name}", run.frozen, run.sink_id)
    if run.canceling:
        then = "The sensor exactly_once_liveness resumes a process that a signal has stopped. "
    elif end_after_s:
        then = (
            f"The sensor exactly_once_liveness kills that process once it has been frozen for {end_after_s:g} s; the "
            "run then counts as failed. "
        )
    else:
        then = ""
    return (
        f"Dagster still shows run {run.name} as {run.status}, but it is frozen and commits nothing. {then}{why.code}: "
        f"{why.text}"
    )


def _histories(tick: Tick, histories: Histories) -> dict[str, StreamHistory]:
    """Read as much of each history as its newest run makes necessary, as far as the time goes; by sink id."""
    found = histories.summaries(tick.streams)
    for stream in tick.streams:
        newest = found[stream.sink_id].stream
        if newest is not None and newest.status == "FAILURE":
            if tick.deadline.over:
                del found[stream.sink_id]
            else:
                found[stream.sink_id] = histories.whole(stream)
    return found


def _owner(
    instance: dg.DagsterInstance, kafka: KafkaTransactionalProducerFactory, stream: StreamSpec, budget_s: float
) -> Owner | None:
    return owner_of(read_log(kafka.connection(), stream.sink_id, budget_s), alive_of(instance))


def _reaction(
    stream: StreamSpec, history: StreamHistory, found: FailureVerdict, last: Memory, teller: Teller
) -> Judged:
    """Turn a verdict into what the tick does. A failure that needs a person is recorded once on the asset, and that
    person is told once, and once more when the stream runs again or was stopped.
    """
    told, notified, code, unsaid = last.get("raised"), last.get("notified"), last.get("code", ""), ""
    incident = last.get("incident") or notified  # a stream that fails again at once is in the same incident
    events = []
    if found.raised is not None and found.raised != told:
        events.append(_observation(stream, found.raised, found.message, found.why))
    if found.raised is not None and found.raised != notified:
        incident = incident or found.raised
        notice = _notice(stream, incident, found.raised, found.message, found.why)
        unsaid = teller.send(notice)
        notified, code = (notified, code) if unsaid else (found.raised, notice.code)
    elif notified and incident and (newest := _over(history)) is not None:
        notice = _notice(stream, incident, newest.run_id, found.message, None)
        unsaid = teller.send(replace(notice, code=code or notice.code, resolved=True))
        notified, incident = (notified, incident) if unsaid else (None, None)
    request = recovery_request(stream, history, found.need) if found.need else None
    frozen = history.stream is not None and bool(history.stream.frozen)
    attention = found.raised is not None or found.need is not None or bool(unsaid) or frozen
    memory = {"raised": found.raised or told, "notified": notified, "incident": incident, "code": code}
    return Judged(f"{found.message}{unsaid}", attention, request, events, memory)


def _over(history: StreamHistory) -> Run | None:
    """Return the newest run if it shows that an earlier failure is over: it did not fail, and has not just begun."""
    run = history.stream
    if run is None or run.status == "FAILURE" or run.waits:
        return None
    return run if not run.in_progress or history.now - (run.started or history.now) >= OVER_AFTER_S else None


def _settled(failed: str, recovery: Run) -> FailureVerdict | None:
    """Make the sentence of a tick after a recovery, when nothing is left to request."""
    if recovery.in_progress:
        return FailureVerdict(f"{failed}; recovery {recovery.name} is {recovery.status}.")
    if recovery.status == "CANCELED":
        return FailureVerdict(
            f"{failed}; a person canceled its recovery {recovery.name}, so no sensor starts the stream again."
        )
    if recovery.by_person and recovery.restart_of is None:
        theirs = f"a person launched recovery {recovery.name} without a restart"
        return FailureVerdict(f"{failed}; {theirs}, so a person must also start the stream.")
    if recovery.status == "SUCCESS" and recovery.restart_of is not None:
        return FailureVerdict(
            f"{failed} and was recovered by {recovery.name}; the sensor exactly_once_liveness starts the stream again."
        )
    return None


def _heals(why: Failure, owner: Owner | None) -> bool:
    """Return whether a restart is right. A superseded driver must not take the sink back from a live successor."""
    if why.code not in SUPERSEDED or owner is None:
        return why.heals
    works = owner.works
    if why.code == "EO-FENCED":  # a driver on another host? then both would fence each other forever
        return works is False
    return why.heals and not works


def _job(run: Run) -> str:
    """Return what a person launches again: Dagster starts a materialization by a job that no page lists."""
    return "the stream" if run.job.startswith("__") else f"the job {run.job}"


def _raise(before: str, why: Failure, run: Run, job: str) -> FailureVerdict:
    said = f"{before} {_text(why)} A restart does not fix {why.code}: then launch {job}."
    return FailureVerdict(said.strip(), raised=run.run_id, why=why)


def _text(why: Failure) -> str:
    """Return what all screens say of a failed run."""
    facts = SinkFacts(Inspection(""), stream=StreamFacts(failed=why))
    failed = next(SYMPTOMS["HEALTH-FAILED"].find(facts, Thresholds()))
    return f"{failed.code}: {failed.text}"


def _notice(stream: StreamSpec, incident: str, run_id: str, message: str, why: Failure | None) -> Notice:
    code = why.code if why else "UNCLASSIFIED"
    return Notice(stream.name, stream.sink_id, message, code, f"{stream.sink_id}/{incident}", run_id)


def _observation(stream: StreamSpec, run_id: str, message: str, why: Failure | None) -> dg.AssetObservation:
    return dg.AssetObservation(
        stream.asset,
        description=message,
        metadata={
            "needs_a_person": message,
            "failed_run": dg.MetadataValue.dagster_run(run_id),
            "code": why.code if why else "UNCLASSIFIED",
            "way_out": why.remedy if why else "",
        },
    )
