"""Read from a record of the outputs itself where it came from."""

from __future__ import annotations

import json
from typing import Any

from dagster_exactly_once import Record
from exactly_once.error_headers import origin_in
from platform_assets.constants import FLIGHT_DELAYS_REJECTED

#: The JSON of a record, as the stream writes it.
encoded = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

_SOURCE = ',"src":'


def origin(topic: str, record: Record) -> tuple[int, int] | None:
    """Return partition and offset in ``flights`` of the event that ``record`` was made from; None without them."""
    try:
        if topic == FLIGHT_DELAYS_REJECTED:
            place = origin_in(record.headers)
            return place[1:] if place is not None else None
        _, source = split((record.value or b"").decode())
        return int(source["partition"]), int(source["offset"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def split(text: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a record without its last field, ``src``, and that field.

    Parsing all of it would take four times as long.
    """
    at = text.rfind(_SOURCE)
    if at >= 0 and text.endswith("}}"):
        return text[:at] + "}", json.loads(text[at + len(_SOURCE) : -1])
    body = json.loads(text)
    source = body.pop("src")
    return encoded(body), source
