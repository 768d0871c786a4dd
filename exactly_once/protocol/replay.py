"""The lost parts of a decided batch, and the parts that stand for them when the batch is run again. Pure.

A part is known by its rows (their number and their digest) and not by its number: Spark may give the same rows to
another task. Its Kafka source does so with up to four partitions: it orders them as the brokers' answer does, and in a
batch that it runs again as ``offsets/N`` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exactly_once.participant import Handle
    from exactly_once.protocol.records import PreparedPart, PreparedTransaction

#: Participant -> part (as text) -> [records, digest] of decided parts that were lost and must be written again.
Replay = dict[str, dict[str, list[Any]]]


@dataclass(frozen=True, slots=True)
class Match:
    """The parts that a replay has prepared.

    Attributes
    ----------
    handles : tuple
        One for each lost part that came again.
    spare : tuple
        Those whose rows are equal to those of another one in ``handles``, and that nobody waits for.
    missing : list of (participant, part)
        The lost parts whose rows did not come again.
    """

    handles: tuple[PreparedTransaction | PreparedPart, ...]
    spare: tuple[PreparedTransaction | PreparedPart, ...]
    missing: list[tuple[str, str]]


def stands_for_lost(handle: Handle, replay: Replay) -> bool:
    """Return whether a part has the rows of a lost one of its participant."""
    return rows_of(handle) in replay.get(handle.participant, {}).values()


def match(replay: Replay, handles: Iterable[PreparedTransaction | PreparedPart]) -> Match:
    """Find a part for each lost one: with the same rows, and the same number where there is one."""
    left, chosen, missing = list(handles), [], []
    for participant, lost in replay.items():
        for part, rows in lost.items():
            equal = [h for h in left if h.participant == participant and rows_of(h) == rows]
            if not equal:
                missing.append((participant, part))
                continue
            found = min(equal, key=lambda h: str(h.part) != part)
            left.remove(found)
            chosen.append(found)
    return Match(tuple(chosen), tuple(left), missing)


def lost_handles(
    replay: Replay, handles: Sequence[PreparedTransaction | PreparedPart]
) -> tuple[PreparedTransaction | PreparedPart, ...]:
    """Return the lost ones of a decision's handles. Of two that an earlier replay has left with the same number and
    the same rows, the later one is lost: the other is committed.
    """
    found = {
        (h.participant, str(h.part)): h for h in handles if rows_of(h) == replay.get(h.participant, {}).get(str(h.part))
    }
    return tuple(found.values())


def rows_of(handle: Handle) -> list[Any]:
    """Return number and digest of a part's rows, as a :data:`Replay` has them."""
    return [handle.records, handle.digest]
