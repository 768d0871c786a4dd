"""The input record that an output record came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from exactly_once.verify.by_origin import origin


class Record(NamedTuple):
    """A record as a consumer delivers it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


#: A partition of the input: its topic and its number.
Partition = tuple[str, int]
#: An input record: its partition and offset.
InputPlace = tuple[Partition, int]
#: Partition and offset of an input record; with several sources, its topic before them.
Origin = tuple[int, int] | tuple[str, int, int]
#: ``origin(topic, record)`` of an output record; None when it does not say.
OriginOf = Callable[[str, Record], Origin | None]


def origin_in_records(where: str, topics: Sequence[str]) -> OriginOf:
    """Return what reads the origin from the place in the records that ``where`` names, such as ``header:src``.

    Raises
    ------
    InvalidOption
        It names no such place.
    """
    text, places = origin.Origin.parse(where).text, origin.Places(topics)

    def read(topic: str, record: Record) -> Origin | None:
        said = text(record)
        with suppress(origin.Unreadable):
            place = places.read(said) if said is not None else None
            return (*place.partition, place.offset) if place is not None else None
        return None

    return read
