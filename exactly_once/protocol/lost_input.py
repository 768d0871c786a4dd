"""Input of the batch in flight that is gone: what the commit log says of the batch decides what is lost. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from exactly_once.protocol.named_sources import Ends

#: What a batch in flight is by the commit log: every part of it is committed; it is decided, and parts of it are not
#: proven committed; it is not decided.
COMMITTED, DECIDED, UNDECIDED = "committed", "decided", "undecided"


def standing_of(batch_id: int, decided: Iterable[int], unproven: Iterable[int]) -> str:
    """Return what the batch in flight is, by the numbers of its query's decided batches and of those among them that
    are not proven committed.
    """
    if batch_id not in decided:
        return UNDECIDED
    return DECIDED if batch_id in unproven else COMMITTED


def gone(begins: Ends, ends: Ends, earliest: Mapping[tuple[str, int], int]) -> dict[str, dict[int, int]]:
    """Return where input of a batch from ``begins`` to ``ends`` is gone: topic -> partition -> the oldest offset that
    its leader still has (``earliest``, by topic and partition). Nothing where ``begins`` is empty: a batch that
    begins anywhere lacks nothing for certain.
    """
    found: dict[str, dict[int, int]] = {}
    for topic, its in ends.items() if begins else ():
        for p, end in its.items():
            begin, now = begins.get(topic, {}).get(p, 0), earliest.get((topic, p), 0)
            if begin < min(end, now):
                found.setdefault(topic, {})[p] = now
    return found


def advice(batch_id: int, standing: str, command: str) -> tuple[str, str]:
    """Say what is missing in the output when the input of the batch in flight is gone, and what to do.

    Parameters
    ----------
    standing
        One of :data:`COMMITTED`, :data:`DECIDED` and :data:`UNDECIDED`.
    command
        The command that repairs the checkpoint.

    Returns
    -------
    (str, str)
    """
    if standing == COMMITTED:
        return (
            f"batch {batch_id} is completed, and nothing of it is left to write: Spark reads its input once more only "
            "to mark it",
            f"Run {command} --write-commit --apply (in Dagster: the job exactly_once_checkpoint_repair with "
            "write_commit), which marks it, and start again",
        )
    if standing == DECIDED:
        return (
            f"batch {batch_id} is decided, but not all of it is proven committed: the rows of a part that was rolled "
            "back are lost with their input",
            "Put back the records, and start again. If they are gone for good, start once with the source option "
            "failOnDataLoss=false: EO-EXPIRED then names the parts, and the value of sink.accept.lost that goes on "
            "without them",
        )
    return (
        f"batch {batch_id} is not decided: the records that are gone were never written",
        "Put back the records, and start again. If they are gone for good, start once with the source option "
        "failOnDataLoss=false: the stream goes on with the oldest records that are there, and writes nothing twice",
    )
