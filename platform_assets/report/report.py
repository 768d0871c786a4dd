"""The report at the end of `make run`: whether every record is there once and in order, and no transaction is open."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from dagster_exactly_once.checks.reader import read_committed
from dagster_exactly_once.resources.transactions import UNDER_WAY
from exactly_once.commitlog.commit_log import read_log
from exactly_once.kafka.admin import Admin, Watermarks
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.names import namespace
from exactly_once.txn.coordinators import list_transactions
from exactly_once_local.duel.departures import events
from platform_assets.constants import FEED_TRANSACTIONAL_ID, FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED, FLIGHTS
from platform_assets.flights.expected import expected_delays
from platform_assets.report.reconcile import Findings, Reconciler

TOPICS = (FLIGHTS, FLIGHT_DELAYS, FLIGHT_DELAYS_REJECTED)
READ_BUDGET_S = 20.0


@dataclass(frozen=True)
class FlightReport:
    """The report on the main job.

    Attributes
    ----------
    open_transactions : tuple of str
        Transactional ids of the feed and the sink that hold back readers.
    watermarks : dict
        By topic and partition.
    decisions : int
        Decided batches since the sink exists; ``decided_records`` counts the records of at least the last 64 of them.
    unproven : int
        Decisions that are not marked as completed.
    """

    findings: Findings
    watermarks: dict[str, dict[int, Watermarks]]
    open_transactions: tuple[str, ...]
    decisions: int
    unproven: int
    rates: dict[str, float] = field(default_factory=dict)

    @property
    def blocked(self) -> list[str]:
        """Partitions where the last stable offset is behind the high watermark: readers wait there."""
        return [f"{t}-{p}" for t, ps in self.watermarks.items() for p, w in ps.items() if w.last_stable != w.high]

    @property
    def problems(self) -> list[str]:
        """All problems, in words; empty without any."""
        said = [f"{name.replace('_', ' ')}: {count:,}" for name, count in self.findings.faults.items()]
        if self.open_transactions:
            said.append(f"transactions left open: {', '.join(self.open_transactions)}")
        if self.blocked:
            said.append(f"last stable offset behind the high watermark: {', '.join(self.blocked)}")
        if self.unproven:
            said.append(f"decided but not proven committed: {self.unproven}")
        return said

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        marks = {t: {p: w._asdict() for p, w in ps.items()} for t, ps in self.watermarks.items()}
        return {
            **asdict(self.findings),
            "watermarks": marks,
            "open_transactions": list(self.open_transactions),
            "decisions": self.decisions,
            "unproven": self.unproven,
            "records_per_second": self.rates,
            "problems": self.problems,
        }


def make_report(
    connection: Connection,
    sink_id: str,
    rates: dict[str, float] | None = None,
    on_read: Callable[[str, int], None] = lambda topic, count: None,
) -> FlightReport:
    """Make the report from the three topics, the brokers and the commit log.

    Raises
    ------
    BrokerUnreachable, UnknownTopic
    """
    reconciler = Reconciler((event.value for event in events()), expected_delays())
    for topic, add in zip(TOPICS, (reconciler.add_input, reconciler.add_output, reconciler.add_rejected), strict=True):
        for record in read_committed(connection, topic, lambda count, topic=topic: on_read(topic, count)):  # type: ignore[misc]
            add(record)
    log = read_log(connection, sink_id, READ_BUDGET_S)
    with Admin(connection, READ_BUDGET_S) as admin:
        prefixes = (namespace(sink_id), FEED_TRANSACTIONAL_ID)
        under_way = [t.transactional_id for prefix in prefixes for t in list_transactions(admin, prefix, UNDER_WAY)]
        watermarks = {topic: admin.watermarks(topic) for topic in TOPICS}
    return FlightReport(
        reconciler.findings(),
        watermarks,
        tuple(under_way),
        len(log.decisions),
        len(log.open_decisions),
        rates or {},
    )
