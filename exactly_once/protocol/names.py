"""Names of everything that belongs to a sink on a cluster.

A transactional id is ``eo:<sink id>:<slot>:<part>:<attempt>``. A sink id cannot contain ``:``, so no namespace is a
prefix of another one. There are at most slots x parts x variants ids (x attempts, when tasks fail; twice as many with
a dead letter topic).
"""

from __future__ import annotations

import re
from base64 import b32encode
from hashlib import sha256
from typing import NamedTuple, Self

from exactly_once.errors import InvalidOption

#: Number by which a claim's token is taken modulo for its ids. Tasks of a superseded driver may still run, so its ids
#: must not be reused soon. They are reused after 16 further claims; each claim takes seconds and fences every earlier
#: driver.
SLOTS = 16

#: Number of variants of an id, one for each attempt of a task by its unique id, modulo this: when Spark runs a stage
#: again, attempts count from 0 while tasks of the first run may still be alive. Where two share one, the later
#: InitProducerId fences the other, and the check before the decision finds that. The broker remembers each.
VARIANTS = 4

#: Distance to the variants under which a task, with a dead letter topic, shows rows to a broker. It aborts each of
#: these transactions.
PROBES = VARIANTS

#: Base32 letters for each of the two ids in an incarnation: 25 bits distinguish the few clusters, and the few logs in a
#: sink's life. Names may have 63 bytes (a session) or 199 bytes (a prepared transaction).
_HALF = 5

#: Characters of the longest text about who operates a sink. Errors and phrases have it: one line on a terminal, more or
#: less.
LONGEST_OPERATOR = 200

_SINK_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,149}")

#: Pattern of a number of 64 bits. Anybody may use ids that begin like a sink's, and Python refuses to read a number of
#: 5,000 digits.
_N = "[0-9]{1,19}"
_PART_NAME = re.compile(
    rf"eo:(?P<sink>[^:]+):((?P<incarnation>[a-z2-7]{{10}}):)?(?P<token>{_N}):(?P<batch>{_N}):(?P<part>{_N})"
    rf":(?P<attempt>{_N}\.{_N})(:(?P<participant>.+))?"
)
_PART_ID = re.compile(rf"eo:(?P<sink>[^:]+):(?P<slot>{_N}):(?P<part>{_N}):(?P<attempt>{_N}\.{_N})")


class PartId(NamedTuple):
    """The transactional id of one attempt of one part in Kafka: ``eo:<sink id>:<slot>:<part>:<attempt>``.

    Ids are bounded in number, so an id is used again: it tells less than a :class:`PartName`.
    """

    sink_id: str
    slot: int
    part: int
    attempt: str

    def __str__(self) -> str:
        return f"{namespace(self.sink_id)}{self.slot}:{self.part}:{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse ``text``; None when it is not the id of a part (a foreign id, or a commit log's)."""
        m = _PART_ID.fullmatch(text)
        return cls(m["sink"], int(m["slot"]), int(m["part"]), m["attempt"]) if m else None


class PartName(NamedTuple):
    """The name of one attempt of one part in one participant: never used twice, whatever fails or restarts.

    ``str(name)`` is ``eo:<sink id>:<incarnation>:<claim>:<batch>:<part>:<attempt>:<participant>``. A sink id has no
    ``:``, so no sink's names begin like another's. ``token`` is the claim of the driver that planned the attempt.
    ``incarnation`` identifies the commit log that counts the claims, among all logs of all clusters
    (:func:`incarnation`). Names from earlier versions have neither incarnation nor participant.
    """

    sink_id: str
    token: int
    batch_id: int
    part: int
    attempt: str
    incarnation: str = ""
    participant: str = ""

    def __str__(self) -> str:
        incarnation = f"{self.incarnation}:" if self.incarnation else ""
        participant = f":{self.participant}" if self.participant else ""
        number = f"{self.token}:{self.batch_id}:{self.part}:{self.attempt}"
        return f"eo:{self.sink_id}:{incarnation}{number}{participant}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a name; None when ``text`` is not one."""
        m = _PART_NAME.fullmatch(text)
        if m is None:
            return None
        numbers = int(m["token"]), int(m["batch"]), int(m["part"])
        return cls(m["sink"], *numbers, m["attempt"], m["incarnation"] or "", m["participant"] or "")

    def is_of(self, sink_id: str, participant: str) -> bool:
        """Return whether it may be a part of this participant of the sink."""
        return self.sink_id == sink_id and self.participant in ("", participant)


def check_sink_id(sink_id: str) -> str:
    """Return ``sink_id`` if it is valid.

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


def check_operator(text: str) -> str:
    """Return ``text``, which says who operates a sink, without the blanks around it ("" says nothing); raise
    InvalidOption when it is longer than :data:`LONGEST_OPERATOR`, or has a character that cannot be printed.
    """
    operator = text.strip()
    unprintable = next((c for c in operator if not c.isprintable()), None)
    if unprintable is not None:
        wrong = f"contains {unprintable!r}, which cannot be printed"
    elif len(operator) > LONGEST_OPERATOR:
        wrong = f"has {len(operator)} characters"
    else:
        return operator
    raise InvalidOption(
        f"sink.operator {wrong}",
        f"Name who operates the sink in at most {LONGEST_OPERATOR} printable characters, such as "
        "dagster/production/<run id>, or leave sink.operator out",
    )


def namespace(sink_id: str) -> str:
    """Return the prefix of every transactional id of the sink; grant WRITE and DESCRIBE on it (PREFIXED)."""
    return f"eo:{sink_id}:"


def commit_log_topic(sink_id: str) -> str:
    """Return the compacted topic that holds the sink's decisions."""
    return f"eo.{sink_id}.commit-log"


def sink_of_log(topic: str) -> str:
    """Return the sink whose commit log ``topic`` is."""
    return topic.removeprefix("eo.").removesuffix(".commit-log")


def offsets_group(sink_id: str) -> str:
    """Return the consumer group that shows how far the stream has decided its input; no consumer ever joins it."""
    return f"eo.{sink_id}"


def commit_log_id(sink_id: str) -> str:
    """Return the transactional id of the one producer that may decide."""
    return f"{namespace(sink_id)}log"


def incarnation(cluster_id: str, log_id: str) -> str:
    """Return a short, lasting name of one commit log, from its cluster's id and its topic's id (KIP-516).

    A recreated log has another name, and so has the log of the same sink on another cluster.
    """
    return _short(cluster_id) + _short(log_id)


def same_cluster(one: str, other: str) -> bool:
    """Return whether two incarnations are of the same cluster; False if one of them is empty."""
    return bool(one) and one[:_HALF] == other[:_HALF]


def _short(text: str) -> str:
    return b32encode(sha256(text.encode()).digest()).decode().lower()[:_HALF]


def slot_of(token: int) -> int:
    """Return the id slot under which the claim ``token`` writes."""
    return token % SLOTS


def older_slots(token: int, slots: int) -> frozenset[int]:
    """Return the slots of the claims before ``token`` that its sweep may touch.

    Half of all slots: the other half belongs to later claims, which a sweep that was paused must not harm.
    """
    return frozenset((token - k) % slots for k in range(1, slots // 2 + 1))
