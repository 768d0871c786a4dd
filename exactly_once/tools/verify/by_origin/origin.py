"""The text by which an output record names the input record that it came from. Pure.

The text is ``topic-partition-offset`` or ``topic/partition/offset``; ``partition-offset`` will do when the stream has
one input topic. ``#k`` behind it says that this is output k (0, 1, ...) of that input record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from exactly_once.error_headers import CODE, origin_in
from exactly_once.errors import InvalidOption
from exactly_once.kafka.admin import Partition
from exactly_once.protocol.dead_letters import own_headers

#: A function that returns the text of a record that names its origin, or None.
TextOf = Callable[[Any], bytes | None]

#: The most outputs of one input record that are told apart.
MOST_OUTPUTS = 64

#: Most digits of an offset, which has 63 bits.
MOST_DIGITS = 18

_AT_MOST = re.compile(r"at[- ]most[- ](\d+)")
_NAMED = ("header", "json")


class OriginPlace(NamedTuple):
    """The input record that an output record came from, and which of its outputs it is; -1 when it does not say."""

    partition: Partition
    offset: int
    k: int = -1


class Unreadable(ValueError):
    """A record says where it came from in words that cannot be read."""


class SaysOrigin(Protocol):
    """Whatever tells the origin of output records; its ``str`` names it for people."""

    @property
    def certain(self) -> bool:
        """True when only records of this stream have such a text."""

    @property
    def way(self) -> str:
        """``header``, ``key`` or ``value`` where that alone is the text; else something else."""

    @property
    def header(self) -> str:
        """The header that holds the text; "" without one."""

    def of(self, where: Partition) -> TextOf:
        """Return what gives the text of a record of this output partition; None for another writer's record."""


@dataclass(frozen=True)
class Origin:
    """The place where an output record says what it came from: ``way`` is ``header``, ``key``, ``value`` or ``json``;
    ``name`` is the header, or the field of the JSON value (``meta.source`` for a field of a field).
    """

    way: str
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Read ``header:NAME``, ``key``, ``value`` or ``json:FIELD``; raise InvalidOption for anything else."""
        way, colon, name = text.partition(":")
        if (way in _NAMED and name) or (way in ("key", "value") and not colon):
            return cls(way, name)
        raise InvalidOption(
            f"{text!r} does not say where a record names its input record",
            "Use header:NAME, key, value or json:FIELD",
        )

    def text(self, record: Any) -> bytes | None:
        """Return the text of a record, as kafka-python has it; None when it has none: another writer's record."""
        if self.way == "header":
            return next((value for name, value in record.headers if name == self.name), None)
        if self.way == "key":
            return record.key  # type: ignore[no-any-return]
        return record.value if self.way == "value" else _field(record.value, self.name)

    def of(self, where: Partition) -> TextOf:
        return self.text

    @property
    def certain(self) -> bool:
        """True when only records of this stream have such a text: a header or a field of this name is no accident."""
        return self.way in _NAMED

    @property
    def header(self) -> str:
        return self.name if self.way == "header" else ""

    def __str__(self) -> str:
        return f"{self.way}:{self.name}" if self.name else self.way


def _field(value: bytes | None, path: str) -> bytes | None:
    try:
        found = json.loads(value or b"null")
        for name in path.split("."):
            found = found[name]
        if isinstance(found, dict):  # an object with topic, partition and offset
            topic = f"{found['topic']}/" if "topic" in found else ""
            return f"{topic}{found['partition']}{'/' if topic else '-'}{found['offset']}".encode()
        return str(found).encode()
    except (ValueError, KeyError, TypeError, IndexError):
        return None


class Places:
    """Reads the texts, and remembers the partitions that it has met; a text that names another topic than one of the
    input's ``topics`` came from another stream.
    """

    def __init__(self, topics: Iterable[str]):
        self.topics = tuple(dict.fromkeys(topics))
        self._only = self.topics[0] if len(self.topics) == 1 else None
        self._known: dict[bytes, Partition] = {}

    def read_any(self, text: bytes | None) -> OriginPlace | None:
        """Return what ``text`` names, as :meth:`read`; None for no text."""
        return self.read(text) if text is not None else None

    def read(self, text: bytes) -> OriginPlace | None:
        """Return what ``text`` names; None for a record of another stream's input. Raise Unreadable if it names
        nothing.
        """
        k = -1
        place = text
        if b"#" in text:
            place, _, number = text.rpartition(b"#")
            k = _number(number, text)
        separator = b"/" if b"/" in place else b"-"
        behind = place.rfind(separator) + 1
        head, offset = place[:behind], place[behind:]
        where = self._known.get(head)
        if where is None:
            where = self._partition(head[:-1], separator, text)
            if where.__class__ is not tuple or where[0] not in self.topics:
                return None
            self._known[head] = where
        return OriginPlace(where, _number(offset, text), k)

    def _partition(self, head: bytes, separator: bytes, text: bytes) -> Partition:
        topic, _, partition = head.rpartition(separator)
        number = _number(partition, text)
        if topic:
            return topic.decode(errors="replace"), number
        if self._only is None:
            raise Unreadable(f"{_short(text)} names no topic, and the stream has {len(self.topics)}")
        return self._only, number


def named(record: Any, text: TextOf, places: Places) -> OriginPlace | None:
    """Return the input record that a record names; None for another writer's. Raises Unreadable.

    A rejected record, or a dead letter, is that of its error headers where these name a record of the input: its text
    may be what an earlier stream has written. Any other is that of its text.
    """
    said, rejected = text(record), _by_headers(record.headers, places)
    if rejected is None:
        return places.read_any(said)
    with suppress(Unreadable):
        place = places.read_any(said)
        if place is not None and (place.partition, place.offset) == (rejected.partition, rejected.offset):
            return place  # which may also say which of its outputs this is
    return rejected


def _by_headers(headers: Sequence[tuple[str, bytes | None]], places: Places) -> OriginPlace | None:
    """Return what the error headers name: the last ones that name an input record, as of a rejected record that became
    a dead letter.
    """
    while any(name == CODE for name, _ in headers):
        own, _ = own_headers(headers)
        found = origin_in(headers[len(own) :])
        if found is not None:
            with suppress(Unreadable):
                return places.read("/".join(map(str, found)).encode())
        headers = own
    return None


def _number(digits: bytes, text: bytes) -> int:
    if not digits.isdigit() or len(digits) > MOST_DIGITS:
        raise Unreadable(f"{_short(text)} is not topic-partition-offset")
    return int(digits)


def _short(text: bytes) -> str:
    return repr(text[:40].decode(errors="replace")) + ("..." if len(text) > 40 else "")


@dataclass(frozen=True)
class PerInput:
    """The number of outputs of an input record: ``most`` (None: any number). Not ``exactly``: some have fewer, and then
    nothing tells that one is lost.
    """

    most: int | None = 1
    exactly: bool = True

    @classmethod
    def parse(cls, text: str) -> PerInput:
        """Read ``3``, ``at-most-3`` or ``any``; raise InvalidOption for anything else."""
        if text == "any":
            return cls(None, False)
        found = _AT_MOST.fullmatch(text)
        digits = found.group(1) if found else text
        if digits.isdigit() and 1 <= int(digits) <= MOST_OUTPUTS:
            return cls(int(digits), found is None)
        raise InvalidOption(
            f"{text!r} does not say how many output records an input record has",
            f"Use a number from 1 to {MOST_OUTPUTS}, at-most-N (the stream filters), or any",
        )

    def __str__(self) -> str:
        return "any" if self.most is None else f"{'' if self.exactly else 'at-most-'}{self.most}"


def inputs_of(positions: Mapping[Partition, int]) -> list[str]:
    """Return the topics of these partitions."""
    return sorted({topic for topic, _ in positions})
