"""The headers of a rejected record, and of the sink's dead letters: why, and where from. All values are text in UTF-8.

The names are those of the dead letters of Kafka Streams (KIP-1034, ``__streams.errors.exception``, ...) under this
project's prefix, so that tools for the one read the other after a change of the prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PREFIX = "__exactly_once.errors."

#: The code of the project's error that the record would have been, such as EO-TRANSFORM. The first of our headers: what
#: stands before the last one with this name is the record's own.
CODE = f"{PREFIX}code"
#: The class of the exception, with its module unless Python has it built in.
EXCEPTION = f"{PREFIX}exception"
#: The text of the exception, or the reason.
MESSAGE = f"{PREFIX}message"
#: The record of the input: its topic, partition and offset, as far as they are known.
TOPIC = f"{PREFIX}topic"
PARTITION = f"{PREFIX}partition"
OFFSET = f"{PREFIX}offset"
#: Headers of a dead letter: the topic that its row was for, and the partition and the timestamp (ms) that the row
#: chose.
OUTPUT_TOPIC = f"{PREFIX}output.topic"
OUTPUT_PARTITION = f"{PREFIX}output.partition"
OUTPUT_TIMESTAMP = f"{PREFIX}output.timestamp"
#: Header of a dead letter that names which of its key and value are JSON, since they do not fit their schemas: ``key``,
#: ``value`` or ``key,value``.
JSON = f"{PREFIX}json"

#: Header of a record that was sent again to an output: the rejected record or the dead letter that it replaces, as
#: topic-partition-offset.
RESENT = "__exactly_once.resent"

#: Characters of the longest message; more is cut: the headers count for the largest record that a topic takes.
LONGEST_MESSAGE = 1_000


def origin_in(headers: Iterable[tuple[str, bytes | None]]) -> tuple[str, int, int] | None:
    """Return topic, partition and offset of the input record that a rejected one was; None where it does not say.

    A record that was rejected twice has each header twice, and the last one counts.
    """
    found = dict(headers)
    try:
        topic, partition, offset = ((found[name] or b"").decode() for name in (TOPIC, PARTITION, OFFSET))
        return topic, int(partition), int(offset)
    except (KeyError, ValueError):
        return None


def replaced_in(headers: Sequence[tuple[str, bytes | None]]) -> bytes | None:
    """Return what the last :data:`RESENT` says; None for a record that was not sent again."""
    return next((value for name, value in reversed(headers) if name == RESENT), None)


def reason_in(headers: Iterable[tuple[str, bytes | None]]) -> str:
    """Return exception and message of a rejected record in one line; "" where it has neither."""
    found = {name: (value or b"").decode(errors="replace") for name, value in headers}
    said = [text for name in (EXCEPTION, MESSAGE) if (text := found.get(name, ""))]
    return " ".join(": ".join(said).split())
