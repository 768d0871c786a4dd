"""A Spark session in the process of the tests, for what looks at plans, rows and files alone."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(folder: Path, conf: dict[str, str]) -> Iterator[SparkSession]:
    """Yield a session as a stream gets it under Dagster, smaller. Its JVM stays for the next one of this process."""
    from dagster_exactly_once.resources.spark import SparkSessionResource

    handler = signal.getsignal(signal.SIGINT)
    with SparkSessionResource(master="local[1]", work_dir=str(folder), conf=conf).session() as session:
        signal.signal(signal.SIGINT, handler)  # Spark has put its own there
        yield session
