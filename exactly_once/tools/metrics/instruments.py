"""The instruments: their OpenTelemetry names, units and attributes, and their Prometheus names.

Units are base units; counts carry their noun in braces, as OpenTelemetry's conventions require. Every instrument but
:data:`CLUSTER_UP` has the attribute ``sink``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """The source of an instrument's value.

    The observer reads a ``GAUGE`` and a ``TOTAL`` from its last observation (a ``TOTAL`` never falls), and adds to a
    ``COUNTER`` and a ``HISTOGRAM`` once for each event.
    """

    GAUGE = "gauge"
    TOTAL = "total"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Instrument:
    """One instrument; its points carry the keys ``attributes``."""

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


#: Bounds of histograms, from the fastest write to the commit log to a batch of 15 minutes, in steps of 1, 2.5, 5.
BUCKETS_S = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)

CLUSTER_UP = Instrument(
    "exactly_once.cluster.up",
    Kind.GAUGE,
    "",
    "1 if the brokers answered the last observation, 0 if not",
    (),
)
UP = Instrument(
    "exactly_once.up",
    Kind.GAUGE,
    "",
    "1 if the last observation of the sink succeeded, 0 if not; then its other gauges are absent",
)
OBSERVATION_DURATION = Instrument(
    "exactly_once.observation.duration", Kind.GAUGE, "s", "Duration of the last observation of the sink"
)
MISSED = Instrument(
    "exactly_once.observation.missed",
    Kind.COUNTER,
    "{batch}",
    "Batches that left the commit log before the observer saw them: shorten its interval",
)
OPEN = Instrument(
    "exactly_once.transaction.open",
    Kind.GAUGE,
    "{transaction}",
    "Open transactions: decided ones will be committed, undecided ones may still be aborted, log is a write to the "
    "commit log",
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
    "Largest share of its timeout that an open transaction of the output has used; the broker aborts it at 1",
)
ABORTED = Instrument(
    "exactly_once.transaction.aborts",
    Kind.TOTAL,
    "{transaction}",
    "Undecided transactions that sweeps aborted, over the sink's life",
)
DECISIONS = Instrument(
    "exactly_once.batch.decisions",
    Kind.COUNTER,
    "{batch}",
    "Decided batches of the stream and decided batch writes",
    ("sink", "kind"),
)
RECORDS = Instrument(
    "exactly_once.batch.records",
    Kind.COUNTER,
    "{record}",
    "Records in the decided batches and batch writes",
    ("sink", "kind"),
)
DEAD_LETTERS = Instrument(
    "exactly_once.batch.dead_letters",
    Kind.COUNTER,
    "{record}",
    "Of the records, those in the dead letter topic: their rows cannot be written",
    ("sink", "kind"),
)
PREPARE = Instrument(
    "exactly_once.batch.prepare.duration",
    Kind.HISTOGRAM,
    "s",
    "From the start of a batch's first transaction until the driver found all parts alive",
)
DECIDE = Instrument("exactly_once.batch.decide.duration", Kind.HISTOGRAM, "s", "Time to write the decision of a batch")
COMPLETE = Instrument(
    "exactly_once.batch.complete.duration",
    Kind.HISTOGRAM,
    "s",
    "Time to commit the parts of a decided batch",
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
    "Batches that are decided but not yet proven committed",
)
UNPROVEN_AGE = Instrument(
    "exactly_once.batch.oldest_unproven.age",
    Kind.GAUGE,
    "s",
    "Time since the oldest decision that is not yet proven committed; 0 without one",
)
REPLAYS = Instrument(
    "exactly_once.batch.replays",
    Kind.TOTAL,
    "{batch}",
    "Over the sink's life: completed counts decisions that a later driver or a recovery completed, drained counts "
    "decided batches that Spark ran again without writing anything",
    ("sink", "kind"),
)
REWRITTEN = Instrument(
    "exactly_once.part.rewrites",
    Kind.TOTAL,
    "{part}",
    "Over the sink's life: decided parts that were lost before their commit and written again",
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
    "1 if the owner's process runs, 0 if it is gone; absent if the process is on another host than the observer",
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
    "By output topic: high watermark minus last stable offset, the offsets that a read_committed reader waits for",
    ("sink", "topic"),
)

DIAGNOSIS = Instrument(
    "exactly_once.diagnosis",
    Kind.GAUGE,
    "{diagnosis}",
    "What is wrong with the sink, by the code and the severity that every screen has; absent when nothing is",
    ("sink", "code", "severity"),
)

INSTRUMENTS = tuple(one for one in list(vars().values()) if isinstance(one, Instrument))
