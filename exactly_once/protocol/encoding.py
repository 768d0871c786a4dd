"""The records of the commit log as JSON.

The JSON carries a format number. A reader refuses a higher number than it knows, so an older version of this package
never acts on a log that it only half understands. It also refuses a field that it does not know. What is only
information, and may pass an older reader unseen, is in the headers of the Kafka record, which older versions ignore.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from exactly_once.errors import CommitLogDamaged
from exactly_once.protocol.checksum import distribution_of
from exactly_once.protocol.names import LONGEST_OPERATOR
from exactly_once.protocol.records import (
    ACCEPTED,
    COMMITTED,
    KAFKA,
    KINDS,
    Claim,
    Completed,
    Count,
    Decision,
    Place,
    PreparedPart,
    PreparedTransaction,
    Record,
    in_order,
)
from exactly_once.protocol.topics import ANY_TOPIC
from exactly_once.protocol.untrusted import are_ends, are_topic_ids, check_fields, is_count

#: Size before compression, so eight times what the topic takes: decisions are full of what repeats.
LARGEST_RECORD_BYTES = 64 * 1024 * 1024

#: Characters that are shown of a record, and of what is wrong with it.
_SHOWN = 80

#: Number of the format, raised when a change would mislead an older reader.
FORMAT = 6

#: The headers of a Kafka record, the last one of each name.
Headers = Mapping[str, bytes | str | None]

#: The fields that are headers of the Kafka record; one that has its default value is left out.
_IN_HEADERS: dict[type, tuple[str, ...]] = {
    Claim: ("operator", "machine", "progress"),
    Completed: ("how",),
    Decision: ("counted", "ended", "input_ids"),
}

#: The fields of a decision that are headers: the most that their reader takes, and what JSON becomes such a field.
_OF_DECISION: dict[str, tuple[int, Callable[[Any], bool], Callable[[Any], Any]]] = {
    "counted": (64 * 1024, is_count, lambda of: Count(**of)),
    "ended": (1024 * 1024, are_ends, lambda of: {t: {int(p): at for p, at in its.items()} for t, its in of.items()}),
    "input_ids": (1024 * 1024, are_topic_ids, dict),
}


def encode(record: Record) -> bytes:
    """Encode the record as JSON, without what :func:`headers_of` holds."""
    kind = next(k for k, t in KINDS.items() if isinstance(record, t))
    body = asdict(replace(record, handles=()) if isinstance(record, Decision) else record)
    body = {name: value for name, value in body.items() if name not in _IN_HEADERS.get(type(record), ())}
    if isinstance(record, Decision):
        body["handles"] = {name: [_row(h) for h in parts] for name, parts in record.by_participant.items()}
    return json.dumps({"format": FORMAT, "kind": kind, **body}, separators=(",", ":")).encode()


def headers_of(record: Record) -> dict[str, bytes]:
    """Return the headers of the record's Kafka record."""
    if isinstance(record, Decision):
        told = {"counted": record.counted, "ended": record.ended, "input_ids": record.input_ids or None}
        return {
            name: json.dumps(value, separators=(",", ":"), default=asdict).encode()
            for name, value in told.items()
            if value is not None
        }
    texts = {name: getattr(record, name) for name in _IN_HEADERS.get(type(record), ())}
    return {name: text.encode() for name, text in texts.items() if text not in ("", COMMITTED)}


def decode(value: bytes, headers: Headers | None = None) -> Record:
    """Decode the record in ``value`` and ``headers``. A header that is missing, unknown or no text is no error.

    Whoever may write to the topic may have written ``value``: it takes at most some 30 times its size in memory, and
    every field of what is returned has been checked (:func:`~exactly_once.protocol.untrusted.check_fields`).

    Raises
    ------
    CommitLogDamaged
        When a newer version wrote it, or it is not a record at all.
    """
    try:
        record = _record(value)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as e:
        why = str(e)[: 3 * _SHOWN]
    else:
        return _with_headers(record, headers or {})
    # raised outside of the handler: the exceptions of a log full of garbage must not keep its text
    raise CommitLogDamaged(
        f"the commit log holds {value[:_SHOWN]!r}, which is not a commit-log record ({why})",
        "Find out which other program has written to the commit log's topic, and stop that program",
    )


def _record(value: bytes) -> Record:
    if len(value) > LARGEST_RECORD_BYTES:
        raise ValueError(f"{len(value)} bytes")
    # not json.loads(bytes), which takes UTF-16 and half characters too
    body: dict[str, Any] = json.loads(value.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    if not isinstance(body, dict):
        raise ValueError("not an object")
    if _format(body.pop("format")) > FORMAT:
        raise CommitLogDamaged(
            "the commit log was written by a newer version of this package", "Upgrade the package on this driver"
        )
    if b"\\ud" in value or b"\\uD" in value:
        json.dumps(body, ensure_ascii=False).encode()  # half a character cannot be printed, nor sent to a broker
    kind = KINDS[body.pop("kind")]
    if kind is Decision:
        body["handles"] = _handles(body["handles"], body.pop("others", ()))
        body["topics"], body["rewritten"] = _tuple(body["topics"]), _tuple(body.get("rewritten", []))
    record: Record = kind(**body)
    check_fields(record)
    return replace(record, handles=in_order(record.handles)) if isinstance(record, Decision) else record


def _format(number: Any) -> int:
    if type(number) is not int or number < 1:
        raise ValueError("the format is not a number")
    return number


def _tuple(value: Any) -> tuple[Any, ...]:
    if type(value) is not list:
        raise ValueError("a value that should be a list is not one")
    return tuple(value)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object in which no field is there twice: readers would not agree on which one counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a field occurs twice")
    return found


def _no_number(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _with_headers(record: Record, headers: Headers) -> Record:
    if isinstance(record, Decision):
        return replace(record, **_of_decision(headers))
    names = _IN_HEADERS.get(type(record), ())
    texts = {name: _line(v) for name in names if isinstance(v := headers.get(name), bytes)}
    if isinstance(record, Claim):
        progress = _progress(headers.get("progress"))
        return replace(record, operator=texts.get("operator", ""), machine=texts.get("machine", ""), progress=progress)
    if isinstance(record, Completed):
        return replace(record, how=ACCEPTED if texts.get("how") == ACCEPTED else COMMITTED)
    return record


def _of_decision(headers: Headers) -> dict[str, Any]:
    """Return the fields of a decision that headers hold, without values that do not fit: mere information must not make
    a stream fail, and an absent field claims nothing.
    """
    given = {name: _parsed(headers.get(name), longest) for name, (longest, _, _) in _OF_DECISION.items()}
    return {name: make(given[name]) for name, (_, holds, make) in _OF_DECISION.items() if holds(given[name])}


def _parsed(text: bytes | str | None, longest: int) -> Any:
    """Return the JSON in a header; None for any other text."""
    if not isinstance(text, bytes) or len(text) > longest:
        return None
    try:
        return json.loads(text.decode())
    except (RecursionError, ValueError):
        return None


def _progress(text: bytes | str | None) -> str:
    """Return a header as the name of a topic; "" for one that no claim may name, such as another sink's log."""
    name = text.decode(errors="replace") if isinstance(text, bytes) else ""
    return "" if ANY_TOPIC.refusal(name) else name


def _line(text: bytes) -> str:
    """Return a header as a line that a terminal can show: mere information must not make a claim fail."""
    line = text[: 4 * LONGEST_OPERATOR].decode(errors="replace")[:LONGEST_OPERATOR]
    return "".join(c if c.isprintable() else "\ufffd" for c in line)


def _row(handle: PreparedTransaction | PreparedPart) -> list[Any]:
    """Return a handle as a list: a fifth of the size of an object when a batch has a thousand parts."""
    if isinstance(handle, PreparedPart):
        return [handle.name, handle.part, handle.records, handle.digest, dict(handle.data)]
    h = handle
    told = [h.transactional_id, h.producer_id, h.epoch, h.part, h.records, h.bytes, h.digest, h.place, h.form]
    distribution = h.distribution or distribution_of(h.written)
    return [*told, distribution, h.dead] if h.dead else [*told, distribution] if distribution else told


def _handles(
    stored: Mapping[str, Sequence[Any]] | Sequence[Any], others: Iterable[Mapping[str, Any]]
) -> tuple[PreparedTransaction | PreparedPart, ...]:
    """Return the handles of a stored decision.

    Up to format 4, ``stored`` is the list of Kafka's, next to the ``others``.
    """
    if not isinstance(stored, Mapping):
        return (*(_transaction(*h) for h in stored), *(PreparedPart(**h) for h in others))
    return tuple(
        _transaction(*row) if name == KAFKA else PreparedPart(name, *row)
        for name, rows in stored.items()
        for row in rows
    )


def _transaction(*fields: Any) -> PreparedTransaction:
    handle, more = PreparedTransaction(*fields[:7]), fields[7:]
    if len(more) > 4:
        raise ValueError(f"a handle of {len(fields)} fields")
    if len(more) > 1:
        distribution, dead = more[2] if len(more) > 2 else "", more[3] if len(more) > 3 else 0
        handle = replace(handle, form=more[1], distribution=distribution, dead=dead)
    return replace(handle, place=Place(*more[0])) if more and more[0] else handle
