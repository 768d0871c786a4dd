"""Settings of a session under which exactly-once cannot be given."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from exactly_once.errors import UnsupportedMode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_session(spark: SparkSession) -> None:
    """Refuse a session with copies of tasks, before anything begins.

    Raises
    ------
    UnsupportedMode
        With spark.speculation, whose copies of a task would each hold a transaction open.
    """
    _check_speculation(spark.conf.get("spark.speculation", None))


def check_task(setting: Callable[[str], str | None]) -> None:
    """Refuse, in a task of an exactly-once batch, a session under which it could not be written once.

    Parameters
    ----------
    setting
        The value of a setting of the session, None when it is not set: Spark sends them along with every task.

    Raises
    ------
    UnsupportedMode
        As :func:`check_session`, for a sink that Spark has found by its name; and with a
        spark.sql.streaming.stopTimeout, after which stop() returns while the stopped run still commits or aborts: a
        run that is started meanwhile would be taken for it.
    """
    _check_speculation(setting("spark.speculation"))
    stop_timeout = setting("spark.sql.streaming.stopTimeout")
    if stop_timeout is not None and not _is_zero(stop_timeout):
        raise UnsupportedMode(
            f"spark.sql.streaming.stopTimeout={stop_timeout} lets stop() return while the query still commits its "
            "batch, and the sink could not tell that run from the next one",
            "Leave spark.sql.streaming.stopTimeout at 0: stop() then waits for the end of the commit, which has a time "
            "budget of its own",
        )


def _check_speculation(value: str | None) -> None:
    if str(value).lower() == "true":
        raise UnsupportedMode(
            "spark.speculation=true runs copies of a task, and each copy would write a transaction of its own",
            "Start the session with spark.speculation=false",
        )


def _is_zero(duration: str) -> bool:
    """Whether a duration in Spark's notation (``0``, ``0s``, ``10 s``) is none."""
    return not duration.strip().rstrip("abcdefghijklmnopqrstuvwxyz ").strip("0")
