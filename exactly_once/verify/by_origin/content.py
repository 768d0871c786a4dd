"""The content of a record, without its place and what the sink added; hashes of records, and many records as columns.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from exactly_once.error_headers import PREFIX, RESENT
from exactly_once.errors import InvalidRecord
from exactly_once.kafka.admin import Partition
from exactly_once.protocol import batch_headers, dead_letters

#: Hashes have 64 bits.
MASK = (1 << 64) - 1

Offsets = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

#: Of what a letter says: the sink that wrote it, its batch and its output, in which two streams with the same rows
#: differ. The message of a dead letter names the output too.
_OF_THE_SINK = frozenset({"sink", "batch", "output.topic"})
_NAMES_TOPIC = _OF_THE_SINK | {"message"}

#: ``hash_of(record, source, where)``, in 64 bits; of one process, for Python seeds its hashes.
HashOf = Callable[[Any, Partition, Partition], int]


def hash_of_key(record: Any, source: Partition, where: Partition) -> int:
    """Return a hash of the record's key and of where it came from and stands; 0 without a key."""
    return 0 if record.key is None else hash((record.key, source, where)) & MASK or 1


def hash_of_content(without: str = "") -> HashOf:
    """Return what hashes :func:`content_of` a record, wherever it stands."""
    return lambda record, source, where: hash(content_of(record, without)) & MASK


class Content(NamedTuple):
    """The result of a stream's function for one record: not its place, nor what the sink added."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def content_of(record: Any, without: str = "") -> Content:
    """Return the content of a record, as kafka-python has it; ``without`` the header of this name."""
    own, _ = batch_headers.own_headers(record.headers)
    own, said = dead_letters.own_headers(own)
    left_out = _NAMES_TOPIC if said.get("code") == InvalidRecord.code.encode() else _OF_THE_SINK
    why = ((f"{PREFIX}{name}", value) for name, value in said.items() if name not in left_out)
    kept = (header for header in own if header[0] not in (without, RESENT))
    return Content(record.key, record.value, (*kept, *why))


@dataclass
class Arrivals:
    """Records of one output partition that name places in one other partition, in the order of the output.

    Attributes
    ----------
    source : (str, int)
        The partition of the input; of records that were sent again, that of their letters.
    offsets, at : array
        Of the place that is named; of the record.
    numbers : array
        Which output of its input record each is, -1 when it does not say; of what was sent again, a hash of the input
        record that it says it came from (:func:`~exactly_once.verify.by_origin.output.origin_hash`).
    hashes : array
        The hash of the record that was asked for, else 0.
    """

    where: Partition
    source: Partition
    offsets: Offsets
    numbers: Offsets
    at: Offsets
    hashes: Hashes
