"""Which of the conformance suite's tests are long; and a Spark session for tests that look at plans and rows alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from testkit.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as a stream gets it under Dagster, smaller. Its JVM stays for the next such module of this process."""
    conf = {"spark.sql.shuffle.partitions": "2"}
    with spark_session(tmp_path_factory.mktemp("spark"), conf) as session:
        yield session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The conformance suite's crash tests start some ten processes each; what Kafka does when a process is killed, the
    tests in tests/faults show as well.
    """
    for item in items:
        if "killed_anywhere" in item.name or ("TestKafka::" in item.nodeid and "killed" in item.name):
            item.add_marker(pytest.mark.long)
