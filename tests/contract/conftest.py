"""An admin client, and a Spark session with the Kafka connector."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from testkit.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def admin(connection: Connection) -> Iterator[Admin]:
    with Admin(connection, 60) as opened:
        yield opened


@pytest.fixture(scope="module")
def spark(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as a stream gets it under Dagster, smaller, for one file: other folders' tests have their own in this
    process. A query that waits says so at once.

    It ends before the broker, for which its producers would look.
    """
    conf = {"spark.sql.shuffle.partitions": "1", "spark.sql.streaming.noDataProgressEventInterval": "100"}
    with spark_session(tmp_path_factory.mktemp("spark"), conf) as session:
        yield session
