"""The topics that a row may name, and whether a topic is still the one that it was. Pure.

The topic of a row often follows data. A row must reach neither a sink's commit log, where it could forge a claim or a
decision, nor a topic of Kafka's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from exactly_once.errors import InvalidOption
from exactly_once.protocol.names import commit_log_topic

#: Pattern of a name that Kafka allows: letters, digits, '.', '_' and '-', 249 of them at most, and neither "." nor
#: "..".
NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")

_COMMIT_LOG = re.compile(re.escape(commit_log_topic("\0")).replace("\0", ".+"))

#: Beginning of the names of Kafka's own topics (__consumer_offsets, __transaction_state, __cluster_metadata).
_INTERNAL = "__"


@dataclass(frozen=True, slots=True)
class TopicRule:
    """The topics that a sink may write to.

    Attributes
    ----------
    allowed : tuple of str
        Names, in which ``*`` stands for any characters; empty: every topic that is not refused to all sinks.

    The tasks of a sink with a dead letter topic refuse that one to rows, too.
    """

    allowed: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: str) -> Self:
        """Parse ``sink.topics.allowed``: names separated by commas, in which ``*`` stands for any characters. Raise
        InvalidOption when an entry can match no topic, or when there is none.
        """
        names = tuple(name.strip() for name in value.split(",") if name.strip())
        if value.strip() and not names:
            raise InvalidOption("sink.topics.allowed names no topic", "Name the topics, or leave the option out")
        if wrong := [n for n in names if not NAME.fullmatch(n.replace("*", "") or "x")]:
            raise InvalidOption(
                f"sink.topics.allowed names {wrong[0]!r}, which matches no topic",
                "Separate topic names by commas; '*' in a name stands for any characters, as in orders_*,audit",
            )
        return cls(names)

    def refusal(self, topic: str) -> str | None:
        """Return why no row may go to ``topic``, in words that follow its name; None when rows may."""
        if not NAME.fullmatch(topic):
            return "is not a name that Kafka allows (1 to 249 letters, digits, '.', '_' and '-')"
        if _COMMIT_LOG.fullmatch(topic):
            return "is the commit log of a sink, to which only that sink may write"
        if topic.startswith(_INTERNAL):
            return "is a topic of Kafka's own (its name begins with '__')"
        if self.allowed and not any(_matches(pattern, topic) for pattern in self.allowed):
            return f"is not among sink.topics.allowed={','.join(self.allowed)}"
        return None


#: The rule of every topic that no sink is refused.
ANY_TOPIC = TopicRule()


def _matches(pattern: str, topic: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), topic) is not None


def recreated(known: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the topics whose id is another one ``now`` than was ``known`` (KIP-516), with the new id.

    An id that the brokers do not tell ("") differs from none.
    """
    return {topic: i for topic, i in sorted(now.items()) if i and known.get(topic, i) not in ("", i)}
