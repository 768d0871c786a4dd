"""The topic of whole batches: what a person is told who must mend it."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import MagicMock

import pytest
from confluent_kafka import KafkaError, KafkaException

from exactly_once.commitlog.commit_log import CommitLog
from exactly_once.commitlog.progress import ProgressRecord, ensure
from exactly_once.deadline import Deadline
from exactly_once.errors import NotAuthorized, UnknownTopic
from exactly_once.kafka.connection import Connection


def test_a_topic_that_may_not_be_made_is_named_with_the_option_and_the_right() -> None:
    """Outage: a start that fails over CREATE, and nobody knows what for."""
    admin: Any = MagicMock()
    admin.topic_partitions.side_effect = UnknownTopic("no such topic", "Create it")
    admin.create_topic.side_effect = NotAuthorized("denied", "Grant it")
    admin.broker_count.return_value = 3
    with pytest.raises(NotAuthorized, match=r"topic progress of sink\.progress\.topic .*Grant CREATE"):
        ensure(admin, "progress", Deadline(5))


@pytest.mark.parametrize("code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.NOT_ENOUGH_REPLICAS])
def test_a_mark_that_kafka_refuses_names_the_topic_of_whole_batches_too(code: int) -> None:
    """Outage: a person mends the commit log, while it is the other topic of the transaction that refuses."""
    log = CommitLog(Connection("h:1"), "orders")
    failure = KafkaException(KafkaError(code))
    told = log._named(failure, ProgressRecord("progress", b"{}"))
    assert re.findall(r"[\w.]*progress[\w.]*", told.what) == ["progress", "sink.progress.topic"]
    assert (type(told), told.way_out) == (type(log._named(failure)), log._named(failure).way_out)
    assert "progress" not in log._named(failure).what
