"""The instruments: their OpenTelemetry names, units and attributes, and the names that Prometheus gives them.

Units are base units; counts carry their noun in braces, as OpenTelemetry's conventions ask. Every instrument but
:data:`CLUSTER_UP` has the attribute ``sink``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """How an instrument comes to its value.

    ``GAUGE`` and ``TOTAL`` are read from the last observation, and a ``TOTAL`` never falls; ``COUNTER`` and
    ``HISTOGRAM`` are added to, once for each event.
    """

    GAUGE = "gauge"
    TOTAL = "total"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Instrument:
    """One instrument; ``attributes`` are the keys that its points carry."""

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: tuple[str, ...] = ("sink",)

    @property
    def series(self) -> tuple[str, ...]:
        """The names of its series in Prometheus."""
        base = self.name.replace(".", "_") + ("_seconds" if self.unit == "s" else "")
        if self.kind is Kind.HISTOGRAM:
            return (f"{base}_bucket", f"{base}_sum", f"{base}_count")
        return (f"{base}_total",) if self.kind in (Kind.TOTAL, Kind.COUNTER) else (base,)


class Point(NamedTuple):
    """A value of an instrument."""

    instrument: Instrument
    value: float
    attributes: dict[str, str]


#: From the fastest write to the commit log to a batch of a quarter of an hour, in seconds: the usual one, two and a
#: half, five.
BUCKETS_S = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)

CLUSTER_UP = Instrument(
    "exactly_once.cluster.up",
    Kind.GAUGE,
    "",
    "1 when the brokers let themselves be asked the last time, 0 when not",
    (),
)
UP = Instrument(
    "exactly_once.up",
    Kind.GAUGE,
    "",
    "1 when the sink could be observed the last time, 0 when not; then its other gauges are absent",
)
OBSERVATION_DURATION = Instrument(
    "exactly_once.observation.duration", Kind.GAUGE, "s", "How long the last observation of the sink took"
)
MISSED = Instrument(
    "exactly_once.observation.missed",
    Kind.COUNTER,
    "{batch}",
    "Batches that had left the commit log before they were seen: observe more often",
)
OPEN = Instrument(
    "exactly_once.transaction.open",
    Kind.GAUGE,
    "{transaction}",
    "Transactions under way: decided ones will be committed, undecided ones may still be aborted, log is the commit "
    "log's own",
    ("sink", "verdict"),
)
OLDEST = Instrument(
    "exactly_once.transaction.oldest.age",
    Kind.GAUGE,
    "s",
    "Age of the oldest open transaction; 0 when nothing is open",
)
TIMEOUT_USED = Instrument(
    "exactly_once.transaction.timeout.utilization",
    Kind.GAUGE,
    "1",
    "The largest share of its timeout that an open transaction of the output has used; at 1 the broker aborts it",
)
ABORTED = Instrument(
    "exactly_once.transaction.aborts",
    Kind.TOTAL,
    "{transaction}",
    "Undecided transactions that were swept, over the sink's life",
)
DECISIONS = Instrument(
    "exactly_once.batch.decisions",
    Kind.COUNTER,
    "{batch}",
    "Batches of the stream and batch writes that were decided",
    ("sink", "kind"),
)
RECORDS = Instrument(
    "exactly_once.batch.records",
    Kind.COUNTER,
    "{record}",
    "Records in the batches that were decided",
    ("sink", "kind"),
)
PREPARE = Instrument(
    "exactly_once.batch.prepare.duration",
    Kind.HISTOGRAM,
    "s",
    "From the beginning of a batch's first transaction until all of its parts were found alive",
)
DECIDE = Instrument("exactly_once.batch.decide.duration", Kind.HISTOGRAM, "s", "Writing the decision of a batch")
COMPLETE = Instrument(
    "exactly_once.batch.complete.duration",
    Kind.HISTOGRAM,
    "s",
    "Ending the transactions of a decided batch",
)
LAST_DECISION = Instrument(
    "exactly_once.batch.last_decision.age",
    Kind.GAUGE,
    "s",
    "Time since the last decision; absent before the first",
)
UNPROVEN = Instrument(
    "exactly_once.batch.unproven",
    Kind.GAUGE,
    "{batch}",
    "Batches that are decided and not yet proven committed",
)
UNPROVEN_AGE = Instrument(
    "exactly_once.batch.oldest_unproven.age",
    Kind.GAUGE,
    "s",
    "Time since the oldest decision that is not proven; 0 when all are",
)
REPLAYS = Instrument(
    "exactly_once.batch.replays",
    Kind.TOTAL,
    "{batch}",
    "Over the sink's life: completed are decisions that somebody else than their decider completed, drained are "
    "batches that were run again after their decision and wrote nothing",
    ("sink", "kind"),
)
REWRITTEN = Instrument(
    "exactly_once.part.rewrites",
    Kind.TOTAL,
    "{part}",
    "Over the sink's life: decided parts that were lost before their commit and have been written again",
)
CLAIMS = Instrument(
    "exactly_once.sink.claims",
    Kind.TOTAL,
    "{claim}",
    "Claims over the sink's life: each start of a stream in a new driver, each batch write, each recovery",
)
OWNER_ALIVE = Instrument(
    "exactly_once.owner.alive",
    Kind.GAUGE,
    "",
    "1 when the owner's process runs, 0 when it is gone; absent when it is on another host than the observer",
)
READER_LAG = Instrument(
    "exactly_once.reader.lag",
    Kind.GAUGE,
    "{offset}",
    "By input topic: last stable offset minus the offset that the stream committed to its consumer group",
    ("sink", "topic"),
)
STABLE_LAG = Instrument(
    "exactly_once.last_stable_offset.lag",
    Kind.GAUGE,
    "{offset}",
    "By output topic: high watermark minus last stable offset, which is what a read_committed reader waits for",
    ("sink", "topic"),
)

INSTRUMENTS = (
    CLUSTER_UP,
    UP,
    OBSERVATION_DURATION,
    MISSED,
    OPEN,
    OLDEST,
    TIMEOUT_USED,
    ABORTED,
    DECISIONS,
    RECORDS,
    PREPARE,
    DECIDE,
    COMPLETE,
    LAST_DECISION,
    UNPROVEN,
    UNPROVEN_AGE,
    REPLAYS,
    REWRITTEN,
    CLAIMS,
    OWNER_ALIVE,
    READER_LAG,
    STABLE_LAG,
)
