"""The answer on each record of the output, and the balance of all offsets. Pure.

A record is *right* (a decision proves it), *wrong* (an anomaly concerns it), *not judged* (nothing of this sink's
decisions speaks of it) or *not proven* (a decision speaks of it, and the evidence does not suffice).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

RIGHT, WRONG, NOT_JUDGED, NOT_PROVEN = "right", "wrong", "not judged", "not proven"

#: Why records are not judged.
OTHERS = "other writers"
UNCOMPARED = "other writers' transactions, too many to compare with the decided parts"
UNENDED = "other writers' transactions that have not ended"
OTHER_BATCHES = "this sink's batches outside of those that were checked"

#: Why records are not proven: of an undecided transaction of the sink.
UNDECIDED = "this sink's transactions that have not ended and are not decided"


class Answer(NamedTuple):
    """One of the four, and the reason of the last two."""

    kind: str
    why: str = ""


@dataclass
class TopicBalance:
    """The offsets of one topic, from the log starts to the high watermarks, each under exactly one name.

    Attributes
    ----------
    offsets : int
        How many there are, as the leaders say.
    right, wrong : int
        Records.
    not_judged, not_proven : Counter
        Records, by reason.
    aborted : int
        Records that were aborted: readers do not get them.
    markers : int
        The end markers of transactions.
    compacted : int
        Offsets under which compaction has left nothing.
    unread : int
        Offsets before the oldest batch that was checked.
    """

    offsets: int = 0
    right: int = 0
    wrong: int = 0
    not_judged: Counter[str] = field(default_factory=Counter)
    not_proven: Counter[str] = field(default_factory=Counter)
    aborted: int = 0
    markers: int = 0
    compacted: int = 0
    unread: int = 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of offsets under each name, for people."""
        return {
            RIGHT: self.right,
            WRONG: self.wrong,
            NOT_JUDGED: self.not_judged.total(),
            NOT_PROVEN: self.not_proven.total(),
            "aborted": self.aborted,
            "end markers": self.markers,
            "removed by compaction": self.compacted,
            "older than what was checked": self.unread,
        }

    @property
    def explained(self) -> int:
        """The number of offsets that have a name."""
        return sum(self.counts.values())

    @property
    def adds_up(self) -> bool:
        """True when each offset has exactly one name."""
        return self.explained == self.offsets

    def plus(self, other: TopicBalance) -> TopicBalance:
        """Return the sums of both."""
        return TopicBalance(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **vars(self),
            "not_judged": dict(self.not_judged),
            "not_proven": dict(self.not_proven),
            "adds_up": self.adds_up,
        }

    def count(self, answer: Answer, records: int) -> None:
        """Count records under an answer."""
        if answer.kind == RIGHT:
            self.right += records
        elif answer.kind == WRONG:
            self.wrong += records
        else:
            (self.not_judged if answer.kind == NOT_JUDGED else self.not_proven)[answer.why] += records


@dataclass(frozen=True)
class Balance:
    """The balance of each topic that was read."""

    topics: Mapping[str, TopicBalance] = field(default_factory=dict)

    @property
    def total(self) -> TopicBalance:
        """The sums over all topics."""
        whole = TopicBalance()
        for one in self.topics.values():
            whole = whole.plus(one)
        return whole

    @property
    def adds_up(self) -> bool:
        """True when each offset of each topic has exactly one name."""
        return all(one.adds_up for one in self.topics.values())

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "topics": {topic: one.as_json() for topic, one in self.topics.items()},
            "total": self.total.as_json(),
            "adds_up": self.adds_up,
        }
