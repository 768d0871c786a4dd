"""``exactly_once_checkpoint_progress``: the state of a stream, by its checkpoint, commit log, input and runs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dagster as dg

from dagster_exactly_once.names import CHECKS_JOB, NOTIFY, PROGRESS_SENSOR, RECOVERY_JOB
from dagster_exactly_once.runs.history import StreamHistory
from dagster_exactly_once.runs.operator import alive_of, run_at_work
from dagster_exactly_once.runs.process import cpu_of
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.incidents import NoticeSender
from dagster_exactly_once.sensors.observation import (
    HEALTH,
    all_streams,
    calm,
    health_as_check,
    input_lags,
    transactions,
    trouble,
)
from dagster_exactly_once.sensors.recovery_requests import ask, need_of
from dagster_exactly_once.sensors.sink_state import SinkState, facts_of, sink_states
from dagster_exactly_once.sensors.tick import Judged, Memory, Tick, sensor_over
from exactly_once.errors import ExactlyOnceError
from exactly_once.tools.diagnosis import Diagnosis, Severity, SinkFacts, health, state_of

#: Seconds between two observations of an unchanged state: enough points for a plot, few enough rows for a year.
OBSERVE_EVERY_S = 600.0

#: Seconds between two observations of a lag that moves: every third tick. A person who watches a stream stand still
#: sees its lag grow, and the event table grows no faster than by the first hour of a run's reports.
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
    """Make the sensor that shows the state of all streams (:func:`exactly_once.tools.diagnosis.health`).

    ``checks`` are, by sink id, those to evaluate when a stream begins to work, or stays failed: until the schedule runs
    they would tell of the time before. ``jobs`` are the recovery, and the job of the checks.
    """

    @sensor_over(
        streams,
        PROGRESS_SENSOR,
        every_s,
        ["kafka", "checkpoints", "watch_policy", NOTIFY],
        **({"jobs": list(jobs)} if jobs else {"job_name": RECOVERY_JOB}),
        description=(
            "Reports the state of each stream (healthy, idle, catching up, starting, slow start, lagging, stalled, "
            "frozen, in doubt, owner lost, operated by another, orphaned, failed, stopped), as the check health and as "
            "an observation of the stream's transactions. Requests a recovery when a batch is in doubt, or a stream "
            "has stopped moving, and no run is working on the sink. Notifies a person of trouble that lasts."
        ),
    )
    def checkpoint_progress(tick: Tick) -> dg.SensorResult:
        at = tick.context.resources
        found = sink_states(at.kafka, at.checkpoints, tick.streams, tick.deadline, alive_of(tick.context.instance))
        show = lag_moved(tick, found)
        sender = NoticeSender(getattr(at, NOTIFY), "health", at.watch_policy.notice_after_s, tick.location)
        tick.each(found, partial(judge_progress, tick, sender, show))
        changed = any(changes(tick.before[i], memory) for i, memory in tick.memory.items())
        first = [tick.judged[stream.sink_id] for stream in streams[:1]]
        # also when a lag moved, or this tick observes the first stream anyway
        table = changed or show or any(judged.events for judged in first)
        events = [all_streams(tick, streams, found)] if table else []
        return tick.result(events=events, requests=rechecks(tick, streams, checks or {}))

    return checkpoint_progress


def lag_moved(tick: Tick, found: Mapping[str, SinkState | ExactlyOnceError]) -> bool:
    """Return whether to show all lags anew: one of them is not what was shown, and that was a while ago."""
    before = {sink_id: memory.get("shown", {}) for sink_id, memory in tick.memory.items()}
    newest = max((shown.get("at", 0.0) for shown in before.values()), default=0.0)
    if 0 <= time.time() - newest < SHOW_EVERY_S:
        return False
    return any(isinstance(s, SinkState) and s.lags and s.lag != before[i].get("lag") for i, s in found.items())


def changes(before: Memory, memory: Memory) -> bool:
    """Return whether a stream has another state than at the last tick, or another run of it has failed."""
    return any(memory.get(name, "") != before.get(name, "") for name in ("state", "failed"))


def rechecks(
    tick: Tick, streams: Sequence[StreamSpec], checks: Mapping[str, Sequence[dg.AssetCheckKey]]
) -> list[dg.RunRequest]:
    """Request the checks of the streams that began to work since the last tick, or stay failed: one run for all. A
    stream whose next run starts at this moment is left alone: the checks would take the processors that it needs.
    """
    turned = []
    for stream in streams:
        before, now = tick.before[stream.sink_id], tick.memory[stream.sink_id]
        works = now.get("state") in WORKING and before.get("state") not in WORKING
        stays = now.get("state") == before.get("state") == "failed" and now.get("failed") != before.get("checked")
        if stream.sink_id in checks and (works or stays):
            turned.append(stream)
            tick.memory[stream.sink_id] = {**now, "checked": now.get("failed", "")}
    keys = [key for stream in turned for key in checks[stream.sink_id]]
    return [dg.RunRequest(job_name=CHECKS_JOB, asset_check_keys=keys)] if keys else []


def judge_progress(tick: Tick, sender: NoticeSender, show: bool, stream: StreamSpec, sink_state: SinkState) -> Judged:
    """Judge one stream, ask for a recovery if it needs one, and tell a person of what stays."""
    histories, summary = tick.histories, tick.summaries[stream.sink_id]
    ended = summary.stream is not None and summary.stream.status == "FAILURE"
    history = histories.whole(stream) if ended else summary  # why it failed takes a look at its events
    last, now, lag = tick.memory[stream.sink_id], histories.now, sink_state.lag
    policy = tick.context.resources.watch_policy
    mark = f"{sink_state.checkpoint.last_commit}/{sink_state.progress.last_decided}"
    since = last.get("waits_since", now) if lag > 0 and mark == last.get("mark") else now
    waits = {"last_lag": last.get("lag"), "waited_s": now - since}
    facts = facts_of(tick.context.instance, stream, sink_state, history, **waits)
    facts, moves = with_quiet_start(facts, history, last.get("moves", {}))
    facts, orphaned = with_orphan(facts, history, last.get("orphaned", {}))
    state, owner = health(facts, policy.limits), sink_state.inspection.owner
    need = need_of(state, policy.limits, now)
    requests, more = ask(stream, histories.whole(stream), need, policy, owner) if need else ([], "")
    wrong, incident = trouble(facts, policy.limits), last.get("incident", {})
    recovering = any(r.in_progress for r in history.recoveries)  # it has not helped yet
    if wrong is not None or incident.get("told") or not recovering:
        incident, unsaid = sender.report(
            stream, wrong, f"{state.text}{more}", incident, now, more, is_down(facts, state)
        )
        more += unsaid
    memory = {
        "lag": lag,
        "shown": {"lag": lag, "at": time.time()} if show else last.get("shown", {}),
        "state": state_of(state.code),
        "failed": history.stream.run_id if state.code == "HEALTH-FAILED" and history.stream else "",
        "checked": last.get("checked", ""),
        "code": state.evidence.get("failure", ""),
        "calm": calm(state),
        "observed": last.get("observed", 0.0),
        "mark": mark,
        "waits_since": since,
        "moves": moves,
        "orphaned": orphaned,
        "incident": incident,
    }
    due = changes(last, memory) or time.time() - memory["observed"] >= OBSERVE_EVERY_S
    moved = show and memory["state"] not in WORKING and lag != last.get("shown", {}).get("lag")
    events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
    if due and owner is not None:
        events.append(transactions(stream.asset, sink_state, facts, state, more))
    if (due or moved) and state.code != "HEALTH-NEVER-USED":  # whose check stays grey: nobody has looked at anything
        events += input_lags(stream, sink_state.lags, sink_state.measured)
        key, shown = stream.asset_keys[0], health_as_check(stream, state, sink_state, history.stream, more)
        events.append(dg.AssetCheckEvaluation(dg.AssetKey.from_user_string(key), HEALTH, **shown))
    if due:
        memory["observed"] = time.time()
    return Judged(f"{state.code}: {state.text}{more}", not calm(state) or bool(more), requests, events, memory)


def is_down(facts: SinkFacts, state: Diagnosis) -> bool:
    """Return whether the stream still needs somebody, whatever trouble has gone: nobody reads the input that waits."""
    stopped = state.severity is not Severity.OK or facts.at_work is False
    return not calm(state) or (facts.stream is not None and facts.stream.lag > 0 and stopped)


def with_orphan(facts: SinkFacts, history: StreamHistory, last: Memory) -> tuple[SinkFacts, dict[str, Any]]:
    """Return the facts with the deleted run whose driver earlier ticks saw at work, until the stream runs again, and
    what the next tick should know: once that driver has ended too, nothing else tells that nobody asked it to.
    """
    stream, newest = facts.stream, history.stream.run_id if history.stream else ""
    if stream is None or stream.worker is not None:
        return facts, {}
    if stream.orphaned:
        of_newest = facts.sink.owner is not None and newest and facts.sink.owner.claim.operator.endswith(newest)
        return facts, {} if of_newest else {"run": stream.orphaned, "newest": newest}
    if not last or last.get("newest") != newest:
        return facts, {}
    return replace(facts, stream=replace(stream, orphaned=last["run"])), dict(last)


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
