"""Records that the settings of their topic delete: which they are, and that a warning comes once."""

from __future__ import annotations

import logging
import re

import pytest

from exactly_once.errors import BrokerUnreachable
from exactly_once.kafka.admin import Partition
from exactly_once.participants.kafka.deletion import MOST_TOPICS, Deletion, oldest_times, removed, retention_ms
from exactly_once.protocol.records import Decision, OffsetRange, PreparedTransaction

DAY_MS = 86_400_000
KEPT = {"retention.ms": str(DAY_MS), "cleanup.policy": "delete", "segment.ms": str(7 * DAY_MS)}


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({}, DAY_MS),
        ({"retention.ms": "0"}, 0),
        ({"cleanup.policy": "compact,delete"}, DAY_MS),
        ({"message.timestamp.type": "CreateTime"}, DAY_MS),
        ({"cleanup.policy": "compact"}, None),
        ({"message.timestamp.type": "LogAppendTime"}, None),
        ({"retention.ms": "-1"}, None),
    ],
)
def test_a_topic_deletes_by_the_times_of_records_where_nothing_keeps_it_from_that(
    settings: dict[str, str], kept: int | None
) -> None:
    """Guards against a warning of records that stay, and against none of those that go."""
    assert retention_ms({**KEPT, **settings}) == kept
    assert retention_ms({}) is None  # nobody may read the settings


def handle(written: dict[tuple[str, int], OffsetRange]) -> PreparedTransaction:
    return PreparedTransaction("eo:s:1:0:0.0", 1, 0, 0, 5, written=written)


PARTS = (
    handle({("t", 0): OffsetRange(5, 2, 70), ("t", 1): OffsetRange(-1, 2, 50)}),
    handle({("t", 0): OffsetRange(3, 2, 60), ("u", 0): OffsetRange(9, 1)}),
)


def test_the_oldest_time_of_a_topic_is_that_of_any_part() -> None:
    """Guards against the age of the newest record, and against a topic whose rows chose no times."""
    assert oldest_times(PARTS) == {"t": 50}


def test_records_are_gone_where_a_partition_begins_behind_the_first_one_of_any_part() -> None:
    """Guards against a batch of which nothing is left, and against one in a topic of which older ones were deleted."""
    assert removed(PARTS, {("t", 0): 3, ("t", 1): 900, ("u", 0): 9}) == {}
    assert removed(PARTS, {("t", 0): 4, ("u", 0): 10}) == {("t", 0): (3, 4), ("u", 0): (9, 10)}


class Brokers:
    """Count what they are asked, and say what ``config`` says."""

    def __init__(self, config: dict[str, str]):
        self.config, self.asked = config, 0

    def topic_config(self, topic: str) -> dict[str, str]:
        self.asked += 1
        return self.config

    def earliest(self, partitions: list[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 0)


def decision(topic: str, oldest_ms: int) -> Decision:
    return Decision("q", 7, 1, (handle({(topic, 0): OffsetRange(0, 5, oldest_ms)}),), "", 5, 0)


def test_a_topic_is_named_once_and_its_settings_are_asked_for_again_before_that(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a warning in each batch, a request in each batch, and a warning of settings that have changed."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("exactly_once.participants.kafka.deletion.now_ms", lambda: 100 * DAY_MS)
    brokers, deletion = Brokers(KEPT), Deletion("s")

    def warn(oldest_ms: int) -> list[str]:
        caplog.clear()
        deletion.warn(brokers, decision("t", oldest_ms))  # type: ignore[arg-type]
        return [m for m in caplog.messages if "EO-WARN-RETENTION" in m]

    assert warn(100 * DAY_MS) == warn(100 * DAY_MS) == [] and brokers.asked == 1
    brokers.config = {**KEPT, "retention.ms": "-1"}
    assert warn(90 * DAY_MS) == [] and brokers.asked == 2
    deletion, brokers.config = Deletion("s"), KEPT
    [said] = warn(90 * DAY_MS)
    assert re.search(r"topic t .*1970-04-01 00:00:00 UTC.*10 days ago", said)
    assert warn(80 * DAY_MS) == []


def test_settings_that_were_asked_for_since_are_gone_by(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a retention that becomes shorter under a stream, and against one more request for it."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("exactly_once.participants.kafka.deletion.now_ms", lambda: 100 * DAY_MS)
    brokers, deletion = Brokers({**KEPT, "retention.ms": str(20 * DAY_MS)}), Deletion("s")
    deletion.warn(brokers, decision("t", 90 * DAY_MS))  # type: ignore[arg-type]
    assert deletion.topics == ["t"] and "EO-WARN-RETENTION" not in caplog.text
    deletion.take({"t": KEPT, "eo.s.commit-log": KEPT})
    brokers.config = KEPT
    deletion.warn(brokers, decision("t", 90 * DAY_MS))  # type: ignore[arg-type]
    assert "EO-WARN-RETENTION" in caplog.text and deletion.topics == []


def test_topics_that_come_from_data_are_not_asked_for_without_end() -> None:
    """Guards against a request, and a memory, for each of a million topics."""
    brokers, deletion = Brokers(KEPT), Deletion("s")
    for n in range(3 * MOST_TOPICS):
        deletion.warn(brokers, decision(f"t{n}", 2**50))  # type: ignore[arg-type]
    assert brokers.asked == MOST_TOPICS


def test_brokers_that_do_not_answer_fail_no_batch() -> None:
    """Guards against a committed batch that stops the stream for a warning."""

    class Away(Brokers):
        def topic_config(self, topic: str) -> dict[str, str]:
            raise BrokerUnreachable("no broker answers", "Start it")

    Deletion("s").warn(Away(KEPT), decision("t", 0))  # type: ignore[arg-type]
