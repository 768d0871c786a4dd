"""``exactly_once_stale_transactions``: transactions that hold readers back for longer than any batch should."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import dagster as dg

from dagster_exactly_once.names import NOTIFY, RECOVERY_JOB, STALE_SENSOR
from dagster_exactly_once.runs.operator import alive_of, stream_facts
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.incidents import NoticeSender
from dagster_exactly_once.sensors.recovery_requests import ask, need_of
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.sensors.tick import Judged, Tick, ask_each, sensor_over
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError, NotAuthorized
from exactly_once.inspection.findings import Inspection, sink_of
from exactly_once.inspection.hanging import attribute
from exactly_once.inspection.sink import UNDER_WAY, inspect_sink
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import lacking
from exactly_once.tools.diagnosis import Diagnosis, SinkFacts, diagnose
from exactly_once.tools.diagnosis.facts import HangingName
from exactly_once.tools.diagnosis.registry import SYMPTOMS
from exactly_once.txn.coordinators import check_all_seen, describe, list_transactions
from exactly_once.txn.leaders import find_hanging

#: The most foreign transactions that a tick describes; a cluster may have thousands, and the sensor may not end them.
FOREIGN_AT_MOST = 200

#: The most streams for which a tick asks the partition leaders, which costs more than the rest of a reading; the next
#: ticks ask for the others.
LEADERS_AT_ONCE = 10

#: The entries of a tick's memory for hanging transactions, by the kind of their owner (:class:`HangingName`).
OWNERS = {"hanging_ours": "ours", "hanging_foreign": "foreign", "unknown": "unknown"}

#: The entry with sentences about what a tick left out, each with the reason and the remedy.
NOT_READ = "not_read"

#: The names of other transactions that a tick saw, by :data:`OWNERS`, ``foreign`` and :data:`NOT_READ`.
OthersSeen = Mapping[str, list[str]]


class SinkReading(NamedTuple):
    """The brokers' answers about one sink; ``others`` is None when this tick did not ask for other transactions."""

    inspection: Inspection
    others: OthersSeen | None = None


def stale_transactions_sensor(streams: Sequence[StreamSpec], every_s: int = 30) -> dg.SensorDefinition:
    """Make the sensor for all streams, and for backfills, whose sinks are their own."""
    ours = frozenset(stream.sink_id for stream in streams)

    @sensor_over(
        streams,
        STALE_SENSOR,
        every_s,
        ["kafka", "watch_policy", NOTIFY],
        job_name=RECOVERY_JOB,
        description=(
            "Finds transactions of the streams and their backfills that have been open for longer than the watch "
            "policy allows, or that nobody works on, by asking the coordinators, and from time to time hanging ones, "
            "by asking the partition leaders. Requests a recovery when no run is working on the sink. Names foreign "
            "transactions, and never touches them. Notifies a person of hanging transactions, and of old ones that no "
            "run is working on."
        ),
    )
    def stale_transactions(tick: Tick) -> dg.SensorResult:
        at = tick.context.resources
        policy, now = at.watch_policy, time.time()
        due = _due(tick, now, policy)
        found = ask_each(tick.streams, partial(_read, tick, due, ours), tick.deadline)
        sender = NoticeSender(getattr(at, NOTIFY), "transactions", policy.notice_after_s, tick.location)
        for sink_id in due:
            if isinstance(found.get(sink_id), ExactlyOnceError):  # its leaders count as asked: others come first
                tick.memory[sink_id] = {**tick.memory[sink_id], "tried": now}
        tick.each(found, partial(judge_stale, tick, sender))
        return tick.result()

    return stale_transactions


def _read(tick: Tick, due: set[str], ours: frozenset[str], stream: StreamSpec, budget_s: float) -> SinkReading:
    connection, deadline = tick.context.resources.kafka.connection(), Deadline(budget_s)
    inspection = inspect_sink(connection, stream.sink_id, budget_s, alive_of=alive_of(tick.context.instance))
    if stream.sink_id not in due:
        return SinkReading(inspection)
    before: OthersSeen = tick.memory[stream.sink_id].get("told", {})
    try:
        policy = tick.context.resources.watch_policy
        return SinkReading(inspection, _others(connection, stream, ours, inspection, policy, deadline, before))
    except ExactlyOnceError as error:
        # what the coordinators say of the sink is judged all the same
        left_out = _left_out(error, "this sensor did not look for hanging and other transactions")
        return SinkReading(inspection, {**before, NOT_READ: [left_out]})


def judge_stale(tick: Tick, sender: NoticeSender, stream: StreamSpec, reading: SinkReading) -> Judged:
    """Judge one stream, ask for a recovery if it needs one, and tell a person of what stays."""
    histories = tick.histories
    policy, last, now = tick.context.resources.watch_policy, tick.memory[stream.sink_id], histories.now
    others: OthersSeen = last.get("told", {}) if reading.others is None else reading.others
    limits, sink = policy.limits, reading.inspection
    hanging = tuple(HangingName(name, owner) for kind, owner in OWNERS.items() for name in others.get(kind, ()))
    stream_now = stream_facts(tick.context.instance, stream, tick.summaries[stream.sink_id], sink.owner)
    facts = SinkFacts(sink, hanging=hanging, foreign=tuple(others.get("foreign", ())), stream=stream_now)
    symptoms = [d for d in diagnose(facts, limits) if SYMPTOMS[d.code].needs in ("", "hanging")]
    message = " ".join(f"{d.code}: {d.text}" for d in symptoms)
    if not symptoms:
        message = f"No transaction is open for longer than a batch may take (open now: {len(sink.open)})."
    # a batch in doubt is for exactly_once_checkpoint_progress, unless that sensor does not ask
    needs = (need_of(d, replace(limits, completing_s=limits.stale_after_s), now) for d in symptoms)
    need = next(filter(None, needs), None)
    requests, answer = ask(stream, histories.whole(stream), need, policy, sink.owner) if need else ([], "")
    down = bool(stream.source_keys) and facts.at_work is False  # a backfill that nobody runs is at rest
    incident = last.get("incident", {})
    incident, unsaid = sender.report(stream, trouble(symptoms), message + answer, incident, now, answer, down)
    left_out = "".join(f" {sentence}" for sentence in others.get(NOT_READ, ()))
    checked = last.get("checked", 0.0) if reading.others is None else now
    memory = {"checked": checked, "told": others, "incident": incident}
    return Judged(f"{message}{answer}{unsaid}{left_out}", bool(symptoms or unsaid), requests, memory=memory)


def trouble(symptoms: Sequence[Diagnosis]) -> Diagnosis | None:
    """Return what a person must know, should it stay: what nothing here ends by itself.

    Decided transactions are left to ``exactly_once_checkpoint_progress``: they are in doubt, with a notice of its own.
    Foreign ones have other people.
    """
    by_code = {d.code: d for d in symptoms}
    stale = by_code.get("HEALTH-STALE-TRANSACTIONS")
    nobody_works = stale if stale is not None and stale.evidence["at_work"] is not True else None
    return by_code.get("HEALTH-HANGING", nobody_works)


def _due(tick: Tick, now: float, policy: WatchPolicy) -> set[str]:
    """Return the sinks of which to ask the partition leaders now: not all in one tick, the longest ago first."""
    last = {s.sink_id: tick.memory[s.sink_id] for s in tick.streams}
    asked = {sink_id: max(m.get("checked", 0.0), m.get("tried", 0.0)) for sink_id, m in last.items()}
    due = [sink_id for sink_id, m in last.items() if now - m.get("checked", 0.0) >= policy.hanging_every_s]
    return set(sorted(due, key=lambda sink_id: asked[sink_id])[:LEADERS_AT_ONCE])


def _others(
    connection: Connection,
    stream: StreamSpec,
    ours: frozenset[str],
    inspection: Inspection,
    policy: WatchPolicy,
    deadline: Deadline,
    before: OthersSeen,
) -> OthersSeen:
    """Find the other transactions that hold back readers of the sink's topics; those of ``ours`` are not foreign.

    Of topics that may not be read, it returns the hanging transactions that the tick ``before`` found: they have not
    gone because a right has.
    """
    with Admin(connection, max(0.5, deadline.left)) as admin:
        readable, unread, left_out = _scope(admin, stream)
        foreign = _foreign(admin, stream, ours, policy)
    leaders = find_hanging(connection, readable, policy.hanging_older_than_s, max(0.5, deadline.left))
    hanging = [HangingName.of(attribute(h, {stream.sink_id: inspection.log}), stream.sink_id) for h in leaders]
    others: dict[str, list[str]] = {"foreign": foreign, NOT_READ: left_out}
    for kind, owner in OWNERS.items():
        named = {name: name.rpartition("@")[0].rpartition("-")[0] for name in before.get(kind, ())}
        kept = [name for name, topic in named.items() if topic in unread]
        others[kind] = kept + [h.name for h in hanging if h.owner == owner]
    return others


def _scope(admin: Admin, stream: StreamSpec) -> tuple[list[str], list[str], list[str]]:
    """Return the outputs of a stream that this principal may read, those that it may not, and sentences about what it
    does not see.
    """
    unread, left_out = admin.unreadable(list(stream.outputs)), []
    if unread:
        outputs = f" and on {len(unread) - 1} more outputs" if len(unread) > 1 else ""
        missing = f"this sensor does not look for hanging transactions on it{outputs}"
        left_out.append(_left_out(lacking(["READ"], unread[0]), missing))
    try:
        check_all_seen(admin)
    except NotAuthorized as error:
        left_out.append(_left_out(error, "this sensor may miss transactions of other applications"))
    return [topic for topic in stream.outputs if topic not in unread], unread, left_out


def _foreign(admin: Admin, stream: StreamSpec, ours: frozenset[str], policy: WatchPolicy) -> list[str]:
    """Return the transactional ids of others that have held readers back for longer than the policy."""
    listed = [t.transactional_id for t in list_transactions(admin, "", UNDER_WAY)]
    others = [i for i in listed if sink_of(i) not in ours][:FOREIGN_AT_MOST]
    limit_ms = time.time() * 1000 - policy.stale_after_s * 1000
    return sorted(
        d.transactional_id
        for d in describe(admin, others).values()
        if 0 <= d.started_ms < limit_ms and any(topic in stream.outputs for topic, _ in d.partitions)
    )


def _left_out(error: ExactlyOnceError, missing: str) -> str:
    """Make the sentence about what a tick did not look for, and why."""
    return f"{error.code}: {error.what}, so {missing}. {error.way_out}."
