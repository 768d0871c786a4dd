"""Settings of a session under which exactly-once cannot be given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exactly_once.errors import UnsupportedMode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_session(spark: SparkSession) -> None:
    """Refuse a session with copies of tasks.

    Raises
    ------
    UnsupportedMode
        With spark.speculation, whose copies of a task would each hold a transaction open.
    """
    if str(spark.conf.get("spark.speculation", "false")).lower() == "true":
        raise UnsupportedMode(
            "spark.speculation=true runs copies of a task, and each copy would write a transaction of its own",
            "Start the session with spark.speculation=false",
        )
