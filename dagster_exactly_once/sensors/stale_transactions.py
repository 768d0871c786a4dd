"""``stale_transactions``: transactions that hold readers back for longer than any batch should."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from dagster_exactly_once.names import RECOVERY_JOB
from dagster_exactly_once.notify import Notifier
from dagster_exactly_once.resources.kafka import KafkaTransactionalProducerFactory
from dagster_exactly_once.resources.operator import alive_of
from dagster_exactly_once.sensors.gate import Wish, ask
from dagster_exactly_once.sensors.history import Histories
from dagster_exactly_once.sensors.incidents import Teller, Trouble
from dagster_exactly_once.sensors.looking import look_at
from dagster_exactly_once.sensors.settings import WatchPolicy
from dagster_exactly_once.sensors.stream import StreamSpec
from dagster_exactly_once.sensors.tick import EVERY_30_S, Judged, Memory, Tick, default_status
from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.leaders import Hanging, find_hanging
from exactly_once.kafka.transactions import describe, list_transactions
from exactly_once.ops.findings import Inspection, OpenTransaction, sink_of
from exactly_once.ops.inspection import UNDER_WAY, inspect_sink

#: A tick describes this many foreign transactions; a cluster may have thousands, and the sensor may not end them.
FOREIGN_AT_MOST = 200

#: A tick asks the partition leaders for this many streams, and the next ticks for the others: it costs more than the
#: rest of a look.
LEADERS_AT_ONCE = 10

#: A message has this many names; the asset page and the command line list them all.
NAMED = 3


@dataclass(frozen=True)
class Facts:
    """The facts of a tick.

    Attributes
    ----------
    stale : tuple of OpenTransaction
        The sink's transactions that are older than the policy, oldest first.
    hanging_ours, hanging_foreign : tuple of str
        Transactions that no coordinator will end: of this sink, according to the commit log or a transactional id, and
        others.
    foreign : tuple of str
        Other transactional ids that have held readers of the sink's topics back for longer than the policy.
    """

    stale: tuple[OpenTransaction, ...] = ()
    open: int = 0
    hanging_ours: tuple[str, ...] = ()
    hanging_foreign: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """The sentence of the tick, and the name of the incident if a recovery is needed."""

    message: str
    incident: str | None = None


def verdict(f: Facts, policy: WatchPolicy) -> Verdict:
    """Judge the open transactions. A recovery ends those that coordinators know, but not hanging or foreign ones."""
    said = []
    if f.stale:
        worst = f.stale[0]
        said.append(
            f"{len(f.stale)} transactions have been open for longer than {policy.stale_after_s:g} s: "
            f"{_stale(f.stale)}; the brokers abort the oldest {max(0.0, worst.timeout_s - worst.age_s):.0f} s from now"
        )
    if f.hanging_ours:
        said.append(
            f"hanging, and no coordinator will end them: {_some(f.hanging_ours)}. To end one, launch the job "
            "end_hanging with this name (a dry run first), or run `exactly-once transactions abort --hanging NAME`"
        )
    if f.hanging_foreign:
        said.append(
            f"hanging on the sink's topics but not of this sink: {_some(f.hanging_foreign)}. The sensor leaves them "
            "alone; their owner can end them with kafka-transactions.sh abort"
        )
    if f.foreign:
        said.append(f"transactions of other applications hold the sink's topics and are left alone: {_some(f.foreign)}")
    if not said:
        return Verdict(f"No transaction has been open for longer than {policy.stale_after_s:g} s ({f.open} are open)")
    oldest = f.stale[0] if f.stale else None
    incident = f"stale/{oldest.transactional_id}/{oldest.producer_id}.{oldest.producer_epoch}" if oldest else None
    message = "; ".join(said)
    return Verdict(message[0].upper() + message[1:], incident)


def trouble(f: Facts, worked_on: bool) -> Trouble | None:
    """Return what a person must know, should it stay: what nothing here ends by itself.

    Decided transactions are left to ``checkpoint_progress``: they are in doubt, with a notice of its own. Foreign ones
    have other people.

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


def stale_transactions_sensor(
    streams: Sequence[StreamSpec], name: str = "stale_transactions", interval_s: int = EVERY_30_S
) -> dg.SensorDefinition:
    """Make the sensor over :func:`verdict` for all streams, and for backfills, whose sinks are their own."""
    ours = frozenset(stream.sink_id for stream in streams)

    @dg.sensor(
        name=name,
        job_name=RECOVERY_JOB,
        minimum_interval_seconds=interval_s,
        default_status=default_status(),
        description=(
            "Looks for transactions of the streams and their backfills that have been open for longer than the watch "
            "policy allows, by asking the coordinators, and from time to time for hanging ones, by asking the "
            "partition leaders. Requests a recovery when no run is working on the sink. Names foreign transactions, "
            "and never touches them. Tells a person of hanging transactions, and of old ones that nobody works on."
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

        def look(stream: StreamSpec, budget_s: float) -> Look:
            connection, deadline = kafka.connection(), Deadline(budget_s)
            inspection = inspect_sink(connection, stream.sink_id, budget_s, alive_of=alive_of(context.instance))
            if stream.sink_id not in due:
                return Look(inspection, None)
            return Look(inspection, _others(connection, stream, ours, inspection, watch_policy, deadline))

        found = look_at(tick.streams, look, tick.deadline)
        histories = Histories(context.instance)
        for stream in tick.streams:
            looked = found.get(stream.sink_id)
            if looked is None:
                tick.missed(stream)
            elif isinstance(looked, ExactlyOnceError):
                tick.failed(stream, looked)
            else:
                last = tick.memory(stream)
                tick.add(stream, judge(stream, looked, histories, watch_policy, last, now, teller))
        return tick.result()

    return stale_transactions


@dataclass(frozen=True)
class Look:
    """What the brokers say of one sink; ``told`` are other transactions, by the fields of :class:`Facts`, None when it
    was not their time.
    """

    inspection: Inspection
    told: dict[str, list[str]] | None


def judge(
    stream: StreamSpec,
    look: Look,
    histories: Histories,
    policy: WatchPolicy,
    last: Memory,
    now: float,
    teller: Teller,
) -> Judged:
    """Judge one stream, ask for a recovery if it needs one, and tell a person of what stays. ``last`` is what the last
    tick kept of it.
    """
    told = last.get("told", {}) if look.told is None else look.told
    checked = last.get("checked", 0.0) if look.told is None else now
    stale = tuple(t for t in look.inspection.open if t.age_s > policy.stale_after_s)
    facts = Facts(stale, len(look.inspection.open), **{kind: tuple(names) for kind, names in told.items()})
    found = verdict(facts, policy)
    request, message, worked_on = None, f"{found.message}.", False
    if found.incident is not None:
        wish, age = Wish(found.incident, message), f"{stale[0].age_s:.0f}"
        history, owner = histories.whole(stream), look.inspection.owner
        worked_on = any(run.works for run in (*history.recoveries, *history.streams, *history.others))
        request, answer = ask(stream, history, wish, policy, owner, oldest_age_s=age)
        message += answer
    incident, unsaid = teller.tell(stream, trouble(facts, worked_on), message, last.get("incident", {}), now)
    attention = bool(stale) or any(told.values()) or bool(unsaid)
    memory = {"checked": checked, "told": told, "incident": incident}
    return Judged(f"{message}{unsaid}", attention, request, memory=memory)


def _due(tick: Tick, now: float, policy: WatchPolicy) -> set[str]:
    """Return the sinks whose turn it is to ask the partition leaders: not all in one tick, the longest ago first."""
    checked = {s.sink_id: tick.memory(s).get("checked", 0.0) for s in tick.streams}
    due = [sink_id for sink_id, at in checked.items() if now - at >= policy.hanging_every_s]
    return set(sorted(due, key=lambda sink_id: checked[sink_id])[:LEADERS_AT_ONCE])


def _others(
    connection: Connection,
    stream: StreamSpec,
    ours: frozenset[str],
    inspection: Inspection,
    policy: WatchPolicy,
    deadline: Deadline,
) -> dict[str, list[str]]:
    """Find the other transactions that hold back readers of the sink's topics, by the fields of :class:`Facts`. Those
    of ``ours`` are not foreign: the sentence of their own stream names them.
    """
    hanging = find_hanging(connection, stream.outputs, policy.hanging_older_than_s, max(0.5, deadline.left))
    known = {h.producer_id for r in inspection.recent for h in r.decision.transactions}

    def of_sink(h: Hanging) -> bool:
        name = h.transactional_id
        return h.producer_id in known or (name is not None and sink_of(name) == stream.sink_id)

    with Admin(connection, max(0.5, deadline.left)) as admin:
        listed = [t.transactional_id for t in list_transactions(admin, "", UNDER_WAY)]
        others = [i for i in listed if sink_of(i) not in ours][:FOREIGN_AT_MOST]
        limit_ms = time.time() * 1000 - policy.stale_after_s * 1000
        foreign = [
            d.transactional_id
            for d in describe(admin, others).values()
            if 0 <= d.started_ms < limit_ms and any(topic in stream.outputs for topic, _ in d.partitions)
        ]
    return {
        "hanging_ours": [h.name for h in hanging if of_sink(h)],
        "hanging_foreign": [h.name for h in hanging if not of_sink(h)],
        "foreign": sorted(foreign),
    }


def _stale(stale: Sequence[OpenTransaction]) -> str:
    return _some([f"{t.transactional_id} ({t.verdict}, {t.age_s:.0f} s)" for t in stale])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
