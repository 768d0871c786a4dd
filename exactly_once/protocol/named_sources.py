"""Named sources, which a query may get and lose: what a batch reads of them, compared with the batch before. Pure.

Spark finds the offsets of a source by its name, in the two batches before; else the source begins where
``sources/<name>/0`` says, which Spark fixes when the name first appears.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from exactly_once.protocol.checkpoint_text import kafka_offsets, names_sources, source_lines

#: Topic -> partition -> the next offset to read. A topic without a partition ended, but nobody can tell where.
Ends = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class Joined:
    """The sources of a topic that the batch before did not read: the name of one, and where each begins."""

    name: str
    begins: tuple[Mapping[int, int], ...]

    def repeats(self, ends: Mapping[int, int]) -> bool:
        """Return whether one of them reads again what was read up to ``ends``."""
        return any(begin.get(p, 0) < end for begin in self.begins for p, end in ends.items())


class Renamed(NamedTuple):
    """A topic that has lost every source that read it in the batch before, and has a new one."""

    topic: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class NamedSources:
    """The topics of a batch with named sources.

    Attributes
    ----------
    topics : frozenset of str
        Those that it reads.
    names : frozenset of str
        The names of its sources, also of those that are not Kafka.
    left : mapping
        Those that only the batch before read, and where that batch ended.
    joined : mapping
        Those that the batch before did not read.
    renamed : tuple of Renamed
        Those that a source of another name would read from the beginning.
    """

    topics: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    left: Ends = field(default_factory=dict)
    joined: Mapping[str, Joined] = field(default_factory=dict)
    renamed: tuple[Renamed, ...] = ()

    def dropped(self, before: Ends) -> dict[str, Mapping[int, int]]:
        """Return where each topic ended that the query has read, and this batch does not; ``before`` says it of the
        batch before.
        """
        return {topic: ends for topic, ends in {**before, **self.left}.items() if topic not in self.topics}


def readers(offsets: str) -> dict[str, set[str]]:
    """Return topic -> names of the sources that read it, from an ``offsets/N`` that names them."""
    found: dict[str, set[str]] = {}
    for line in source_lines(offsets) if names_sources(offsets) else ():
        for topic in kafka_offsets([line]):
            found.setdefault(topic, set()).add(line.partition(":")[0])
    return found


def source_names(offsets: str) -> set[str]:
    """Return the names of the sources in an ``offsets/N`` that names them."""
    return {line.partition(":")[0] for line in source_lines(offsets)}


def of_first(offsets: str) -> NamedSources:
    """Return what the first batch reads."""
    return NamedSources(frozenset(readers(offsets)), frozenset(source_names(offsets)))


def compared(now: str, before: str, two_before: Callable[[], str], beginning: Callable[[str], Ends]) -> NamedSources:
    """Return what the ``offsets/N`` in ``now`` reads, compared with that of the batch ``before``.

    ``two_before`` returns the one before that, and ``beginning`` where a source began, by its name; both are asked only
    where a topic was not read in the batch before.
    """
    reads, read = readers(now), readers(before)
    joined = {topic: names for topic, names in reads.items() if topic not in read}
    older = two_before() if joined else ""
    earlier, ends, ended = readers(older), kafka_offsets(source_lines(older)), kafka_offsets(source_lines(before))

    def begin(topic: str, name: str) -> Mapping[int, int]:
        return ends[topic] if name in earlier.get(topic, ()) else beginning(name).get(topic, {})

    return NamedSources(
        topics=frozenset(reads),
        names=frozenset(source_names(now)),
        left={topic: ended[topic] for topic in read if topic not in reads},
        joined={t: Joined(min(names), tuple(begin(t, name) for name in sorted(names))) for t, names in joined.items()},
        renamed=tuple(
            Renamed(topic, min(read[topic]), min(names))
            for topic, names in sorted(reads.items())
            if topic in read and names.isdisjoint(read[topic])
        ),
    )
