"""``exactly_once_checkpoint_progress``: the state of a stream, by its checkpoint, commit log, input and runs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dagster as dg

from dagster_exactly_once.names import CHECKS_JOB, PROGRESS_SENSOR, RECOVERY_JOB
from dagster_exactly_once.notify import Notifier
from dagster_exactly_once.resources.checkpoints import CheckpointReader
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.facts import run_at_work
from dagster_exactly_once.runs.history import Histories, StreamHistory
from dagster_exactly_once.runs.operator import alive_of
from dagster_exactly_once.runs.process import cpu_of
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.health import calm, evaluation, trouble
from dagster_exactly_once.sensors.incidents import Teller
from dagster_exactly_once.sensors.observation import StreamRow, all_streams, input_lags, transactions
from dagster_exactly_once.sensors.recovery_requests import ask, need_of
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.sensors.sink_state import SinkState, facts_of, sink_states
from dagster_exactly_once.sensors.tick import Judged, Memory, Tick, default_status, interval
from exactly_once.diagnosis import SinkFacts, health, state_of
from exactly_once.errors import ExactlyOnceError

#: The interval between two observations of an unchanged state: enough points for a plot, few enough rows for a year.
OBSERVE_EVERY_S = 600.0

#: The interval between two observations of a lag that moves: at every third tick. A person who watches a stream stand
#: still sees its lag grow, and the event table grows no faster than by the first hour of a run's reports.
SHOW_EVERY_S = 25.0

#: The share of a processor that the processes of a start use while it moves; a JVM that hangs uses less.
MOVING_SHARE = 0.02

#: The states of a stream whose run commits batches, or waits for input.
WORKING = ("healthy", "idle", "catching up", "lagging")


def checkpoint_progress_sensor(
    streams: Sequence[StreamSpec],
    checks: Mapping[str, Sequence[dg.AssetCheckKey]] | None = None,
    jobs: Sequence[Any] = (),
    every_s: int = 10,
) -> dg.SensorDefinition:
    """Make the sensor that shows the state of all streams (:func:`exactly_once.diagnosis.health`).

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
            "frozen, in doubt, owner lost, operated by another, failed, stopped), as the check health and as an "
            "observation of the stream's transactions. Requests a recovery when a batch is in doubt, or a stream has "
            "stopped moving, and no run is working on the sink. Notifies a person of trouble that lasts."
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
        judge = Judge(context.instance, histories, watch_policy, teller, lag_moved(tick, found))
        for stream in tick.streams:
            if stream.sink_id not in found:
                tick.missed(stream)
                continue
            sink_state = found[stream.sink_id]
            if isinstance(sink_state, ExactlyOnceError):
                tick.failed(stream, sink_state)
            else:
                tick.add(stream, judge.judged(stream, sink_state, summaries[stream.sink_id], tick.memory(stream)))
        return tick.result(
            events=overview(tick, streams, found, summaries, judge.show), requests=rechecks(tick, streams, checks or {})
        )

    return checkpoint_progress


def lag_moved(tick: Tick, found: Mapping[str, SinkState | ExactlyOnceError]) -> bool:
    """Return whether to show all lags anew: one of them is not what was shown, and that was a while ago."""
    before = {stream.sink_id: tick.memory(stream).get("shown", {}) for stream in tick.streams}
    newest = max((shown.get("at", 0.0) for shown in before.values()), default=0.0)
    if 0 <= time.time() - newest < SHOW_EVERY_S:
        return False
    return any(isinstance(s, SinkState) and s.lags and s.lag != before[i].get("lag") for i, s in found.items())


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


@dataclass(frozen=True)
class Judge:
    """Judges the streams of one tick; ``show`` is :func:`lag_moved`."""

    instance: dg.DagsterInstance
    histories: Histories
    policy: WatchPolicy
    teller: Teller
    show: bool = False

    def judged(self, stream: StreamSpec, sink_state: SinkState, summary: StreamHistory, last: Memory) -> Judged:
        """Judge one stream, ask for a recovery if it needs one, and tell a person of what stays.

        Parameters
        ----------
        last : mapping
            What the last tick kept of it.
        """
        ended = summary.stream is not None and summary.stream.status == "FAILURE"
        history = self.histories.whole(stream) if ended else summary  # why it failed takes a look at its events
        now, limits = history.now, self.policy.limits
        mark = f"{sink_state.checkpoint.last_commit}/{sink_state.progress.last_decided}"
        stands = sink_state.lag > 0 and mark == last.get("mark")
        since = last.get("waits_since", now) if stands else now
        facts = facts_of(self.instance, stream, sink_state, history, last.get("lag"), now - since)
        facts, moves = with_quiet_start(facts, history, last.get("moves", {}))
        state, owner = health(facts, limits), sink_state.inspection.owner
        request, more = None, ""
        if need := need_of(state, limits, now):
            request, more = ask(stream, self.histories.whole(stream), need, self.policy, owner)
        wrong, incident = trouble(facts, limits), last.get("incident", {})
        recovering = any(r.in_progress for r in history.recoveries)  # it has not helped yet
        if wrong is not None or incident.get("told") or not recovering:
            incident, unsaid = self.teller.tell(stream, wrong, f"{state.text}{more}", incident, now, more)
            more += unsaid
        memory = {
            "lag": sink_state.lag,
            "shown": {"lag": sink_state.lag, "at": time.time()} if self.show else last.get("shown", {}),
            "state": state_of(state.code),
            "failed": history.stream.run_id if state.code == "HEALTH-FAILED" and history.stream else "",
            "code": state.evidence.get("failure", ""),
            "calm": calm(state),
            "observed": last.get("observed", 0.0),
            "mark": mark,
            "waits_since": since,
            "moves": moves,
            "incident": incident,
        }
        changed = any(memory[name] != last.get(name, "") for name in ("state", "failed"))
        due = changed or time.time() - memory["observed"] >= OBSERVE_EVERY_S
        moved = self.show and memory["state"] not in WORKING and sink_state.lag != last.get("shown", {}).get("lag")
        events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
        if due and owner is not None:
            events.append(transactions(stream.asset, sink_state, state, more))
        if (
            due or moved
        ) and state.code != "HEALTH-NEVER-USED":  # whose check stays grey: nobody has looked at anything
            events += input_lags(stream, sink_state.lags, sink_state.measured)
            measured = sink_state.measured if sink_state.lags else None
            events.append(evaluation(stream, state, more, history.stream, measured))
        if due:
            memory["observed"] = time.time()
        return Judged(f"{state.code}: {state.text}{more}", not calm(state) or bool(more), request, events, memory)


def with_quiet_start(facts: SinkFacts, history: StreamHistory, last: Memory) -> tuple[SinkFacts, dict[str, Any]]:
    """Return the facts with how long the start of a run has used no processor, and what the next tick should know."""
    run = run_at_work(history, facts.sink.owner)
    used_s = cpu_of(run) if run is not None and facts.worker is not None and not facts.worker.begun else None
    if run is None or used_s is None or facts.stream is None or facts.worker is None:
        return facts, {}
    before = last if last.get("run") == run.run_id else {"cpu_s": -1.0, "at": history.now}
    moved = used_s - before["cpu_s"] > MOVING_SHARE * (history.now - before["at"])
    since = history.now if moved else before["since"]
    worker = replace(facts.worker, quiet_s=history.now - since)
    moves = {"run": run.run_id, "cpu_s": used_s, "at": history.now, "since": since}
    return replace(facts, stream=replace(facts.stream, worker=worker)), moves


def overview(
    tick: Tick,
    streams: Sequence[StreamSpec],
    found: Mapping[str, SinkState | ExactlyOnceError],
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
        state, at_rest = str(memory.get("state", "")), bool(memory.get("calm"))
        if not isinstance(sink_state, SinkState):
            sink_state, state, at_rest = None, "not checked", False
        elif state == "failed":
            state = f"failed ({memory['code']})"
        rows.append(StreamRow(stream, state, sink_state, run, tick.said(stream), at_rest))
    measured = [row.sink_state.measured for row in rows if row.sink_state is not None and row.sink_state.measured]
    return [all_streams(rows, min(measured, default=time.time()))]
