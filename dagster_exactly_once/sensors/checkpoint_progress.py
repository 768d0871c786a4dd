"""``exactly_once_checkpoint_progress``: the progress of a stream, by its checkpoint, its commit log and its input."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_exactly_once.names import CHECKS_JOB, PROGRESS_SENSOR, RECOVERY_JOB
from dagster_exactly_once.notify import Notifier
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.history import Histories, StreamHistory
from dagster_exactly_once.runs.operator import alive_of
from dagster_exactly_once.runs.process import how_to_end
from dagster_exactly_once.runs.runs import Run
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.health import evaluation, trouble
from dagster_exactly_once.sensors.incidents import Teller
from dagster_exactly_once.sensors.observation import StreamRow, all_streams, input_lags, transactions
from dagster_exactly_once.sensors.recovery_requests import RecoveryNeed, ask
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.sensors.sink_state import SinkState, sink_states, works_for
from dagster_exactly_once.sensors.tick import Judged, Memory, Tick, default_status, interval
from exactly_once.errors import ExactlyOnceError
from exactly_once.inspection.findings import Owner
from exactly_once.inspection.processes import describe_frozen, end_command
from exactly_once.inspection.words import are, plural

#: The interval between two observations of an unchanged state: enough points for a plot, few enough rows for a year.
OBSERVE_EVERY_S = 600.0

#: The interval between two observations of a lag that moves: at every third tick. A person who watches a stream stand
#: still sees its lag grow, and the event table grows no faster than by the first hour of a run's reports.
SHOW_EVERY_S = 25.0

#: A decided batch is completed within milliseconds. Until this age, a decision without its mark counts as work under
#: way, perhaps of a recovery that is not a Dagster run.
COMPLETING_S = 10.0

#: From the start of a run to its first batch: 30 to 37 s on two shared cores, of which Spark takes 23 s. Executors that
#: a cluster must find first take longer; beyond this, nobody should call the stream healthy.
STARTING_S = 90.0

#: The states of a stream whose run commits batches, or waits for input.
WORKING = ("healthy", "idle", "catching up", "lagging")

#: The states of streams that a person should look at first.
NEED_ATTENTION = (
    "failed",
    "in doubt",
    "owner lost",
    "frozen",
    "stalled",
    "slow start",
    "lagging",
    "operated by another",
)


@dataclass(frozen=True)
class ProgressFacts:
    """The facts of a tick.

    Attributes
    ----------
    run : str or None
        Name of the run of the stream that Dagster shows as in progress.
    run_age_s : float
        Since it started.
    run_alive : bool or None
        Whether its process lives.
    owner_is_run : bool or None
        Whether the latest claim is the run's own. None when unknown, and until its first batch, at which it claims.
    undecided : int
        Open transactions without a decision.
    unproven : tuple of int
        Batches that are decided but not marked as completed, oldest first.
    unproven_age_s, idle_s : float
        Seconds since the oldest of them was decided; since the newest decision, None without one.
    waited_s : float
        For how long ticks have seen waiting input while no batch was decided or marked.
    lag, last_lag : int, int or None
        Now, and at the last tick.
    starting : str
        The run that has not begun its first batch, for people: ``run r1 has been starting``; empty without one.
    starting_s : float
        For how long.
    elsewhere : str
        The driver that holds the sink without being a run of this instance, for people; empty without one.
    owner : str
        The process of the latest claim, for people.
    taken : bool
        Whether this instance has run the stream that is now held elsewhere.
    frozen : str
        Which process of the run, or of the driver that holds the sink elsewhere, is alive and does nothing, and how to
        end it, for people; empty without one.
    """

    run: str | None = None
    run_age_s: float = 0.0
    run_alive: bool | None = True
    owner_is_run: bool | None = None
    undecided: int = 0
    unproven: tuple[int, ...] = ()
    unproven_age_s: float = 0.0
    idle_s: float | None = None
    waited_s: float = 0.0
    lag: int = 0
    last_lag: int | None = None
    in_flight: int | None = None
    starting: str = ""
    starting_s: float = 0.0
    elsewhere: str = ""
    owner: str = ""
    taken: bool = False
    frozen: str = ""


@dataclass(frozen=True)
class ProgressVerdict:
    """A state, the sentence of the tick, and the name of the incident if a recovery is needed."""

    state: str
    message: str
    incident: str | None = None


def verdict(f: ProgressFacts, policy: WatchPolicy) -> ProgressVerdict:
    """Judge a stream whose sink is in use."""
    works = f.run is not None and f.run_alive is not False
    if f.unproven and f.unproven_age_s > COMPLETING_S and not works:
        return ProgressVerdict(
            "in doubt",
            f"In doubt: {_decided(f.unproven, f.unproven_age_s)}, and no run of the stream is working. Readers may see "
            "only a part of what was decided",
            f"in-doubt/{f.unproven[0]}",
        )
    if f.frozen:
        whose = f"run {f.run}" if f.run else f"the {f.owner}"
        return ProgressVerdict("frozen", f"Frozen: {whose} is alive but does nothing; {_progress(f)}. {f.frozen}")
    if f.run is None and f.elsewhere:
        if f.lag > 0 and f.waited_s > policy.stall_after_s:
            return ProgressVerdict(
                "stalled",
                f"Stalled: {_progress(f)}; input has been waiting for {f.waited_s:.0f} s. Check the driver on its "
                f"host: {f.elsewhere}",
            )
        if f.taken:
            return ProgressVerdict(
                "operated by another",
                f"Operated by another: {f.elsewhere}, and that driver is not a run of this Dagster instance; "
                f"{_progress(f)}. If it should not run, stop it on its host, then launch the stream here",
            )
        if f.lag == 0:
            return ProgressVerdict("idle", f"Idle: {f.elsewhere}; it has read all its input, {_newest(f)}")
        return _moving(f, policy)
    if f.run is None and f.starting:
        return _starting(f, policy)
    if f.run is None:
        waits = f", {plural(f.lag, 'offset')} of input {are(f.lag)} waiting" if f.lag else ""
        held = f", {plural(f.undecided, 'undecided transaction')} {are(f.undecided)} open" if f.undecided else ""
        return ProgressVerdict("stopped", f"Stopped: no run of the stream is in progress{waits}{held}")
    if f.run_alive is False or f.owner_is_run is False:
        why = "its process is gone" if f.run_alive is False else f"the {f.owner} has taken its sink"
        then = (
            "The sensor exactly_once_liveness, if it is on, reports that within seconds"
            if f.run_alive is False
            else "The run fails at its next batch (EO-FENCED)"
        )
        stuck = f.run_alive is False and f.waited_s > policy.stall_after_s
        return ProgressVerdict(
            "owner lost",
            f"Owner lost: Dagster shows run {f.run} as in progress, but {why}. {then}",
            f"owner-lost/{f.run}" if stuck else None,
        )
    if f.starting and (f.lag > 0 or f.starting_s <= STARTING_S):  # without input, no batch begins
        return _starting(f, policy)
    if f.lag == 0:
        return ProgressVerdict("idle", f"Idle: run {f.run} has read all its input, {_newest(f)}")
    if min(f.waited_s, f.run_age_s) > policy.stall_after_s:
        batch = f", batch {f.in_flight} is in flight" if f.in_flight is not None else ""
        return ProgressVerdict(
            "stalled",
            f"Stalled: {_progress(f)}{batch}; input has been waiting for {f.waited_s:.0f} s, and run {f.run} is alive "
            "but commits nothing. See the run's log and Spark's UI; Terminate stops the run gracefully, and the next "
            "start continues",
        )
    return _moving(f, policy)


def _starting(f: ProgressFacts, policy: WatchPolicy) -> ProgressVerdict:
    """Judge a run that has not begun its first batch."""
    said = f"{f.starting} for {f.starting_s:.0f} s; {_progress(f)}"
    if f.lag > 0 and min(f.waited_s, f.starting_s) > policy.stall_after_s:
        return ProgressVerdict(
            "stalled",
            f"Stalled: {said}, and input has been waiting for {f.waited_s:.0f} s. See the run's page: its queue, its "
            "log and its compute log. Terminate the run if it hangs, then launch the stream again",
        )
    if f.starting_s > STARTING_S:
        return ProgressVerdict(
            "slow start", f"Slow start: {said}. See the run's page: its queue, its log and its compute log"
        )
    return ProgressVerdict("starting", f"Starting: {said}")


def _moving(f: ProgressFacts, policy: WatchPolicy) -> ProgressVerdict:
    """Judge a stream that commits, by its lag."""
    progress = f"{_progress(f)}; {f.elsewhere}" if f.elsewhere else _progress(f)
    if f.lag <= policy.lag_limit:
        return ProgressVerdict("healthy", f"Healthy: {progress}")
    if f.last_lag is not None and f.lag < f.last_lag:
        return ProgressVerdict(
            "catching up", f"Catching up: {progress} ({f.last_lag - f.lag:,} fewer than at the last tick)"
        )
    return ProgressVerdict(
        "lagging", f"Lagging: {progress}. The lag is above the limit of {policy.lag_limit:,} and does not shrink"
    )


def _newest(f: ProgressFacts) -> str:
    return "no batch is decided yet" if f.idle_s is None else f"last batch decided {f.idle_s:.0f} s ago"


def _progress(f: ProgressFacts) -> str:
    return f"{plural(f.lag, 'offset')} behind, {_newest(f)}"


def checkpoint_progress_sensor(
    streams: Sequence[StreamSpec],
    checks: Mapping[str, Sequence[dg.AssetCheckKey]] | None = None,
    jobs: Sequence[Any] = (),
    every_s: int = 10,
) -> dg.SensorDefinition:
    """Make the sensor over :func:`verdict` for all streams.

    Parameters
    ----------
    checks : mapping
        By sink id, the checks to evaluate when a stream begins to work, or has failed: until the schedule runs they
        would tell of the time before.
    jobs : sequence of job definitions
        The recovery, and the job of the checks.
    """
    target: dict[str, Any] = {"jobs": list(jobs)} if jobs else {"job_name": RECOVERY_JOB}

    @dg.sensor(
        name=PROGRESS_SENSOR,
        **target,
        minimum_interval_seconds=interval(every_s),
        default_status=default_status(),
        description=(
            "Reports the state of each stream (healthy, idle, catching up, starting, slow start, lagging, stalled, "
            "frozen, in doubt, owner lost, operated by another, stopped), as the check health and as an observation "
            "of the stream's transactions. Requests a recovery when a batch is in doubt, or a stream has stopped "
            "moving, and no run is working on the sink. Notifies a person of trouble that lasts."
        ),
    )
    def checkpoint_progress(
        context: dg.SensorEvaluationContext,
        kafka: KafkaTransactionalProducerFactory,
        checkpoints: CheckpointReader,
        watch_policy: WatchPolicy,
        exactly_once_notify: Notifier,
    ) -> dg.SensorResult:
        tick = Tick(context, streams)
        teller = Teller(exactly_once_notify, "health", watch_policy.notice_after_s)
        found = sink_states(kafka, checkpoints, tick.streams, tick.deadline, alive_of(context.instance))
        histories = Histories(context.instance)  # after the readings: a run that began meanwhile must be seen
        summaries = histories.summaries(tick.streams)
        show = lag_moved(tick, found)
        for stream in tick.streams:
            if stream.sink_id not in found:
                tick.missed(stream)
                continue
            sink_state = found[stream.sink_id]
            if isinstance(sink_state, ExactlyOnceError):
                tick.failed(stream, sink_state)
            elif sink_state is None:
                tick.add(stream, unused(stream, summaries[stream.sink_id], histories, tick.memory(stream)))
            else:
                summary, last = summaries[stream.sink_id], tick.memory(stream)
                tick.add(
                    stream, judge_progress(stream, sink_state, summary, histories, watch_policy, last, teller, show)
                )
        return tick.result(
            events=overview(tick, streams, found, summaries, show), requests=rechecks(tick, streams, checks or {})
        )

    return checkpoint_progress


def lag_moved(tick: Tick, found: Mapping[str, SinkState | ExactlyOnceError | None]) -> bool:
    """Return whether to show all lags anew: one of them is not what was shown, and that was a while ago."""
    before = {stream.sink_id: tick.memory(stream).get("shown", {}) for stream in tick.streams}
    newest = max((shown.get("at", 0.0) for shown in before.values()), default=0.0)
    if 0 <= time.time() - newest < SHOW_EVERY_S:
        return False
    return any(isinstance(s, SinkState) and s.lag != before[sink_id].get("lag") for sink_id, s in found.items())


def rechecks(
    tick: Tick, streams: Sequence[StreamSpec], checks: Mapping[str, Sequence[dg.AssetCheckKey]]
) -> list[dg.RunRequest]:
    """Request the checks of the streams that began to work since the last tick, or failed: one run for all."""
    turned = []
    for stream in streams:
        state, before = str(tick.memory(stream).get("state", "")), tick.before(stream)
        if stream.sink_id in checks and (state in WORKING) != (before in WORKING) and state in (*WORKING, "failed"):
            turned.append(stream)
    keys = [key for stream in turned for key in checks[stream.sink_id]]
    return [dg.RunRequest(job_name=CHECKS_JOB, asset_check_keys=keys)] if keys else []


def judge_progress(
    stream: StreamSpec,
    sink_state: SinkState,
    summary: StreamHistory,
    histories: Histories,
    policy: WatchPolicy,
    last: Memory,
    teller: Teller,
    show: bool = False,
) -> Judged:
    """Judge one stream, ask for a recovery if it needs one, and tell a person of what stays. ``last`` is what the last
    tick kept of it; ``show`` is :func:`lag_moved`.
    """
    mark = f"{sink_state.checkpoint.last_commit}/{sink_state.progress.last_decided}"
    waits = sink_state.lag > 0 and mark == last.get("mark")
    since = last.get("waits_since", summary.now) if waits else summary.now
    found = verdict(facts(stream, sink_state, summary, last.get("lag"), summary.now - since), policy)
    request, message = None, f"{found.message}."
    if found.incident is not None:
        need, owner = RecoveryNeed(found.incident, message), sink_state.inspection.owner
        request, answer = ask(stream, histories.whole(stream), need, policy, owner)
        message += answer
    wrong = trouble(found.state, sink_state.lag, policy.lag_limit, stream.managed)
    incident, unsaid = teller.tell(stream, wrong, message, last.get("incident", {}), summary.now)
    message += unsaid
    observed, now = last.get("observed", 0.0), time.time()
    failed = _failed(summary, found)
    state = "failed" if failed else found.state
    due = (state, failed) != (last.get("state"), last.get("failed", "")) or now - observed >= OBSERVE_EVERY_S
    shown = last.get("shown", {})
    stands = show and state not in WORKING and sink_state.lag != shown.get("lag")  # no run of it reports its lag
    memory = {
        "lag": sink_state.lag,
        "shown": {"lag": sink_state.lag, "at": now} if show else shown,
        "state": state,
        "failed": failed,
        "code": last.get("code", ""),
        "observed": now if due else observed,
        "mark": mark,
        "waits_since": since,
        "incident": incident,
    }
    events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
    if due:
        events.append(transactions(stream.asset, sink_state, found.state, message))
    if due or stands:
        events += input_lags(stream, sink_state.lags, sink_state.measured)
        ended = summary.stream is not None and summary.stream.status == "FAILURE"
        history = histories.whole(stream) if ended else summary  # why it failed takes a look at its events
        memory["code"] = history.stream_failure.code if history.stream_failure else ""
        events.append(evaluation(stream, found.state, message, history, sink_state.measured))
    attention = state in NEED_ATTENTION or bool(unsaid)
    return Judged(message, attention, request, events, memory)


def unused(stream: StreamSpec, summary: StreamHistory, histories: Histories, last: Memory) -> Judged:
    """Judge a stream whose sink was never used: a run that fails before its first batch turns the check red too."""
    message, run = f"The sink {stream.sink_id} was never used.", summary.stream
    failed = run.run_id if run is not None and run.status == "FAILURE" else ""
    if failed == last.get("failed", ""):
        return Judged(message, bool(failed))
    history = histories.whole(stream)
    why = history.stream_failure
    memory = {"state": "failed" if failed else "", "failed": failed, "code": why.code if why else ""}
    return Judged(message, bool(failed), events=[evaluation(stream, "stopped", message, history)], memory=memory)


def overview(
    tick: Tick,
    streams: Sequence[StreamSpec],
    found: Mapping[str, SinkState | ExactlyOnceError | None],
    summaries: Mapping[str, StreamHistory],
    show: bool = False,
) -> list[dg.AssetObservation]:
    """Observe all streams in one table, when one of them changed its state, a lag moved (``show``), or this tick
    observes the first of them anyway.
    """
    if not show and not any(tick.observed(stream) for stream in streams[:1]) and not any(map(tick.changed, streams)):
        return []
    rows = []
    for stream in streams:
        sink_state, memory, run = found.get(stream.sink_id), tick.memory(stream), summaries[stream.sink_id].stream
        state = str(memory.get("state", ""))
        if isinstance(sink_state, ExactlyOnceError) or stream.sink_id not in found:
            sink_state, state = None, "not checked"
        elif state == "failed":
            state = f"failed ({memory.get('code') or 'unknown'})"
        elif sink_state is None:
            state = "never used"
        rows.append(StreamRow(stream, state, sink_state, run, tick.said(stream)))
    measured = [row.sink_state.measured for row in rows if row.sink_state is not None]
    return [all_streams(rows, min(measured, default=time.time()))]


def _failed(summary: StreamHistory, found: ProgressVerdict) -> str:
    """Return the newest run if it failed and the stream stands still; "" otherwise."""
    run = summary.stream
    return run.run_id if found.state == "stopped" and run is not None and run.status == "FAILURE" else ""


def facts(
    stream: StreamSpec, sink_state: SinkState, history: StreamHistory, last_lag: int | None, waited_s: float
) -> ProgressFacts:
    """Collect the facts of one tick."""
    found, now = sink_state.inspection, history.now
    owner = found.owner
    working = [r for r in history.streams if r.in_progress and not r.waits]
    claimed = (r for r in working if owner is not None and r.alive is not False and works_for(owner.claim, r))
    run = next(claimed, working[0] if working else None)  # the next run may start beside the one at work
    starts = run or next((r for r in history.streams if r.waits), None)
    if starts is not None and _claimed(sink_state, starts):
        starts = None
    elsewhere = (
        "" if run is not None or owner is None or owner.works is False else f"{owner.claim.process} holds the sink"
    )
    return ProgressFacts(
        run=run.name if run else None,
        run_age_s=now - (run.started or now) if run else 0.0,
        run_alive=run.alive if run else None,
        owner_is_run=_owner_is_run(sink_state, run, history),
        undecided=sum(t.verdict == "undecided" for t in found.open),
        unproven=tuple(d.batch_id for d in found.decided),
        unproven_age_s=max(0.0, now - found.decided[0].decided_ms / 1000) if found.decided else 0.0,
        idle_s=max(0.0, now - sink_state.last_progress) if sink_state.last_progress else None,
        waited_s=waited_s,
        lag=sink_state.lag,
        last_lag=last_lag,
        in_flight=sink_state.checkpoint.in_flight,
        starting=f"run {starts.name} has been {starts.status if starts.waits else 'starting'}" if starts else "",
        starting_s=max(0.0, now - (starts.started or starts.created)) if starts else 0.0,
        elsewhere=elsewhere,
        owner=owner.claim.process if owner else "",
        taken=bool(elsewhere) and stream.managed and history.stream is not None,
        frozen=_frozen(run, owner),
    )


def _frozen(run: Run | None, owner: Owner | None) -> str:
    if run is not None and run.frozen:
        said, how = describe_frozen(run.frozen), how_to_end(run.frozen, run.canceling)
    elif run is None and owner is not None and owner.frozen:
        said, how = describe_frozen(owner.frozen), f"End that process with {end_command(owner.frozen)}"
    else:
        return ""
    return f"{said[0].upper()}{said[1:]}. {how}"


def _claimed(sink_state: SinkState, run: Run) -> bool:
    """Return whether a run has claimed the sink, which it does when its first batch begins; or somebody else since."""
    owner = sink_state.inspection.owner
    if owner is None or run.waits:
        return False
    claim = owner.claim
    newer = run.started is not None and claim.claimed_ms / 1000 >= run.started
    return (newer and claim.purpose != "recovery") or bool(claim.operator and works_for(claim, run))


def _owner_is_run(sink_state: SinkState, run: Run | None, history: StreamHistory) -> bool | None:
    owner = sink_state.inspection.owner
    if run is None or owner is None or run.started is None or owner.claim.claimed_ms / 1000 < run.started:
        return None
    if owner.alive is None or run.alive is None:
        return None
    recovering = any(r.in_progress for r in history.recoveries) or history.now - run.started <= STARTING_S
    if owner.claim.purpose == "recovery" and recovering:
        return None  # the run may have been started beside it, and claim the sink after it
    return owner.alive and works_for(owner.claim, run)


def _decided(numbers: tuple[int, ...], age_s: float) -> str:
    if len(numbers) == 1:
        return f"batch {numbers[0]} was decided {age_s:.0f} s ago but is not marked as completed"
    named = ", ".join(map(str, numbers))
    return f"batches {named} were decided but are not marked as completed; the oldest was decided {age_s:.0f} s ago"
