"""``stale_transactions``: transactions that hold readers back for longer than any batch should."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import dagster as dg

from exactly_once.deadline import Deadline
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.kafka.leaders import Hanging, find_hanging
from exactly_once.kafka.transactions import describe, list_transactions
from exactly_once.ops.findings import Inspection, OpenTransaction, sink_of
from exactly_once.ops.inspection import UNDER_WAY, inspect_sink
from resources.kafka import KafkaTransactionalProducerFactory
from sensors.gate import Wish, ask
from sensors.history import read_history
from sensors.settings import WatchPolicy
from sensors.stream import StreamSpec
from sensors.tick import BUDGET_S, EVERY_30_S, default_status, ended, read_cursor, write_cursor

#: A tick describes this many foreign transactions; a cluster may have thousands, and the sensor may not end them.
FOREIGN_AT_MOST = 200

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
            f"hanging, and no coordinator will end them: {_some(f.hanging_ours)}. To end them, run `exactly-once "
            "transactions abort --hanging NAME` and read what it says"
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


def stale_transactions_sensor(
    stream: StreamSpec, name: str = "stale_transactions", interval_s: int = EVERY_30_S
) -> dg.SensorDefinition:
    """Make the sensor over :func:`verdict` for one stream."""

    @dg.sensor(
        name=name,
        job_name=stream.recovery_job,
        minimum_interval_seconds=interval_s,
        default_status=default_status(),
        description=(
            f"Looks for transactions of {stream.sink_id} that have been open for longer than the watch policy allows, "
            "by asking the coordinators, and from time to time for hanging ones, by asking the partition leaders. "
            "Requests a recovery when no run is working on the sink. Names foreign transactions, and never touches "
            "them."
        ),
    )
    def stale_transactions(
        context: dg.SensorEvaluationContext, kafka: KafkaTransactionalProducerFactory, watch_policy: WatchPolicy
    ) -> dg.SensorResult:
        last, now = read_cursor(context.cursor), time.time()
        checked, told = last.get("checked", 0.0), last.get("told", {})
        deadline = Deadline(BUDGET_S)
        try:
            inspection = inspect_sink(kafka.connection(), stream.sink_id, BUDGET_S)
            if now - checked >= watch_policy.hanging_every_s:
                told = _others(kafka.connection(), stream, inspection, watch_policy, deadline)
                checked = now
        except ExactlyOnceError as error:
            return ended(context, f"{error} The sensor did nothing.")
        stale = tuple(t for t in inspection.open if t.age_s > watch_policy.stale_after_s)
        found = verdict(
            Facts(stale, len(inspection.open), **{kind: tuple(names) for kind, names in told.items()}), watch_policy
        )
        request, message = None, f"{found.message}."
        if found.incident is not None:
            history = read_history(context.instance, stream)
            wish, age = Wish(found.incident, message), f"{stale[0].age_s:.0f}"
            request, answer = ask(stream, history, wish, watch_policy, inspection.owner, oldest_age_s=age)
            message += answer
        return ended(context, message, request, write_cursor(checked=checked, told=told))

    return stale_transactions


def _others(
    connection: Connection, stream: StreamSpec, inspection: Inspection, policy: WatchPolicy, deadline: Deadline
) -> dict[str, list[str]]:
    """Find the other transactions that hold back readers of the sink's topics, by the fields of :class:`Facts`."""
    hanging = find_hanging(connection, stream.outputs, policy.hanging_older_than_s, max(0.5, deadline.left))
    ours = {h.producer_id for r in inspection.recent for h in r.decision.transactions}

    def is_ours(h: Hanging) -> bool:
        known = h.transactional_id
        return h.producer_id in ours or (known is not None and sink_of(known) == stream.sink_id)

    with Admin(connection, max(0.5, deadline.left)) as admin:
        listed = [t.transactional_id for t in list_transactions(admin, "", UNDER_WAY)]
        others = [i for i in listed if sink_of(i) != stream.sink_id][:FOREIGN_AT_MOST]
        limit_ms = time.time() * 1000 - policy.stale_after_s * 1000
        foreign = [
            d.transactional_id
            for d in describe(admin, others).values()
            if 0 <= d.started_ms < limit_ms and any(topic in stream.outputs for topic, _ in d.partitions)
        ]
    return {
        "hanging_ours": [h.name for h in hanging if is_ours(h)],
        "hanging_foreign": [h.name for h in hanging if not is_ours(h)],
        "foreign": sorted(foreign),
    }


def _stale(stale: Sequence[OpenTransaction]) -> str:
    return _some([f"{t.transactional_id} ({t.verdict}, {t.age_s:.0f} s)" for t in stale])


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
