"""Warn of records that the settings of their topic delete: those that are too old when they arrive, and those that are
gone when their batch is committed. Neither is a failure: another try of the batch would lose them again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from exactly_once.deadline import now_ms
from exactly_once.errors import ExactlyOnceError
from exactly_once.kafka.admin import Admin, Partition, TopicConfigs
from exactly_once.protocol.records import Decision, PreparedTransaction

log = logging.getLogger(__name__)

#: Most topics of a query that are examined: names from data have no end.
MOST_TOPICS = 100

#: Most partitions of a batch that are examined: a leader answers for all of them within milliseconds.
MOST_PARTITIONS = 10_000

_KEEP = "set retention.ms=-1 on the topic before they are written, or leave the column 'timestamp' out"


def retention_ms(config: Mapping[str, str]) -> int | None:
    """Return how old a record may become by the time that its writer gave it; None for any age: retention has no end,
    the topic is compacted alone or takes the time of arrival, or nobody may read its settings.
    """
    kept = int(config.get("retention.ms", -1))
    deletes = "delete" in config.get("cleanup.policy", "delete")
    return kept if kept >= 0 and deletes and config.get("message.timestamp.type") != "LogAppendTime" else None


def oldest_times(handles: Iterable[PreparedTransaction]) -> dict[str, int]:
    """Return the oldest time that rows chose, by topic, in ms."""
    found: dict[str, int] = {}
    for handle in handles:
        for (topic, _), written in handle.written.items():
            if written.oldest_ms is not None:
                found[topic] = min(written.oldest_ms, found.get(topic, written.oldest_ms))
    return found


def removed(
    handles: Iterable[PreparedTransaction], starts: Mapping[Partition, int]
) -> dict[Partition, tuple[int, int]]:
    """Return the partitions that begin behind the first record of a handle: that record's offset, and where they begin,
    by ``starts``.
    """
    firsts: dict[Partition, int] = {}
    for handle in handles:
        for where, written in handle.written.items():
            if written.first_offset >= 0:
                firsts[where] = min(written.first_offset, firsts.get(where, written.first_offset))
    return {where: (first, starts[where]) for where, first in firsts.items() if starts.get(where, -1) > first}


def warn_before(sink_id: str, topic: str, config: Mapping[str, str]) -> None:
    """Warn which rows with a column ``timestamp`` the topic deletes."""
    if (kept := retention_ms(config)) is not None:
        log.warning(
            "sink %s: EO-WARN-RETENTION the column 'timestamp' gives records their times, and topic %s has "
            "retention.ms=%d: the brokers delete records that are older than %s when they arrive. To keep such "
            "records, %s",
            sink_id,
            topic,
            kept,
            _age(kept),
            _KEEP,
        )


class Deletion:
    """The warnings of one query: one for each topic, with the oldest time of the batch that was too old; and one for
    each batch whose records are gone.
    """

    def __init__(self, sink_id: str):
        self._sink_id = sink_id
        self._configs: dict[str, Mapping[str, str]] = {}
        self._warned = set[str]()

    @property
    def topics(self) -> list[str]:
        """The topics whose settings a warning may go by, and that :meth:`take` is to bring anew."""
        return [topic for topic in self._configs if topic not in self._warned]

    def take(self, configs: TopicConfigs) -> None:
        """Take settings that were asked for since."""
        self._configs |= {topic: config for topic, config in configs.items() if topic in self._configs}

    def warn(self, admin: Admin, decision: Decision) -> None:
        """Ask the brokers about a batch that is committed, whose parts are as this driver's tasks wrote them. Never
        raises: the batch is as it is.
        """
        with suppress(ExactlyOnceError):
            self._warn_of_age(admin, oldest_times(decision.transactions))
            self._warn_of_gone(admin, decision)

    def _warn_of_age(self, admin: Admin, oldest: Mapping[str, int]) -> None:
        now = now_ms()
        for topic, ms in sorted(oldest.items()):
            if topic in self._warned or (topic not in self._configs and len(self._configs) >= MOST_TOPICS):
                continue
            if topic not in self._configs or _too_old(self._configs[topic], ms, now):  # they may have changed since
                self._configs[topic] = admin.topic_config(topic)
            if _too_old(config := self._configs[topic], ms, now):
                self._warned.add(topic)
                log.warning(
                    "sink %s: EO-WARN-RETENTION records of topic %s have times from %s on, %s ago, and the topic has "
                    "retention.ms=%s: the brokers delete them, at once where they are also older than segment.ms=%s. "
                    "To keep such records, %s",
                    self._sink_id,
                    topic,
                    f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC",
                    _age(now - ms),
                    config["retention.ms"],
                    config.get("segment.ms"),
                    _KEEP,
                )

    def _warn_of_gone(self, admin: Admin, decision: Decision) -> None:
        written = sorted({where for handle in decision.transactions for where in handle.written})[:MOST_PARTITIONS]
        if gone := removed(decision.transactions, admin.earliest(written)):
            (topic, partition), (first, start) = min(gone.items())
            log.warning(
                "sink %s: EO-WARN-REMOVED records of %s were deleted before it was committed, in %d partitions: "
                "%s-%d begins at offset %d, and the batch at %d. Retention (retention.ms, retention.bytes) or "
                "DeleteRecords took them, and the sink does not write them again",
                self._sink_id,
                decision.title(self._sink_id),
                len(gone),
                topic,
                partition,
                start,
                first,
            )


def _too_old(config: Mapping[str, str], oldest_ms: int, now_ms: int) -> bool:
    kept = retention_ms(config)
    return kept is not None and oldest_ms < now_ms - kept


def _age(ms: int) -> str:
    """Return a duration in the largest unit of which it has two or more."""
    units = ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1_000, "seconds"))
    return next((f"{ms // unit} {name}" for unit, name in units if ms >= 2 * unit), f"{ms} ms")
