"""The records that were sent again, each for the rejected record or the dead letter that it names and replaces. Pure.

So an input record counts once, however often what became of it was sent again; and a letter is replaced once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from exactly_once.kafka.admin import Partition
from exactly_once.verify.by_origin.content import Arrivals, Hashes, Offsets
from exactly_once.verify.by_origin.counts import Bytes, Flags

#: Verdicts on records that were sent again, by the letter that they name.
REPLACES, TWICE, NO_LETTER, OTHER_INPUT = range(4)


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

    def judged(self, letters: Offsets, origins: Offsets) -> Bytes:
        """Return the verdict on each.

        Parameters
        ----------
        letters, origins : array
            The offsets of the letters that are there, in order, and of what input each is, as in ``origins``.
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
