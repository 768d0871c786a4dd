"""Spans of offsets of the input. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class OffsetSpan(NamedTuple):
    """Offsets of one partition, from ``start`` up to, not including, ``end``."""

    start: int
    end: int

    @property
    def empty(self) -> bool:
        """True without any offset."""
        return self.end <= self.start


#: By partition.
Spans = Mapping[int, OffsetSpan]


def worth_reading(share: Spans, since: Mapping[int, int | None]) -> dict[int, OffsetSpan]:
    """Return the part of ``share`` that can hold records from some time on.

    Parameters
    ----------
    since : mapping
        The brokers' answer for that time: no earlier offset has a time stamp at or after it; None: no offset has.
    """
    found = {}
    for p, span in share.items():
        first = since.get(p)
        start = span.end if first is None else min(max(span.start, first), span.end)
        found[p] = OffsetSpan(start, span.end)
    return found


def from_start(spans: Spans, most: int) -> dict[int, OffsetSpan]:
    """Return the first ``most`` offsets of each span."""
    return {p: OffsetSpan(span.start, min(span.end, span.start + most)) for p, span in spans.items()}
