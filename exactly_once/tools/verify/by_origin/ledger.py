"""The outputs that either comparison by origin reads: of one sink or of two, in step, up to where readers come now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from exactly_once.kafka.admin import Admin, Partition
from exactly_once.tools.verify.anomalies import Finding
from exactly_once.tools.verify.by_origin.content import Flags, Offsets
from exactly_once.tools.verify.by_origin.counts import Counts, Memory
from exactly_once.tools.verify.by_origin.origin import SaysOrigin, inputs_of
from exactly_once.tools.verify.by_origin.output import Outputs
from exactly_once.tools.verify.by_origin.tails import Removed, Tails, compacted, settled, tails
from exactly_once.tools.verify.expected import Expected, Positions, Window
from exactly_once.tools.verify.report import OnProgress, Progress

#: Reasons why a comparison does not judge a record.
UNREADABLE = "output records whose origin cannot be read"


@dataclass(frozen=True)
class ComparisonResult:
    """The result of a comparison by origin: with the input, or with the output of an older sink.

    ``counts`` has, with the input: ``input`` records expected; ``output`` records read, and how many of them are
    ``foreign``, came from ``earlier`` input or from that of batches ``under way``, or were ``sent again`` in the place
    of others. With the older sink ``sink_id``: ``input`` records have an output, ``same`` the same one in both, and
    those of each anomaly. It is empty where there was nothing to compare yet. ``read`` counts output records;
    ``unproven``, by reason, what it does not judge. ``window`` is the part of the input that was compared, None for all
    of it; ``offsets`` are those of input that both sinks have worked off.
    """

    findings: tuple[Finding, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    read: int = 0
    unproven: Mapping[str, int] = field(default_factory=dict)
    window: Window | None = None
    sink_id: str = ""
    offsets: int = 0


@dataclass(frozen=True)
class SinkOutput:
    """A sink, with the topics to read, and what it has worked off."""

    sink_id: str
    topics: tuple[str, ...]
    expected: Expected


@dataclass(frozen=True)
class Compared:
    """One sink, or the old one and the new one of the same input; and the input that is compared: by partition, its
    first offset and its end. A window of the sinks limits what is read.
    """

    sinks: tuple[SinkOutput, ...]
    first: Positions
    end: Positions

    @property
    def offsets(self) -> int:
        """The number of offsets of this input, markers and aborted records included."""
        return sum(self.end[p] - first for p, first in self.first.items())


class OriginLedger:
    """The outputs that are read, ``length`` offsets, and what explains that a record is not among them: of each sink,
    ``tails`` has the parts of its outputs that are read, ``removed`` what they may lack. ``bounds`` has, by input
    partition, the first offset whose outputs may be held back, and the one after the last.
    """

    def __init__(self, admin: Admin, compared: Compared, origin: SaysOrigin, settle_s: float, budget_s: float):
        sinks, first, end = compared.sinks, compared.first, compared.end
        self._number = {topic: n for n, sink in enumerate(sinks) for topic in sink.topics}
        self._held: dict[tuple[int, Partition], Counts] | None = None
        for topic in self._number:
            admin.check_rights(topic, ("READ",))
        marks = settled(admin, list(self._number), settle_s, budget_s)
        self.tails, self.removed = list[Tails](), list[Removed]()
        for sink in sinks:
            here = {where: w for where, w in marks.items() if where[0] in sink.topics}
            tail = tails(admin, here, sink.expected, end, origin, budget_s)
            unsure = compacted(admin.renew(budget_s), sink.topics)
            self.tails.append(tail)
            self.removed.append(Removed(tail.truncated, sink.expected.batches, end, unsure, bool(tail.short)))
        read = {where: w for tail in self.tails for where, w in tail.marks.items()}
        self.bounds = {p: (offset, end[p]) for p, offset in first.items()}
        lows, inputs = {where: w.low for where, w in marks.items()}, {p: 0 for s in sinks for p in s.expected.end}

        def progress(source: Partition, offset: int) -> int:
            return min(offset, end.get(source, 0)) - first.get(source, 0)

        self.length = sum(w.last_stable - w.low for w in read.values())
        self.outputs = Outputs(admin, read, lows, origin, inputs_of(inputs), progress, len(sinks) > 1)
        self.memory = Memory()

    def number_of(self, where: Partition) -> int:
        """Return the number of the sink that writes to a partition."""
        return self._number[where[0]]

    def held_back(self, number: int, source: Partition, offsets: Offsets) -> Flags:
        """Return which of these input records have outputs of a sink in the log that readers do not reach; the first
        call reads those of all input partitions.
        """
        if self._held is None:
            self._held = {}
            for some in self.outputs.held_back():
                if some.source in self.bounds:
                    key, any_of = (self.number_of(some.where), some.source), self.bounds[some.source]
                    self._held.setdefault(key, Counts.of_any(*any_of, self.memory)).add(some.offsets)
        counts = self._held.get((number, source))
        return np.zeros(len(offsets), np.bool_) if counts is None else counts.seen(offsets)

    @property
    def unreadable(self) -> dict[str, int]:
        """The number of records whose text should name their input and does not, by reason; empty without any."""
        foreign = self.outputs.foreign
        return {f"{UNREADABLE}, first {foreign.places[0]}": foreign.unreadable} if foreign.unreadable else {}


def telling(on_progress: OnProgress, step: str, of: int) -> Callable[[int], None]:
    """Return a function that reports the offsets it is called with as read, of all that this step will read."""
    done = 0

    def tell(offsets: int) -> None:
        nonlocal done
        done += offsets
        on_progress(Progress(step, min(done, of), of))

    return tell
