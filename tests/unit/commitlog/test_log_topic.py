"""The topic of a commit log that the sink makes by itself."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from exactly_once.commitlog import log_topic
from exactly_once.deadline import Deadline
from exactly_once.errors import UnknownTopic


@pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, 1, "1"), (2, 2, "1"), (3, 3, "2"), (9, 3, "2")])
def test_a_new_commit_log_outlives_the_loss_of_a_broker_where_there_are_three(
    brokers: int, replicas: int, in_sync: str
) -> None:
    """Mishap: one broker's disk is gone, and with it every decision; or one broker restarts, and nothing is decided."""
    made: list[tuple[int, dict[str, str]]] = []

    def partitions(topics: list[str], operations: object = ()) -> dict[str, int]:
        if not made:
            raise UnknownTopic("no such topic", "Create it")
        return dict.fromkeys(topics, 1)

    def create(topic: str, count: int, replication: int, config: dict[str, str], validate_only: bool) -> None:
        assert not validate_only
        made.append((replication, config))

    admin: Any = MagicMock()
    admin.topic_partitions, admin.create_topic = partitions, create
    admin.broker_count.return_value = brokers
    admin.topic_config.return_value = dict(log_topic.TOPIC_CONFIG)
    log_topic.ensure(admin, "eo.s.commit-log", Deadline(5))
    [(replication, config)] = made
    assert (replication, config["min.insync.replicas"], config["cleanup.policy"]) == (replicas, in_sync, "compact")
