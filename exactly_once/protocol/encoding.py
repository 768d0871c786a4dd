"""The records of the commit log as JSON.

The JSON carries a format number. A reader refuses a higher number than it knows, so an older version of this package
never acts on a log that it only half understands. It also refuses a field that it does not know. What is only
information, and may pass an older reader unseen, is in the headers of the Kafka record, which older versions ignore.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from exactly_once.errors import CommitLogDamaged
from exactly_once.protocol.records import (
    KAFKA,
    KINDS,
    Claim,
    Decision,
    Place,
    PreparedPart,
    PreparedTransaction,
    Record,
    in_order,
)

#: Raised when a change would mislead an older reader.
FORMAT = 5

#: The headers of a Kafka record, the last one of each name.
Headers = Mapping[str, bytes | str | None]

#: The fields of a claim that are headers of its Kafka record.
_IN_HEADERS = ("operator", "machine")


def encode(record: Record) -> bytes:
    """Encode the record as JSON, without what :func:`headers_of` holds."""
    kind = next(k for k, t in KINDS.items() if isinstance(record, t))
    body = asdict(replace(record, handles=()) if isinstance(record, Decision) else record)
    if isinstance(record, Claim):
        body = {name: value for name, value in body.items() if name not in _IN_HEADERS}
    if isinstance(record, Decision):
        body["handles"] = {name: [_row(h) for h in parts] for name, parts in record.by_participant.items()}
    return json.dumps({"format": FORMAT, "kind": kind, **body}, separators=(",", ":")).encode()


def headers_of(record: Record) -> dict[str, str | bytes | None]:
    """Return the headers of the record's Kafka record."""
    if not isinstance(record, Claim):
        return {}
    return {name: text.encode() for name in _IN_HEADERS if (text := getattr(record, name))}


def decode(value: bytes, headers: Headers | None = None) -> Record:
    """Decode the record in ``value`` and ``headers``. A header that is missing, unknown or no text is no error.

    Raises
    ------
    CommitLogDamaged
        When a newer version wrote it, or it is not a record at all.
    """
    try:
        body: dict[str, Any] = json.loads(value)
        if not isinstance(body, dict):
            raise ValueError("not an object")
        if body.pop("format") > FORMAT:
            raise CommitLogDamaged(
                "the commit log was written by a newer version of this package", "Upgrade the package on this driver"
            )
        kind = KINDS[body.pop("kind")]
        if kind is Decision:
            body["handles"] = _handles(body["handles"], body.pop("others", ()))
            body["topics"], body["rewritten"] = tuple(body["topics"]), tuple(body.get("rewritten", ()))
        record: Record = kind(**body)
        return _with_headers(record, headers or {}) if isinstance(record, Claim) else record
    except (KeyError, TypeError, ValueError) as e:
        raise CommitLogDamaged(
            f"the commit log holds {value[:80]!r}, which is not a commit-log record ({e})",
            "Find out what other than the sink has written to this topic, and stop it",
        ) from e


def _with_headers(claim: Claim, headers: Headers) -> Claim:
    texts = {name: v.decode(errors="replace") for name in _IN_HEADERS if isinstance(v := headers.get(name), bytes)}
    return replace(claim, operator=texts.get("operator", ""), machine=texts.get("machine", ""))


def _row(handle: PreparedTransaction | PreparedPart) -> list[Any]:
    """A handle as a list: a fifth of the size of an object when a batch has a thousand parts."""
    if isinstance(handle, PreparedPart):
        return [handle.name, handle.part, handle.records, handle.digest, dict(handle.data)]
    h = handle
    return [h.transactional_id, h.producer_id, h.epoch, h.part, h.records, h.bytes, h.digest, h.place]


def _handles(
    stored: Mapping[str, Sequence[Any]] | Sequence[Any], others: Iterable[Mapping[str, Any]]
) -> tuple[PreparedTransaction | PreparedPart, ...]:
    """The handles of a stored decision. Up to format 4, ``stored`` is the list of Kafka's, beside the ``others``."""
    if not isinstance(stored, Mapping):
        return in_order([*(_transaction(*h) for h in stored), *(PreparedPart(**h) for h in others)])
    return in_order(
        _transaction(*row) if name == KAFKA else PreparedPart(name, *row)
        for name, rows in stored.items()
        for row in rows
    )


def _transaction(*fields: Any) -> PreparedTransaction:
    handle = PreparedTransaction(*fields[:7])
    return handle.at(Place(*fields[7])) if len(fields) > 7 and fields[7] else handle
