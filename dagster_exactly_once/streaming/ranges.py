"""Ranges of rejected records and dead letters: what is asked for, what was sent again, and what is left. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dagster_exactly_once.streaming.source import OffsetSpan
from exactly_once.errors import InvalidOption
from exactly_once.kafka.admin import Watermarks

_RANGE = re.compile(r"(?P<first>\d+)(-(?P<last>\d+))?")


class RejectedSpan(NamedTuple):
    """Offsets of one partition of the rejected topic that one write sends again."""

    partition: int
    span: OffsetSpan

    def named(self, topic: str) -> str:
        """Return it in words."""
        return f"{topic}-{self.partition}, offsets {self.span.start} to {self.span.end - 1}"

    def write_id(self, topic: str, topic_id: str) -> str:
        """Return the name of the write in the commit log. A topic that was made again has another id."""
        return f"{topic}/{topic_id}/{self.partition}/{self.span.start}-{self.span.end - 1}"


def sent(write_ids: Iterable[str], topic: str, topic_id: str) -> list[RejectedSpan]:
    """Return what the writes with these ids have sent."""
    prefix, found = f"{topic}/{topic_id}/", []
    for write_id in write_ids:
        if write_id.startswith(prefix):
            partition, _, offsets = write_id.removeprefix(prefix).partition("/")
            first, _, last = offsets.partition("-")
            found.append(RejectedSpan(int(partition), OffsetSpan(int(first), int(last) + 1)))
    return found


def asked(offsets: Mapping[str, str], marks: Mapping[int, Watermarks]) -> list[RejectedSpan]:
    """Return what a person asks for, as far as readers see it: by partition ``"12-40"`` or ``"12"``; all if empty.
    Raises InvalidOption for a partition that the topic does not have, or a range that is none.
    """
    if not offsets:
        return [RejectedSpan(p, OffsetSpan(w.low, w.last_stable)) for p, w in sorted(marks.items())]
    spans = []
    for partition, text in offsets.items():
        said = _RANGE.fullmatch(text.strip())
        if said is None or partition not in map(str, marks):  # not "00" beside "0", whose ranges could overlap
            raise InvalidOption(
                f"the field offsets has {partition!r}: {text!r}, which is no range of a partition that the topic has "
                f"({', '.join(map(str, sorted(marks)))})",
                "Write the first and the last offset of a partition, like offsets: {'0': '12-40'}",
            )
        number, end = int(partition), int(said["last"] or said["first"]) + 1
        mark = marks[number]
        spans.append(RejectedSpan(number, OffsetSpan(max(int(said["first"]), mark.low), min(end, mark.last_stable))))
    return spans


def remaining(wanted: Iterable[RejectedSpan], done: Iterable[RejectedSpan]) -> list[RejectedSpan]:
    """Return ``wanted`` without ``done``, in pieces without a gap."""
    left = []
    for partition, span in wanted:
        start = span.start
        for other in sorted(d.span for d in done if d.partition == partition):
            if other.start > start:
                left.append(RejectedSpan(partition, OffsetSpan(start, min(other.start, span.end))))
            start = max(start, other.end)
        left.append(RejectedSpan(partition, OffsetSpan(start, span.end)))
    return [piece for piece in left if not piece.span.empty]
