"""The records that were sent again, each for the rejected record or the dead letter that it names and replaces. Pure.

So an input record counts once, however often what became of it was sent again; and a letter is replaced once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from exactly_once.kafka.admin import Partition
from exactly_once.verify.by_origin.counts import Bytes, Flags, Offsets

Hashes = npt.NDArray[np.uint64]

#: Verdicts on records that were sent again, by the letter that they name.
REPLACES, TWICE, NO_LETTER, OTHER_INPUT = range(4)


@dataclass
class SentAgain:
    """Records of one output partition that name letters of one partition.

    Attributes
    ----------
    offsets, at : array
        Of the letter; of the record.
    origins : array
        A hash of the input record that each says it came from, above 0; 0 when it does not say.
    hashes : array
        The hash of the record that was asked for, else 0.
    """

    where: Partition
    letters: Partition
    offsets: Offsets
    at: Offsets
    origins: Offsets
    hashes: Hashes


class Replacing(NamedTuple):
    """All records that name letters of one partition, in the order of the letters, then of their own places.

    ``wheres[which]`` is the output partition of each.
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


class Resent:
    """The records of this kind that were met so far: 40 bytes for each."""

    def __init__(self) -> None:
        self._found: dict[Partition, list[SentAgain]] = {}

    def add(self, some: SentAgain) -> None:
        """Take some more."""
        self._found.setdefault(some.letters, []).append(some)

    def by_letters(self) -> Iterator[Replacing]:
        """Yield them by the partition of their letters."""
        for letters, some in sorted(self._found.items()):
            wheres = sorted({its.where for its in some})
            which = np.concatenate([np.full(len(its.at), wheres.index(its.where)) for its in some])
            offsets, at = np.concatenate([its.offsets for its in some]), np.concatenate([its.at for its in some])
            origins = np.concatenate([its.origins for its in some])
            hashes = np.concatenate([its.hashes for its in some])
            order = np.lexsort((at, which, offsets))
            yield Replacing(letters, offsets[order], wheres, which[order], at[order], origins[order], hashes[order])
