"""``exactly_once_stale_transactions``: transactions that hold readers back for longer than any batch should."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from dagster_exactly_once.names import HANGING_JOB, RECOVERY_JOB, STALE_SENSOR
from dagster_exactly_once.notify import Notifier
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.runs.history import Histories
from dagster_exactly_once.runs.operator import alive_of
from dagster_exactly_once.runs.spec import StreamSpec
from dagster_exactly_once.sensors.fan_out import ask_each
from dagster_exactly_once.sensors.incidents import Teller, Trouble
from dagster_exactly_once.sensors.recovery_requests import RecoveryNeed, ask
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.sensors.tick import Judged, Memory, Tick, default_status, interval
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError, NotAuthorized
from exactly_once.inspection.findings import Inspection, OpenTransaction, sink_of
from exactly_once.inspection.sink import UNDER_WAY, inspect_sink
from exactly_once.inspection.words import plural
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.errors import lacking
from exactly_once.txn.coordinators import check_all_seen, describe, list_transactions
from exactly_once.txn.leaders import Hanging, find_hanging

#: A tick describes this many foreign transactions; a cluster may have thousands, and the sensor may not end them.
FOREIGN_AT_MOST = 200

#: A tick asks the partition leaders for this many streams, and the next ticks for the others: it costs more than the
#: rest of a reading.
LEADERS_AT_ONCE = 10

#: Beside the fields of :class:`StaleFacts`: sentences about what a tick left out, each with the reason and the way out.
NOT_READ = "not_read"

#: What a tick found of other transactions: names, by the fields of :class:`StaleFacts`, and :data:`NOT_READ`.
Told = Mapping[str, list[str]]

#: A message has this many names; the asset page and the command line list them all.
NAMED = 3


@dataclass(frozen=True)
class StaleFacts:
    """The facts of a tick.

    Attributes
    ----------
    stale : tuple of OpenTransaction
        The sink's transactions that are older than the policy, oldest first.
    hanging_ours, hanging_foreign : tuple of str
        Transactions that no coordinator will end: of this sink, according to the commit log or a transactional id, and
        others.
    unknown : tuple of str
        Transactions of unknown writers that are as old as hanging ones: they hang, or belong to transactional ids that
        this principal may not see.
    foreign : tuple of str
        Other transactional ids that have held readers of the sink's topics back for longer than the policy.
    """

    stale: tuple[OpenTransaction, ...] = ()
    open: int = 0
    hanging_ours: tuple[str, ...] = ()
    hanging_foreign: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True)
class StaleVerdict:
    """The sentence of the tick, and the name of the incident if a recovery is needed."""

    message: str
    incident: str | None = None


def verdict(f: StaleFacts, policy: WatchPolicy) -> StaleVerdict:
    """Judge the open transactions. A recovery ends those of the sink, and no foreign ones."""
    said = []
    if f.stale:
        worst = f.stale[0]
        left_s = max(0.0, worst.timeout_s - worst.age_s)
        named = _some([f"{t.transactional_id} ({t.verdict}, {t.age_s:.0f} s)" for t in f.stale])
        said.append(
            f"{plural(len(f.stale), 'transaction')} of the sink {'has' if len(f.stale) == 1 else 'have'} been open for "
            f"longer than {policy.stale_after_s:g} s: {named}. The brokers will abort the oldest in {left_s:.0f} s"
        )
    if f.hanging_ours:
        said.append(
            f"no coordinator will end these hanging transactions of the sink: {_some(f.hanging_ours)}. The next start "
            f"does, or the job {RECOVERY_JOB}. If one stays, launch the job {HANGING_JOB} with its name as transaction "
            "(first as a dry run), or run `exactly-once transactions abort --hanging NAME`"
        )
    if f.hanging_foreign:
        said.append(
            f"transactions that are not of this sink hang on its topics: {_some(f.hanging_foreign)}. This sensor does "
            "not end them; the owners of their applications can, with kafka-transactions.sh abort"
        )
    if f.unknown:
        said.append(
            f"old transactions of unknown writers hold readers back: {_some(f.unknown)}. They hang, or their "
            "applications have transactional ids that this principal may not see"
        )
    if f.foreign:
        said.append(
            f"transactions of other applications hold back readers of the sink's topics: {_some(f.foreign)}. This "
            "sensor does not end them; their own clients or their timeouts do"
        )
    if not said:
        return StaleVerdict(
            f"No transaction has been open for longer than {policy.stale_after_s:g} s (newer ones: {f.open})"
        )
    oldest = f.stale[0] if f.stale else None
    incident = f"stale/{oldest.transactional_id}/{oldest.producer_id}.{oldest.producer_epoch}" if oldest else None
    return StaleVerdict(". ".join(s[0].upper() + s[1:] for s in said), incident)


def trouble(f: StaleFacts, worked_on: bool) -> Trouble | None:
    """Return what a person must know, should it stay: what nothing here ends by itself.

    Decided transactions are left to ``exactly_once_checkpoint_progress``: they are in doubt, with a notice of its own.
    Foreign ones have other people.

    Parameters
    ----------
    worked_on : bool
        Whether a run of the stream, or a recovery, is at work on the sink.
    """
    if f.hanging_ours:
        return Trouble("HEALTH-HANGING", at_once=True)
    if not worked_on and any(t.verdict != "decided" for t in f.stale):
        return Trouble("HEALTH-STALE-TRANSACTIONS")
    return None


def stale_transactions_sensor(streams: Sequence[StreamSpec], every_s: int = 30) -> dg.SensorDefinition:
    """Make the sensor over :func:`verdict` for all streams, and for backfills, whose sinks are their own."""
    ours = frozenset(stream.sink_id for stream in streams)

    @dg.sensor(
        name=STALE_SENSOR,
        job_name=RECOVERY_JOB,
        minimum_interval_seconds=interval(every_s),
        default_status=default_status(),
        description=(
            "Finds transactions of the streams and their backfills that have been open for longer than the watch "
            "policy allows, by asking the coordinators, and from time to time for hanging ones, by asking the "
            "partition leaders. Requests a recovery when no run is working on the sink. Names foreign transactions, "
            "and never touches them. Notifies a person of hanging transactions, and of old ones that no run is "
            "working on."
        ),
    )
    def stale_transactions(
        context: dg.SensorEvaluationContext,
        kafka: KafkaTransactionalProducerFactory,
        watch_policy: WatchPolicy,
        exactly_once_notify: Notifier,
    ) -> dg.SensorResult:
        tick, now = Tick(context, streams), time.time()
        teller = Teller(exactly_once_notify, "transactions", watch_policy.notice_after_s)
        due = _due(tick, now, watch_policy)

        def read(stream: StreamSpec, budget_s: float) -> SinkReading:
            connection, deadline = kafka.connection(), Deadline(budget_s)
            inspection = inspect_sink(connection, stream.sink_id, budget_s, alive_of=alive_of(context.instance))
            if stream.sink_id not in due:
                return SinkReading(inspection, None)
            try:
                told = _others(connection, stream, ours, inspection, watch_policy, deadline, _told(tick.memory(stream)))
            except ExactlyOnceError as error:
                # what the coordinators say of the sink is judged all the same
                left_out = _left_out(error, "this sensor did not look for hanging and other transactions")
                told = {**_told(tick.memory(stream)), NOT_READ: [left_out]}
            return SinkReading(inspection, told)

        found = ask_each(tick.streams, read, tick.deadline)
        histories = Histories(context.instance)
        for stream in tick.streams:
            reading = found.get(stream.sink_id)
            if reading is None:
                tick.missed(stream)
            elif isinstance(reading, ExactlyOnceError):
                last = tick.memory(stream)  # its leaders count as asked: those of the others come first
                tick.failed(stream, reading, memory={**last, "tried": now} if stream.sink_id in due else None)
            else:
                last = tick.memory(stream)
                tick.add(stream, judge_stale(stream, reading, histories, watch_policy, last, now, teller))
        return tick.result()

    return stale_transactions


@dataclass(frozen=True)
class SinkReading:
    """The brokers' answers about one sink; ``told`` is None when it was not the other transactions' time."""

    inspection: Inspection
    told: Told | None


def judge_stale(
    stream: StreamSpec,
    reading: SinkReading,
    histories: Histories,
    policy: WatchPolicy,
    last: Memory,
    now: float,
    teller: Teller,
) -> Judged:
    """Judge one stream, ask for a recovery if it needs one, and tell a person of what stays. ``last`` is what the last
    tick kept of it.
    """
    told = _told(last) if reading.told is None else reading.told
    others = {kind: tuple(names) for kind, names in told.items() if kind != NOT_READ}
    checked = last.get("checked", 0.0) if reading.told is None else now
    stale = tuple(t for t in reading.inspection.open if t.age_s > policy.stale_after_s)
    facts = StaleFacts(stale, len(reading.inspection.open), **others)
    found = verdict(facts, policy)
    request, message, worked_on = None, f"{found.message}.", False
    if found.incident is not None:
        need = RecoveryNeed(found.incident, message)
        history, owner = histories.whole(stream), reading.inspection.owner
        worked_on = any(
            run.works and not run.frozen for run in (*history.recoveries, *history.streams, *history.others)
        )
        request, answer = ask(stream, history, need, policy, owner)
        message += answer
    incident, unsaid = teller.tell(stream, trouble(facts, worked_on), message, last.get("incident", {}), now)
    attention = bool(stale) or any(others.values()) or bool(unsaid)
    left_out = "".join(f" {sentence}" for sentence in told.get(NOT_READ, ()))
    memory = {"checked": checked, "told": told, "incident": incident}
    return Judged(f"{message}{unsaid}{left_out}", attention, request, memory=memory)


def _due(tick: Tick, now: float, policy: WatchPolicy) -> set[str]:
    """Return the sinks of which to ask the partition leaders now: not all in one tick, the longest ago first, also
    when reading the sink failed before it came to that.
    """
    last = {s.sink_id: tick.memory(s) for s in tick.streams}
    asked = {sink_id: max(m.get("checked", 0.0), m.get("tried", 0.0)) for sink_id, m in last.items()}
    due = [sink_id for sink_id, m in last.items() if now - m.get("checked", 0.0) >= policy.hanging_every_s]
    return set(sorted(due, key=lambda sink_id: asked[sink_id])[:LEADERS_AT_ONCE])


def _told(last: Memory) -> Told:
    """Return what the partition leaders said when they were last asked."""
    found: Told = last.get("told", {})
    return found


def _others(
    connection: Connection,
    stream: StreamSpec,
    ours: frozenset[str],
    inspection: Inspection,
    policy: WatchPolicy,
    deadline: Deadline,
    before: Told,
) -> Told:
    """Find the other transactions that hold back readers of the sink's topics, by the fields of :class:`StaleFacts`.
    Those of ``ours`` are not foreign: the sentence of their own stream names them.

    Of topics that may not be read, it returns the hanging transactions that the tick ``before`` found: they have not
    gone because a right has.
    """
    with Admin(connection, max(0.5, deadline.left)) as admin:
        scope = _scope(admin, stream)
        foreign = _foreign(admin, stream, ours, policy)
    hanging = find_hanging(connection, scope.readable, policy.hanging_older_than_s, max(0.5, deadline.left))
    known = {h.producer_id for r in inspection.recent for h in r.decision.transactions}

    def kind(h: Hanging) -> str:
        name = h.transactional_id
        if h.producer_id in known or (name is not None and sink_of(name) == stream.sink_id):
            return "hanging_ours"
        return "hanging_foreign" if name is not None or scope.all_ids else "unknown"

    told: dict[str, list[str]] = {"foreign": foreign, NOT_READ: scope.left_out}
    for which in ("hanging_ours", "hanging_foreign", "unknown"):
        named = {name: name.rpartition("@")[0].rpartition("-")[0] for name in before.get(which, ())}
        kept = [name for name, topic in named.items() if topic in scope.unread]
        told[which] = kept + [h.name for h in hanging if kind(h) == which]
    return told


@dataclass(frozen=True)
class _Scope:
    """The scope in which this principal may see the transactions on a stream's outputs.

    ``all_ids`` is whether it sees every transactional id; ``left_out`` are the sentences about what it does not see.
    """

    readable: list[str]
    unread: list[str]
    all_ids: bool
    left_out: list[str]


def _scope(admin: Admin, stream: StreamSpec) -> _Scope:
    unread, left_out, all_ids = admin.unreadable(list(stream.outputs)), [], True
    if unread:
        outputs = f" and on {len(unread) - 1} more outputs" if len(unread) > 1 else ""
        missing = f"this sensor does not look for hanging transactions on it{outputs}"
        left_out.append(_left_out(lacking(["READ"], unread[0]), missing))
    try:
        check_all_seen(admin)
    except NotAuthorized as error:
        all_ids = False
        left_out.append(_left_out(error, "this sensor may miss transactions of other applications"))
    return _Scope([topic for topic in stream.outputs if topic not in unread], unread, all_ids, left_out)


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


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
