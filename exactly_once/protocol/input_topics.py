"""The topics that a stream reads: whether their records are there, and those that its offsets refer to. Pure.

A topic that was deleted and recreated has another id (KIP-516), and its offsets begin at 0 again: Spark goes on at the
old ones, which name other records, or none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from exactly_once.errors import InputRecreated
from exactly_once.protocol.checkpoint_text import kafka_offsets, source_lines
from exactly_once.protocol.named_sources import Ends
from exactly_once.protocol.names import offsets_group
from exactly_once.protocol.records import Decision
from exactly_once.protocol.topics import recreated

#: Characters of offsets that are shown: some thirty partitions.
_SHOWN = 500


def shown(offsets: Mapping[str, Mapping[int, int]]) -> str:
    """Return offsets as Spark's option ``startingOffsets`` takes them; "" when they are too many to read."""
    text = json.dumps({t: {str(p): at for p, at in ends.items()} for t, ends in offsets.items()})
    return text if len(text) <= _SHOWN else ""


def check_inputs(sink_id: str, last: Decision | None, ids: Mapping[str, str], adopts: Callable[[str], bool]) -> None:
    """Make sure that no input topic was recreated since the last decision.

    The ids are read right before each decision. The same id before two decisions proves that the second batch was
    planned and read from that topic: Spark plans a batch after the decision of the one before.

    Parameters
    ----------
    last : Decision or None
        The last decision of the query; its ``input_ids`` are the ids that its offsets refer to.
    ids : mapping
        Topic -> its id now. A topic that nobody may describe, or that is not on this cluster, is left out.
    adopts
        Whether the user consents that the query goes on in the topic with this id.

    Raises
    ------
    InputRecreated
        Names all such topics that the user does not adopt.
    """
    others = recreated(last.input_ids, ids) if last is not None else {}
    refused = {t: i for t, i in others.items() if not adopts(i)}
    if last is None or not refused:
        return
    ends = kafka_offsets(source_lines(last.offsets))
    at = shown({t: ends[t] for t in refused if t in ends})
    one = len(refused) == 1
    named = " and ".join(f"{t!r} (its id was {last.input_ids[t]}, and is {i} now)" for t, i in refused.items())
    raise InputRecreated(
        f"the input topic{'' if one else 's'} {named} {'was' if one else 'were'} deleted and recreated after the "
        f"decision of batch {last.batch_id} of sink {sink_id!r}: the query would go on at its old offsets"
        f"{f', {at}' if at else ''}, which are those of the deleted topic{'' if one else 's'}",
        f"To read all of the new topic{'' if one else 's'}, set the option sink.takeover={last.query_id} for one start "
        f"with a new checkpoint, whose startingOffsets begin at the earliest offset of {', '.join(refused)}, and "
        f"elsewhere at the offsets of the consumer group {offsets_group(sink_id)}. To go on at the old offsets, so "
        "that the records of the new topic before them are never read, set the option "
        f"sink.adopt={','.join(others.values())} for one start, beside the values that it has. If the query reads "
        "another cluster, and only this one has a new topic of that name, set sink.input.offsets=false",
    )


#: States of a batch in flight by the commit log: every part of it is committed; it is decided, and parts of it are not
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
    """Say what is missing in the output when the input of the batch in flight is gone, and what to do, by the
    ``standing`` of the batch; ``command`` repairs the checkpoint.
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
