"""The anomalies of exactly-once output, each with its definition: what a finding of the checker is called."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Anomaly(StrEnum):
    """A way in which output, checkpoint, commit log and brokers can contradict exactly-once. ``meaning`` defines it."""

    LOST = "lost"
    UNSEEN = "unseen"
    DUPLICATE = "duplicate"
    PHANTOM = "phantom"
    ABORTED_READ = "aborted read"
    PRECOMMITTED_READ = "precommitted read"
    TORN_TRANSACTION = "torn transaction"
    TORN_BATCH = "torn batch"
    KEY_REORDER = "key reorder"
    BATCH_REORDER = "batch reorder"
    MIXED_ATTEMPT = "mixed attempt"
    CORRUPT = "corrupt"
    ZOMBIE_VISIBLE = "zombie visible"
    CHECKPOINT_AHEAD = "checkpoint ahead"
    OUTPUT_AHEAD = "output ahead"
    CHECKPOINT_REWOUND = "checkpoint rewound"
    OUTCOME_LIE = "outcome lie"
    LOST_DECISION = "lost decision"
    HANGING = "hanging"
    LINGERING = "lingering"
    STALLED_LAST_STABLE_OFFSET = "stalled last stable offset"
    FOREIGN_ABORT = "foreign abort"
    ID_LEAK = "id leak"
    SPLIT_SINK = "split sink"
    OFFSET_SKEW = "offset skew"
    DIFFERS = "differs"
    ONLY_OLD = "only old"
    ONLY_NEW = "only new"

    @property
    def meaning(self) -> str:
        """One sentence that says what is wrong."""
        return _MEANING[self]

    @property
    def may_pass(self) -> bool:
        """True when a moment of a healthy stream can look like it: then it is checked again before it is reported."""
        return self in _MAY_PASS


_MEANING = {
    Anomaly.LOST: "A record that must be visible is not, and no transaction that is still open holds it.",
    Anomaly.UNSEEN: "A record that must be visible is in the log, but readers are held back from it.",
    Anomaly.DUPLICATE: "A record is visible more than once.",
    Anomaly.PHANTOM: "A record of this sink is visible and must not be: no decision names it, or no input record "
    "produced it.",
    Anomaly.ABORTED_READ: "A record of an attempt that was given up is visible.",
    Anomaly.PRECOMMITTED_READ: "A record became visible before the decision of its batch.",
    Anomaly.TORN_TRANSACTION: "Some records of one transaction are visible, and others are not.",
    Anomaly.TORN_BATCH: "Some parts of a decided batch are visible, and others are not.",
    Anomaly.KEY_REORDER: "Two records of one key are in a different order in the output than in the input.",
    Anomaly.BATCH_REORDER: "In one partition, a record of a batch comes before a record of an earlier batch.",
    Anomaly.MIXED_ATTEMPT: "The visible records of one part come from more than one attempt of its task.",
    Anomaly.CORRUPT: "A record is visible with other contents, or in another place, than its task wrote.",
    Anomaly.ZOMBIE_VISIBLE: "A record is visible that a driver's task wrote after a later claim had superseded it.",
    Anomaly.CHECKPOINT_AHEAD: "Spark's checkpoint counts a batch as committed whose output is not.",
    Anomaly.CHECKPOINT_REWOUND: "Spark's checkpoint is not at the last decided batch: the next start refuses it.",
    Anomaly.OUTPUT_AHEAD: "A batch is visible that neither the commit log nor the checkpoint knows: it will be written "
    "again.",
    Anomaly.OUTCOME_LIE: "The sink reports a batch as committed, but the brokers do not.",
    Anomaly.LOST_DECISION: "The sink decided a batch, and its commit log does not hold the decision any more.",
    Anomaly.HANGING: "A transaction is open on a partition, but no coordinator will ever end it.",
    Anomaly.LINGERING: "An undecided transaction of this sink is open, and no living driver owns it.",
    Anomaly.STALLED_LAST_STABLE_OFFSET: "Readers of an output partition do not reach its end.",
    Anomaly.FOREIGN_ABORT: "A transaction of another application was aborted while this sink aborted its own.",
    Anomaly.ID_LEAK: "The sink has transactional ids outside of the bounded scheme of names.",
    Anomaly.SPLIT_SINK: "One output of the sink shows a decided batch, and another one does not.",
    Anomaly.OFFSET_SKEW: "The input offsets that the sink publishes for lag tools are not those of its last decision.",
    Anomaly.DIFFERS: "The new sink has other output of an input record than the old one.",
    Anomaly.ONLY_OLD: "The old sink has an output of an input record, and the new one has none.",
    Anomaly.ONLY_NEW: "The new sink has an output of an input record, and the old one has none.",
}

_MAY_PASS = frozenset(
    {
        Anomaly.UNSEEN,
        Anomaly.TORN_TRANSACTION,
        Anomaly.TORN_BATCH,
        Anomaly.LOST,
        Anomaly.OUTCOME_LIE,
        Anomaly.LINGERING,
        Anomaly.STALLED_LAST_STABLE_OFFSET,
        Anomaly.SPLIT_SINK,
        Anomaly.OFFSET_SKEW,
        Anomaly.CHECKPOINT_AHEAD,
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One anomaly, with what offends.

    Attributes
    ----------
    anomaly : Anomaly
    what : str
        A sentence that names the thing and the evidence.
    batch : str
        ``batch 7`` or ``write 2013-01-05``; "" when no batch is concerned.
    transaction : str
        Transactional id, producer id and epoch; "" when no transaction is concerned.
    places : tuple of str
        Where to look: ``topic-partition@first..last`` of output records, or ``topic-partition@offset`` of input
        records. At most :data:`MOST_PLACES`.
    records : int
        How many records it concerns; 0 when it is not about records.
    examples : tuple of str
        A few of the records, each with what differs: cut short, for they may hold what not everybody may see.
    code, remedy : str
        Of the diagnosis, where the finding is one about the sink; else "".
    """

    anomaly: Anomaly
    what: str
    batch: str = ""
    transaction: str = ""
    places: tuple[str, ...] = ()
    records: int = 0
    examples: tuple[str, ...] = ()
    code: str = ""
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "anomaly": self.anomaly.value,
            "meaning": self.anomaly.meaning,
            "what": self.what,
            "batch": self.batch,
            "transaction": self.transaction,
            "places": list(self.places),
            "records": self.records,
            "examples": list(self.examples),
            "code": self.code,
            "remedy": self.remedy,
        }


#: Places in one finding: enough to look at; a lost day has millions.
MOST_PLACES = 20
