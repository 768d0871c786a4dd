"""The errors for parts of a decided batch that were rolled back: proven lost, or in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from exactly_once.errors import Expired, Lost

if TYPE_CHECKING:
    from exactly_once.participant import Handle
    from exactly_once.protocol.records import Decision


def lost_parts(sink_id: str, decision: Decision, handles: Sequence[Handle]) -> Lost:
    """The error of a decided batch, or write, of which ``handles`` are proven to be lost."""
    again = (
        f"Run the write {decision.write_id!r} again: it writes exactly these parts again"
        if decision.write_id
        else "Start the stream again: it writes exactly these parts again, from the same micro-batch"
    )
    return Lost(
        f"{decision.title(sink_id)} is decided, but {len(handles)} of its parts were rolled back before their commit, "
        f"by a timeout or by an operator: {part_list(handles)}",
        again,
    )


def in_doubt(name: str, decision: Decision, handles: Sequence[Handle], why: str) -> Expired:
    """The error for a decided batch whose ``handles`` ended in an unknown way, or cannot be written again."""
    return Expired(
        f"{name} is decided, but {len(handles)} of its parts are in doubt: {why}: {part_list(handles)}",
        f"The rows of these parts come from {origin(decision)}: find out whether the output holds these rows, write "
        f"the missing ones from that input, then set the option sink.accept.lost={decision.word} for one start",
    )


def origin(decision: Decision) -> str:
    """Where the rows of the decision come from, as a person may read them again."""
    if decision.write_id:
        return f"the write {decision.write_id!r}"
    return f"the input {_range(decision.batch_id)} of the checkpoint"


def part_list(handles: Sequence[Handle]) -> str:
    """The first of the parts, by number, records and name; and how many more there are."""
    parts = ", ".join(f"part {h.part} ({h.records} records, {h.name})" for h in handles[:5])
    return parts + (f" and {len(handles) - 5} more" if len(handles) > 5 else "")


def _range(batch_id: int) -> str:
    return f"between offsets/{batch_id - 1} and offsets/{batch_id}" if batch_id else "up to offsets/0"
