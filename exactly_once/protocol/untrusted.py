"""Checks of what a record of the commit log may hold.

Whoever may write to its topic can write anything there: nothing in a record reaches a broker, a database or a file
before it was checked here. What it names beyond the sink's own is refused.

The types of an output's own ``data`` are checked here, its meaning by the output (:meth:`Participant.commit`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from reprlib import repr as shortened
from typing import Any

from exactly_once.errors import CommitLogDamaged
from exactly_once.protocol.names import PartId, PartName
from exactly_once.protocol.records import (
    KAFKA,
    Aborted,
    Claim,
    Completed,
    Decision,
    Place,
    PreparedPart,
    PreparedTransaction,
    Record,
    Retired,
    Tally,
)
from exactly_once.protocol.topics import NAME

#: Bytes of the longest string of Kafka's protocol; paths and ids of writes are shorter.
LONGEST_TEXT = 32_767

#: Limit of the text of ``offsets/N``, in characters. The text is kept up to 64 KiB; this only bounds what is taken.
_LONGEST_OFFSETS = 1024 * 1024

#: Bounds of the signed integers of 16, 32 and 64 bits, as which numbers travel in Kafka's protocol.
_SHORT, _INT, _LONG = 2**15, 2**31, 2**63

_Check = Callable[[Any], bool]


def _text(value: Any) -> bool:
    return type(value) is str and len(value) <= LONGEST_TEXT


def _word(value: Any) -> bool:
    """Return whether errors and tables may show it as it is: without control characters, which a terminal obeys."""
    return _text(value) and value.isprintable()


def _topic(value: Any) -> bool:
    return type(value) is str and NAME.fullmatch(value) is not None


def _below(limit: int, least: int = 0) -> _Check:
    return lambda value: type(value) is int and least <= value < limit


_long, _int, _short = _below(_LONG), _below(_INT), _below(_SHORT)


def _partition(value: Any) -> bool:
    """Return whether ``value`` is the number of a partition as a name of JSON."""
    return type(value) is str and len(value) <= 10 and value.isascii() and value.isdecimal()


#: A time or a duration; -1 when it is unknown.
_ms = _below(_LONG, least=-1)


def _tuple_of(of: _Check) -> _Check:
    return lambda value: isinstance(value, tuple) and all(map(of, value))


def _mapping_of(key: _Check, of: _Check) -> _Check:
    return lambda value: isinstance(value, Mapping) and all(key(k) and of(v) for k, v in value.items())


def _totals(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) in (3, 4) and all(map(_long, value))


def is_count(value: Any) -> bool:
    """Return whether ``value`` is a :class:`Count` as plain values."""
    return (
        isinstance(value, dict)
        and value.keys() == {"records", "since_ms"}
        and _long(value["since_ms"])
        and _mapping_of(_word, _long)(value["records"])
    )


def are_ends(value: Any) -> bool:
    """Return whether ``value`` says as JSON where topics ended."""
    return _mapping_of(_topic, _mapping_of(_partition, _long))(value)


def are_topic_ids(value: Any) -> bool:
    """Return whether ``value`` maps names of topics to their ids."""
    return _mapping_of(_topic, _word)(value)


def _datum(value: Any) -> bool:
    return _text(value) or _below(_LONG, least=-_LONG)(value)


def _moment(value: Any) -> bool:
    return _long(value) or (type(value) is float and math.isfinite(value) and value >= 0)


def _none(value: Any) -> bool:
    return value is None


def _nothing(value: Any) -> bool:
    return isinstance(value, Mapping) and not value


#: Checks by the name of a field: it holds the same in every kind of record.
_BY_NAME: dict[str, _Check] = {
    **dict.fromkeys(("token", "batch_id", "pid", "producer_id", "records", "bytes", "dead", "too_long"), _long),
    **dict.fromkeys(("completed", "aborted", "drained", "rewritten"), _long),
    **dict.fromkeys(("claimed_ms", "began_ms", "decided_ms", "prepare_ms", "decide_ms", "complete_ms"), _ms),
    **dict.fromkeys(("completed_ms", "aborted_ms", "took_ms", "limit_ms", "retired_ms"), _ms),
    **dict.fromkeys(("query_id", "checkpoint", "operator", "machine", "progress"), _text),
    **dict.fromkeys(("purpose", "host", "offsets_digest", "run_id", "how", "execution", "successor"), _word),
    **dict.fromkeys(("transactional_id", "participant", "name", "digest", "form", "distribution"), _word),
    "part": _int,
    "epoch": _short,
    "end_txn_version": _short,
    "pid_started": _moment,
    "handles": _tuple_of(lambda value: isinstance(value, PreparedTransaction | PreparedPart)),
    "topics": _tuple_of(_topic),
    "topic_ids": are_topic_ids,
    "totals": _mapping_of(_word, _totals),
    "data": _mapping_of(_text, _datum),
    "place": lambda value: value is None or _is_place(value),
    "written": _nothing,  # a decision keeps its digest alone
    "counted": _none,  # a header has this field, and the next two
    "ended": _none,
    "input_ids": _nothing,
}

#: Fields that hold something else in one kind.
_OF_KIND: dict[tuple[type, str], _Check] = {
    (Claim, "query_id"): lambda value: value is None or _text(value),
    (Decision, "offsets"): lambda value: type(value) is str and len(value) <= _LONGEST_OFFSETS,
    (Decision, "rewritten"): _tuple_of(_word),
    (Retired, "offsets"): are_ends,
    (PreparedTransaction, "end_txn_version"): lambda value: value == 0,
    (PreparedTransaction, "topic_ids"): _nothing,
}

#: Every field of every kind: one without a check is an error of this module.
_FIELDS = {
    kind: {f.name: _OF_KIND.get((kind, f.name)) or _BY_NAME[f.name] for f in fields(kind)}
    for kind in (Claim, Decision, Completed, Aborted, Retired, Tally, PreparedTransaction, PreparedPart)
}


def _is_place(value: Any) -> bool:
    return isinstance(value, Place) and _topic(value.topic) and _int(value.partition) and _long(value.offset)


def check_fields(record: Record) -> None:
    """Raise ValueError, with its name and the beginning of what it holds, for a field that holds what no sink writes
    there.
    """
    _check(record)
    if isinstance(record, Decision):
        for handle in record.handles:
            _check(handle)


def _check(of: Record | PreparedTransaction | PreparedPart) -> None:
    for name, holds in _FIELDS[type(of)].items():
        if not holds(value := getattr(of, name)):
            raise ValueError(f"{name} is {shortened(value)}")


def check_own(record: Record, sink_id: str) -> None:
    """Raise ValueError, with the first part that is not the sink's, unless a decision names parts of ``sink_id`` alone:
    who writes to the log of one sink must not end what another sink or application has prepared.
    """
    if not isinstance(record, Decision):
        return
    for handle in record.handles:
        part: PartId | PartName | None
        if isinstance(handle, PreparedTransaction):
            part = PartId.parse(handle.transactional_id)
        else:
            part = PartName.parse(handle.name)
            if part is not None and part.participant not in ("", handle.participant):
                part = None
            if handle.participant == KAFKA:
                part = None
        if part is None or (part.sink_id, part.part) != (sink_id, handle.part):
            raise ValueError(f"{shortened(handle.name)} is not part {handle.part} of sink {sink_id!r}")


def forged(part: str, how: str) -> CommitLogDamaged:
    """Return the error of a decision with a handle that no task of the sink made; ``how`` follows the part's name."""
    name = PartName.parse(part)
    return CommitLogDamaged(
        f"a decision in the commit log is not the sink's: its handle of {part!r} {how}",
        "Stop the program that writes into the commit log, then run exactly-once log "
        f"{name.sink_id if name else 'SINK'} to see the decision, its writer and the command that undoes it",
    )
