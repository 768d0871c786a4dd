"""The content of a record, without its place and what the sink added, and where two contents differ; hashes of records,
and many records as columns. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exactly_once.error_headers import PREFIX, RESENT
from exactly_once.errors import InvalidRecord
from exactly_once.inspection.words import plural
from exactly_once.kafka.admin import Partition
from exactly_once.protocol import batch_headers, dead_letters

#: All 64 bits of a hash.
MASK = (1 << 64) - 1

#: Verdicts on records that were sent again, by the letter that they name.
REPLACES, TWICE, NO_LETTER, OTHER_INPUT = range(4)

Offsets = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

#: Bytes of a key, a value or a header in a report: records may hold what not every reader of a report may see.
MOST_SHOWN = 40

#: Bytes that are shown before the first one that differs.
_SHARED = 12

#: Headers of a letter in which two streams with the same rows differ: the sink that wrote it, its batch and its output.
#: The message of a dead letter names the output too.
_OF_THE_SINK = frozenset({"sink", "batch", "output.topic"})
_NAMES_TOPIC = _OF_THE_SINK | {"message"}


class Content(NamedTuple):
    """The result of a stream's function for one record: not its place, nor what the sink added."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def content_of(record: Any, without: str = "") -> Content:
    """Return the content of a record, as kafka-python has it; ``without`` the header of this name."""
    own, _ = batch_headers.own_headers(record.headers)
    own, said = dead_letters.own_headers(own)
    left_out = _NAMES_TOPIC if said.get("code") == InvalidRecord.code.encode() else _OF_THE_SINK
    why = ((f"{PREFIX}{name}", value) for name, value in said.items() if name not in left_out)
    kept = (header for header in own if header[0] not in (without, RESENT))
    return Content(record.key, record.value, (*kept, *why))


def content_hash(record: Any, without: str = "") -> int:
    """Return a hash of :func:`content_of`, in 64 bits; comparable within one process only: Python seeds its hashes."""
    return hash(content_of(record, without)) & MASK


@dataclass
class Arrivals:
    """Records of one output partition that name places in one other partition, in the order of the output.

    ``source`` is the partition of the input; of records that were sent again, that of their letters. ``offsets`` are
    those of the places that are named, ``at`` those of the records. ``numbers`` says which output of its input record
    each is, -1 when it does not say; of what was sent again, a hash of the input record that it says it came from
    (:func:`~exactly_once.tools.verify.by_origin.output.origin_hash`). ``hashes`` has what was asked for, else 0.
    Those that are not ``open`` are right by themselves, and may only stand in the wrong order; by default, all are
    open.
    """

    where: Partition
    source: Partition
    offsets: Offsets
    numbers: Offsets
    at: Offsets
    hashes: Hashes
    open: Flags | None = None


def difference(old: Sequence[Content], new: Sequence[Content], values: bool = True) -> str:
    """Return in a few words where the outputs of an input record begin to differ; with ``values`` also what either has
    there, cut short.
    """
    if not old or not new:
        (one, *_) = [*old, *new, None]
        return f"value {_shown(one.value)}" if one is not None and values else ""
    if len(old) != len(new):
        return f"old {plural(len(old), 'record')}, new {len(new):,}"
    first, other = (next(iter((Counter(a) - Counter(b)).elements()), None) for a, b in ((old, new), (new, old)))
    if first is None or other is None:
        return ""
    what, *both = _first_difference(first, other)
    return f"{what}: {_both(*both)}" if values else what


def _first_difference(old: Content, new: Content) -> tuple[str, bytes | None, bytes | None]:
    """Return the part of a record that differs, and what either has there."""
    if old.key != new.key:
        return "key", old.key, new.key
    if old.value != new.value:
        return "value", old.value, new.value
    for (name, value), (named, valued) in zip(old.headers, new.headers, strict=False):
        if name == named and value != valued:
            return f"header {name}", value, valued
    return "headers", _names(old), _names(new)


def _names(content: Content) -> bytes:
    return ", ".join(name for name, _ in content.headers).encode()


def _both(old: bytes | None, new: bytes | None) -> str:
    shared = next((n for n, (a, b) in enumerate(zip(old or b"", new or b"", strict=False)) if a != b), None)
    if shared is None:
        shared = min(len(old or b""), len(new or b""))
    start = max(0, shared - _SHARED)
    return f"old {_shown(old, start)}, new {_shown(new, start)}"


def _shown(value: bytes | None, start: int = 0) -> str:
    if value is None:
        return "null"
    cut = value[start : start + MOST_SHOWN].decode(errors="replace")
    return f"{'...' if start else ''}{cut!r}{'...' if len(value) > start + MOST_SHOWN else ''}"


class Replacing(NamedTuple):
    """All records that name letters of one partition, in the order of the letters, then of their own places: 40 bytes
    for each.

    ``wheres[which]`` is the output partition of each; ``origins`` has a hash of the input record that each says it came
    from, above 0, and 0 when it does not say.
    """

    letters: Partition
    offsets: Offsets
    wheres: list[Partition]
    which: Offsets
    at: Offsets
    origins: Offsets
    hashes: Hashes

    def judged(self, letters: Offsets, origins: Offsets) -> npt.NDArray[np.uint8]:
        """Return the verdict on each; ``letters`` are the offsets of the letters that are there, in order, and
        ``origins`` of what input each is, as in ``self.origins``.
        """
        verdicts = np.full(len(self.offsets), NO_LETTER, np.uint8)
        found = np.flatnonzero(np.isin(self.offsets, letters))
        theirs, mine = origins[np.searchsorted(letters, self.offsets[found])], self.origins[found]
        verdicts[found] = np.where((theirs != 0) & (mine != 0) & (theirs != mine), OTHER_INPUT, REPLACES)
        replacing = np.flatnonzero(verdicts == REPLACES)
        named = self.offsets[replacing]
        verdicts[replacing[1:][named[1:] == named[:-1]]] = TWICE
        return verdicts

    def of(self, letter: int) -> slice:
        """Return which of them name this letter."""
        return slice(int(np.searchsorted(self.offsets, letter)), int(np.searchsorted(self.offsets, letter, "right")))

    def in_partitions(self, which: Flags) -> Iterator[tuple[Partition, Offsets, Offsets]]:
        """Yield, by output partition, the places of some of them, and the letters that these name."""
        for number, where in enumerate(self.wheres):
            mine = which & (self.which == number)
            if mine.any():
                yield where, self.at[mine], self.offsets[mine]


def by_letters(resent: Iterable[Arrivals]) -> Iterator[Replacing]:
    """Yield records that were sent again by the partition of their letters, which stands for that of the input."""
    found: dict[Partition, list[Arrivals]] = {}
    for some in resent:
        found.setdefault(some.source, []).append(some)
    for letters, its in sorted(found.items()):
        wheres = sorted({some.where for some in its})
        which = np.concatenate([np.full(len(some.at), wheres.index(some.where)) for some in its])
        of_all = zip(*((some.offsets, some.at, some.numbers, some.hashes) for some in its), strict=True)
        offsets, at, origins, hashes = map(np.concatenate, of_all)
        order = np.lexsort((at, which, offsets))
        yield Replacing(letters, offsets[order], wheres, which[order], at[order], origins[order], hashes[order])
