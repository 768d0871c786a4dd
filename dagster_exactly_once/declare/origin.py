"""The input record that an output record came from."""

from __future__ import annotations

from typing import NamedTuple


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
