"""The anomalies of exactly-once output, each with its definition: what a finding of the checker is called."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from exactly_once.tools.diagnosis import Diagnosis


class Anomaly(StrEnum):
    """A way in which output, checkpoint, commit log and brokers can contradict exactly-once.

    Attributes
    ----------
    meaning : str
        One sentence that says what is wrong.
    may_pass : bool
        True when a moment of a healthy stream can look like it: then it is checked again before it is reported.
    """

    meaning: str
    may_pass: bool

    def __new__(cls, name: str, meaning: str, may_pass: bool = False) -> Self:
        """Make a member of its name, its definition, and whether it may pass."""
        member = str.__new__(cls, name)
        member._value_, member.meaning, member.may_pass = name, meaning, may_pass
        return member

    LOST = "lost", "A record that must be visible is not, and no transaction that is still open holds it.", True
    UNSEEN = "unseen", "A record that must be visible is in the log, but readers are held back from it.", True
    DUPLICATE = "duplicate", "A record is visible more than once."
    PHANTOM = (
        "phantom",
        "A record of this sink is visible and must not be: no decision names it, or no input record produced it.",
    )
    ABORTED_READ = "aborted read", "A record of an attempt that was given up is visible."
    PRECOMMITTED_READ = "precommitted read", "A record became visible before the decision of its batch."
    TORN_TRANSACTION = "torn transaction", "Some records of one transaction are visible, and others are not.", True
    TORN_BATCH = "torn batch", "Some parts of a decided batch are visible, and others are not.", True
    KEY_REORDER = "key reorder", "Two records of one key are in a different order in the output than in the input."
    BATCH_REORDER = "batch reorder", "In one partition, a record of a batch comes before a record of an earlier batch."
    MIXED_ATTEMPT = "mixed attempt", "The visible records of one part come from more than one attempt of its task."
    CORRUPT = "corrupt", "A record is visible with other contents, or in another place, than its task wrote."
    ZOMBIE_VISIBLE = (
        "zombie visible",
        "A record is visible that a driver's task wrote after a later claim had superseded it.",
    )
    CHECKPOINT_AHEAD = "checkpoint ahead", "Spark's checkpoint counts a batch as committed whose output is not.", True
    OUTPUT_AHEAD = (
        "output ahead",
        "A batch is visible that neither the commit log nor the checkpoint knows: it will be written again.",
    )
    CHECKPOINT_REWOUND = (
        "checkpoint rewound",
        "Spark's checkpoint is not at the last decided batch: the next start refuses it.",
    )
    OUTCOME_LIE = "outcome lie", "The sink reports a batch as committed, but the brokers do not.", True
    LOST_DECISION = "lost decision", "The sink decided a batch, and its commit log does not hold the decision any more."
    HANGING = "hanging", "A transaction is open on a partition, but no coordinator will ever end it."
    LINGERING = "lingering", "An undecided transaction of this sink is open, and no living driver owns it.", True
    STALLED_LAST_STABLE_OFFSET = (
        "stalled last stable offset",
        "Readers of an output partition do not reach its end.",
        True,
    )
    FOREIGN_ABORT = "foreign abort", "A transaction of another application was aborted while this sink aborted its own."
    ID_LEAK = "id leak", "The sink has transactional ids outside of the bounded scheme of names."
    SPLIT_SINK = "split sink", "One output of the sink shows a decided batch, and another one does not.", True
    OFFSET_SKEW = (
        "offset skew",
        "The input offsets that the sink publishes for lag tools are not those of its last decision.",
        True,
    )
    DIFFERS = "differs", "The new sink has other output of an input record than the old one."
    ONLY_OLD = "only old", "The old sink has an output of an input record, and the new one has none."
    ONLY_NEW = "only new", "The new sink has an output of an input record, and the old one has none."


@dataclass(frozen=True, slots=True)
class Finding:
    """One anomaly, with its evidence in the records. Only a finding about the sink itself has a severity and a remedy.

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
    diagnosis : Diagnosis or None
        Where the finding is one about the sink itself; ``what`` is its sentence.
    """

    anomaly: Anomaly
    what: str
    batch: str = ""
    transaction: str = ""
    places: tuple[str, ...] = ()
    records: int = 0
    examples: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None

    @property
    def code(self) -> str:
        """The code of its diagnosis; "" without one."""
        return self.diagnosis.code if self.diagnosis else ""

    @property
    def remedy(self) -> str:
        """The remedy of its diagnosis; "" without one."""
        return self.diagnosis.remedy if self.diagnosis else ""

    def as_json(self) -> dict[str, Any]:
        return {
            "anomaly": self.anomaly.value,
            "what": self.what,
            "batch": self.batch,
            "transaction": self.transaction,
            "places": list(self.places),
            "records": self.records,
            "examples": list(self.examples),
            "code": self.code,
            "remedy": self.remedy,
            "meaning": self.anomaly.meaning,
        }


#: Most places in one finding: enough to look at; a lost day has millions.
MOST_PLACES = 20
