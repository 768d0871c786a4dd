"""The outputs that either comparison by origin reads: of one sink or of two, in step, up to where readers come now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from exactly_once.kafka.admin import Admin, Partition, Watermarks
from exactly_once.verify.by_origin.blocks import Memory
from exactly_once.verify.by_origin.content import HashOf
from exactly_once.verify.by_origin.counts import Counts
from exactly_once.verify.by_origin.origin import Places, SaysOrigin, inputs_of
from exactly_once.verify.by_origin.output import Outputs
from exactly_once.verify.by_origin.removed import Removed
from exactly_once.verify.by_origin.tails import Tails, compacted, settled, tails
from exactly_once.verify.expected import Expected
from exactly_once.verify.report import OnProgress, Progress
from exactly_once.verify.window import Positions

#: Why a comparison says nothing of a record.
UNREADABLE = "output records whose origin cannot be read"


@dataclass(frozen=True)
class SinkOutput:
    """A sink, with the topics to read, and what it has worked off."""

    sink_id: str
    topics: tuple[str, ...]
    expected: Expected


class OriginLedger:
    """The outputs that are read, and what explains that a record is not among them.

    Parameters
    ----------
    sinks : sequence of SinkOutput
        One, or the old one and the new one of the same input. A window of theirs limits what is read.
    first, end : mapping
        The input that is compared.

    Attributes
    ----------
    length : int
        The number of offsets to read.
    tails, removed : list
        Of each sink: which parts of its outputs are read, and what they may lack.
    """

    def __init__(
        self,
        admin: Admin,
        sinks: Sequence[SinkOutput],
        first: Positions,
        end: Positions,
        origin: SaysOrigin,
        hash_of: HashOf | None,
        settle_s: float,
        budget_s: float,
    ):
        self._number = {topic: n for n, sink in enumerate(sinks) for topic in sink.topics}
        for topic in self._number:
            admin.check_rights(topic, ("READ",))
        marks = settled(admin, list(self._number), settle_s, budget_s)
        self.tails, self.removed = list[Tails](), list[Removed]()
        for sink in sinks:
            here = {where: w for where, w in marks.items() if where[0] in sink.topics}
            tail = _tails(admin, here, sink.expected, end, origin, budget_s)
            gone = compacted(admin.renew(budget_s), sink.topics)
            self.tails.append(tail)
            self.removed.append(Removed(tail.truncated, sink.expected.batches, end, gone, bool(tail.short)))
        read = {where: w for tail in self.tails for where, w in tail.marks.items()}
        lows, inputs = {where: w.low for where, w in marks.items()}, {p: 0 for s in sinks for p in s.expected.end}

        def progress(source: Partition, offset: int) -> int:
            return min(offset, end.get(source, 0)) - first.get(source, 0)

        self.length = sum(w.last_stable - w.low for w in read.values())
        self.outputs = Outputs(admin, read, lows, origin, inputs_of(inputs), progress, hash_of)
        self.memory = Memory()

    def number_of(self, where: Partition) -> int:
        """Return the number of the sink that writes to a partition."""
        return self._number[where[0]]

    def held_back(self, bounds: Mapping[Partition, tuple[int, int]]) -> dict[tuple[int, Partition], Counts]:
        """Return the input records of each sink, from one offset to another of each partition, whose outputs are in the
        log, where readers do not get to.
        """
        found: dict[tuple[int, Partition], Counts] = {}
        for some in self.outputs.held_back():
            key = self.number_of(some.where), some.source
            if some.source in bounds:
                counts = found.setdefault(key, Counts.of_any(*bounds[some.source], self.memory))
                counts.add(some.offsets)
        return found

    @property
    def unreadable(self) -> dict[str, int]:
        """The number of records whose text should name their input and does not, by reason; empty without any."""
        foreign = self.outputs.foreign
        return {f"{UNREADABLE}, first {foreign.places[0]}": foreign.unreadable} if foreign.unreadable else {}


def _tails(
    admin: Admin,
    marks: Mapping[Partition, Watermarks],
    expected: Expected,
    end: Positions,
    origin: SaysOrigin,
    budget_s: float,
) -> Tails:
    """Return the parts of one sink's outputs to read."""
    window = expected.window
    if window is None:
        return Tails.whole(marks)
    ahead = sum(expected.end[p] - stop for p, stop in end.items())  # what only this sink has read so far
    window = replace(window, last=window.last + ahead)
    return tails(admin, marks, window, expected.first, origin, Places(inputs_of(expected.end)), budget_s)


def telling(on_progress: OnProgress, step: str, of: int) -> Callable[[int], None]:
    """Return what is told how many offsets were read, of so many that this step will read."""
    done = 0

    def tell(offsets: int) -> None:
        nonlocal done
        done += offsets
        on_progress(Progress(step, min(done, of), of))

    return tell
