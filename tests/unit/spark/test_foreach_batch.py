"""What ``foreach_batch`` refuses without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import exactly_once
from exactly_once.errors import InvalidOption, PrepareFailed, ProtocolViolation
from exactly_once.outputs.files import FileParticipant
from exactly_once.protocol.planning import Batch
from exactly_once.spark.foreach_batch import check_running

OPTIONS = {"sink.id": "s", "topic": "out", "checkpointLocation": "/c", "kafka.bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize("guarantee", ["at_least_once", "none"])
def test_a_weaker_guarantee_is_refused_with_the_format_that_has_it(guarantee: str) -> None:
    """Guards against a stream whose owner believes that it saves transactions, and pays for them."""
    with pytest.raises(
        InvalidOption, match=rf"sink\.guarantee=exactly_once only, not {guarantee}.*format\(\"kafka_exactly_once\"\)"
    ):
        exactly_once.foreach_batch({**OPTIONS, "sink.guarantee": guarantee})


def test_outputs_that_come_as_a_list_are_refused_with_the_call_that_takes_them() -> None:
    """Guards against an AttributeError of this package for the list that Dagster's ``participants=`` returns."""
    wrong: Any = [FileParticipant("archive", "/data")]
    with pytest.raises(InvalidOption, match=r"foreach_batch\(options, \*outputs\)"):
        exactly_once.foreach_batch(OPTIONS, wrong)


def test_a_driver_whose_checkpoint_another_one_went_on_writing_is_started_again() -> None:
    """Outage, found by the soak (seed 4002): a superseded driver wrote ten batches between the moments at which the new
    one's Spark and its plan read the checkpoint. The new one ended with an error that nobody restarts.
    """
    context = SimpleNamespace(getLocalProperty={"sql.streaming.queryId": "q"}.get)
    spark: Any = SimpleNamespace(sparkContext=context)
    with pytest.raises(PrepareFailed, match="another driver") as error:
        check_running(spark, Batch("q", 368, ""), 358)
    assert error.value.restart_heals
    for query, running in (("q", 369), ("other", 368)):
        with pytest.raises(ProtocolViolation):
            check_running(spark, Batch(query, 368, ""), running)
    check_running(spark, Batch("q", 368, ""), 368)
