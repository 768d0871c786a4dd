"""Names of everything that belongs to a sink on a cluster.

A transactional id is ``eo:<sink id>:<slot>:<part>:<attempt>``. A sink id cannot contain ``:``, so no namespace is a
prefix of another one. The number of ids is bounded by slots x parts x variants (x attempts, when tasks fail).
"""

from __future__ import annotations

import re
from base64 import b32encode
from hashlib import sha256
from typing import NamedTuple

from exactly_once.errors import InvalidOption

#: A claim's ids carry its token modulo this. A driver that was superseded may still breathe, so its ids must not come
#: round again soon: they do after 16 further claims, each of which takes seconds and fences everybody before it.
SLOTS = 16

#: See :func:`attempt_of`; small, since each variant is an id that the broker remembers.
VARIANTS = 4

#: Letters of base32 for each of the two ids in an incarnation, 25 bits: they tell apart the few clusters, and the few
#: logs in a sink's life, and leave room in names that may have 63 (a session) or 199 bytes (a prepared transaction).
_HALF = 5

_SINK_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,149}")
_PART_ID = re.compile(r"eo:(?P<sink>[^:]+):(?P<slot>\d+):(?P<part>\d+):(?P<attempt>\d+\.\d+)")


class PartId(NamedTuple):
    """A transactional id of a part, taken apart."""

    sink_id: str
    slot: int
    part: int
    attempt: str


def check_sink_id(sink_id: str) -> str:
    """Return ``sink_id`` when it can be one.

    Raises
    ------
    InvalidOption
        When it is empty, too long for a topic name, or has other characters than letters, digits, ``.``, ``_``, ``-``.
    """
    if not _SINK_ID.fullmatch(sink_id):
        raise InvalidOption(
            f"sink.id {sink_id!r} is not a valid sink id",
            "Use 1 to 150 letters, digits, '.', '_' or '-', beginning with a letter or digit",
        )
    return sink_id


def namespace(sink_id: str) -> str:
    """The prefix of every transactional id of the sink; grant WRITE and DESCRIBE on it (PREFIXED)."""
    return f"eo:{sink_id}:"


def commit_log_topic(sink_id: str) -> str:
    """The compacted topic that holds the sink's decisions."""
    return f"eo.{sink_id}.commit-log"


def offsets_group(sink_id: str) -> str:
    """The consumer group that shows how far the stream has decided its input; nobody ever joins it."""
    return f"eo.{sink_id}"


def commit_log_id(sink_id: str) -> str:
    """The transactional id of the one producer that may decide."""
    return f"{namespace(sink_id)}log"


def incarnation(cluster_id: str, log_id: str) -> str:
    """A short name of one commit log, forever: of its cluster's id, then of its topic's id (KIP-516).

    A log that was deleted and recreated has another one, and so has the log of the same sink on another cluster.
    """
    return _short(cluster_id) + _short(log_id)


def same_cluster(one: str, other: str) -> bool:
    """Whether two incarnations are of the same cluster; False without one."""
    return bool(one) and one[:_HALF] == other[:_HALF]


def _short(text: str) -> str:
    return b32encode(sha256(text.encode()).digest()).decode().lower()[:_HALF]


def slot_of(token: int) -> int:
    """The id slot that the claim ``token`` writes under."""
    return token % SLOTS


def attempt_of(task_attempt: int, task_attempt_id: int) -> str:
    """The attempt part of an id: Spark's attempt number, and a variant taken from the task attempt's unique id.

    A stage that is run again (after a lost shuffle file) counts its attempts from 0 again while tasks of its first run
    may still be alive, and Spark's Python workers are not told which run they belong to; the variant tells most of
    these apart. Where it does not, the later InitProducerId fences the other attempt, which the check before the
    decision sees.
    """
    return f"{task_attempt}.{task_attempt_id % VARIANTS}"


def part_id(sink_id: str, token: int, part: int, attempt: str) -> str:
    """The transactional id for one attempt of one part, under the claim ``token``.

    ``attempt`` comes from :func:`attempt_of`: two attempts that are alive at once do not share an id, so none can
    abort what the other one prepared.
    """
    return f"{namespace(sink_id)}{slot_of(token)}:{part}:{attempt}"


def parse_part_id(transactional_id: str) -> PartId | None:
    """Take a part's transactional id apart; None when it is not one (a foreign id, or a commit log's)."""
    m = _PART_ID.fullmatch(transactional_id)
    return PartId(m["sink"], int(m["slot"]), int(m["part"]), m["attempt"]) if m else None


def older_slots(token: int, slots: int) -> frozenset[int]:
    """The slots of the claims before ``token`` that its sweep may touch.

    Half of the ring: the other half belongs to claims that come after it, which a sweep that was paused must not harm.
    """
    return frozenset((token - k) % slots for k in range(1, slots // 2 + 1))
