"""Check that an open transaction holds what its task wrote. Pure.

"Open" is a coordinator's word, and a transaction of which a part is gone is open as well: a broker without the newest
records became leader, somebody wrote an abort marker on one partition, or ended the transaction between two requests of
its task, whose next one began another. So the task says what it wrote to which partition, as the brokers acknowledged
it, and that is compared with what coordinator and partition leaders say. Each record of a producer has the sequence
number after the last one's, from 0 on, since the producer was initialised for this transaction alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from exactly_once.errors import Expiring
from exactly_once.protocol.records import OffsetRange, Written

#: Number of sequence numbers: after the last one comes 0.
_SEQUENCES = 1 << 31


def mismatch(
    written: Written,
    named: Collection[tuple[str, int]],
    held: Mapping[tuple[str, int], OffsetRange | None] | None = None,
) -> str:
    """Return how the transaction differs from what its task wrote, as a clause; "" when nobody contradicts the task.

    Parameters
    ----------
    named
        The partitions of the transaction, by its coordinator.
    held
        By the partitions' leaders, what it holds there; None: it is not open there. A partition whose leader was not
        asked, or did not answer, is left out: that is no word against it.
    """
    for where in sorted({*written} ^ {*named}):
        if where in written:
            return f"its coordinator does not name {_name(where)}, to which the task wrote"
        return f"its coordinator names {_name(where)}, to which the task did not write"
    for where, found in sorted((held or {}).items()):
        if where in written and (why := _differs(written[where], found)):
            return f"the leader of {_name(where)} {why}"
    return ""


def _differs(wrote: OffsetRange, held: OffsetRange | None) -> str:
    if held is None:
        return "does not know it"
    if wrote.first_offset not in (-1, held.first_offset):
        what = (
            "records of the task are gone"
            if held.first_offset > wrote.first_offset
            else "records of another writer are in it"
        )
        return f"says that it begins at offset {held.first_offset} instead of {wrote.first_offset}: {what}"
    if (wrote.records - held.records) % _SEQUENCES:
        return f"counts {held.records} records instead of {wrote.records}"
    return ""


def distribution_of(written: Written) -> str:
    """Digest where records stand: topic, partition, first offset and number. "" when an offset is not known.

    Eight hexadecimal digits: a decision keeps one for each part, and nobody forges the place of a record.
    """
    if not written or any(e.first_offset < 0 for e in written.values()):
        return ""
    text = ";".join(f"{topic}-{p}@{e.first_offset}+{e.records}" for (topic, p), e in sorted(written.items()))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def not_whole(transactional_id: str, part: int, why: str) -> Expiring:
    """Return the error of a transaction that is not what its task wrote."""
    return Expiring(
        f"the transaction {transactional_id} of part {part} is open, but does not hold what its task wrote: {why}",
        "Start the stream (or the write) again. Then find out whether a broker without the newest records became "
        "leader (unclean.leader.election.enable), whether a topic was deleted and recreated, or who ended the "
        "transaction or wrote an abort marker into it (kafka-transactions.sh abort, for example)",
    )


def _name(where: tuple[str, int]) -> str:
    return f"{where[0]}-{where[1]}"
