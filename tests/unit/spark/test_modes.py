"""Settings of a session that the sink refuses, as the driver and as the tasks see them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from exactly_once.errors import UnsupportedMode
from exactly_once.spark.modes import check_session, check_task

STOP = "spark.sql.streaming.stopTimeout"


@pytest.mark.parametrize("settings", [{}, {"spark.speculation": "false"}, {STOP: "0"}, {STOP: "0s"}, {STOP: "0 ms"}])
def test_a_session_that_can_keep_the_promise_is_taken(settings: dict[str, str]) -> None:
    """Guards against a stream that is refused for a default that somebody has written down."""
    check_task(settings.get)


@pytest.mark.parametrize(
    "settings", [{"spark.speculation": "true"}, {"spark.speculation": "TRUE"}, {STOP: "5000"}, {STOP: "10s"}]
)
def test_copies_of_tasks_and_a_stop_that_goes_on_in_the_background_are_refused(settings: dict[str, str]) -> None:
    """Guards against transactions of copies, and against an abort that takes the next run for its own."""
    with pytest.raises(UnsupportedMode, match=next(iter(settings))):
        check_task(settings.get)


@pytest.mark.parametrize(("release", "refused"), [("3.4.4", True), ("3.5.9", False), ("4.3.0.dev1", False)])
def test_a_spark_older_than_the_sink_takes_is_refused_in_one_sentence(release: str, refused: bool) -> None:
    """Guards against an AbstractMethodError of Spark's in the middle of a start."""
    spark: Any = SimpleNamespace(version=release, conf={})
    if not refused:
        check_session(spark)
        return
    with pytest.raises(UnsupportedMode, match=rf"runs on Spark {release}, .*Spark 3\.5 or newer"):
        check_session(spark)
