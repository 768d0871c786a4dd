"""The errors for parts of a decided batch: proven lost, or in doubt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from exactly_once.errors import Expired, Lost

if TYPE_CHECKING:
    from exactly_once.participant import Handle
    from exactly_once.protocol.records import Decision


def lost_parts(sink_id: str, decision: Decision, handles: Sequence[Handle]) -> Lost:
    """Make the error for a decided batch or write with ``handles`` that are proven lost."""
    again = (
        f"Run the write {decision.write_id!r} again: it writes exactly these parts again"
        if decision.write_id
        else "Start the stream again: it writes exactly these parts again, from the same micro-batch"
    )
    return Lost(
        f"{decision.title(sink_id)} is decided, but {len(handles)} of its parts are lost (a timeout or an operator "
        f"rolled them back before the commit, or an output topic was deleted since): {part_list(handles)}",
        again,
    )


def in_doubt(name: str, decision: Decision, handles: Sequence[Handle], why: str) -> Expired:
    """Make the error for a decided batch with ``handles`` whose outcome is unknown, or that cannot be written again."""
    return Expired(
        f"{name} is decided, but {doubtful(handles, why)}",
        f"The rows of the parts in doubt come from {origin(decision)}. Find out whether the output holds these rows, "
        f"write the missing rows, then set the option sink.accept.lost={decision.consent} for one start",
    )


def other_rows(name: str, decision: Decision, handles: Sequence[Handle]) -> Expired:
    """Make the error for a decided batch with lost ``handles`` whose rows did not come again."""
    why = (
        "these parts were rolled back, and the same micro-batch now gives other rows (the plan is not deterministic, "
        "or the plan or its partitions changed)"
    )
    return Expired(
        f"{name} is decided, but {doubtful(handles, why)}",
        f"Start the stream with the code and the settings with which {name} was decided; or write the missing rows, "
        f"which come from {origin(decision)}, yourself, then set the option sink.accept.lost={decision.consent} for "
        "one start",
    )


def doubtful(handles: Sequence[Handle], why: str) -> str:
    """Say that ``handles`` are in doubt, as a clause."""
    return f"{len(handles)} of its parts {'is' if len(handles) == 1 else 'are'} in doubt: {why}: {part_list(handles)}"


def origin(decision: Decision) -> str:
    """Say where the rows of the decision come from, in words by which a person may read them again."""
    if decision.write_id:
        return f"the write {decision.write_id!r}"
    batch = decision.batch_id
    between = f"between offsets/{batch - 1} and offsets/{batch}" if batch else "up to offsets/0"
    return f"the input {between} of the checkpoint"


def part_list(handles: Sequence[Handle]) -> str:
    """Describe the first parts by number, records and name, and count the others."""
    parts = ", ".join(f"part {h.part} ({h.records} records, {h.name})" for h in handles[:5])
    return parts + (f" and {len(handles) - 5} more" if len(handles) > 5 else "")
