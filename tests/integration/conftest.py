"""What tests on brokers share: the command, a sink without a driver, a Spark session for tests that look at plans and
rows alone; and which of the conformance suite's tests are long.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from exactly_once.kafka.connection import Connection
from exactly_once.tools import cli
from testkit.commands import Run
from testkit.dead_sink import DEAD, DeadSink
from testkit.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from exactly_once.tools.verify.by_origin.comparison import ReadsElsewhere


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as a stream gets it under Dagster, smaller. Its JVM stays for the next such module of this process."""
    conf = {"spark.sql.shuffle.partitions": "2"}
    with spark_session(tmp_path_factory.mktemp("spark"), conf) as session:
        yield session


@pytest.fixture
def run(bootstrap_servers: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on the shared broker; (exit code, standard output or its JSON, standard error)."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", bootstrap_servers)

    def run(*arguments: str) -> tuple[int, Any, str]:
        code = cli.main(arguments)
        printed = capsys.readouterr()
        return code, json.loads(printed.out) if "--json" in arguments else printed.out, printed.err

    return run


@pytest.fixture
def sink(connection: Connection, topic: str) -> DeadSink:
    """A sink whose owner was on this host, and is dead."""
    return DeadSink(connection, topic, socket.gethostname(), DEAD)


@pytest.fixture(params=["one process", pytest.param("spark", marks=pytest.mark.long)])
def elsewhere(request: pytest.FixtureRequest) -> ReadsElsewhere | None:
    """What reads the records for a comparison by origin; None: the process of the checker itself."""
    if request.param == "one process":
        return None
    from exactly_once.tools.verify.on_spark.origins import on_spark

    return on_spark(request.getfixturevalue("spark"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The conformance suite's crash tests start some ten processes each; what Kafka does when a process is killed, the
    tests in tests/faults show as well.
    """
    for item in items:
        if "killed_anywhere" in item.name or ("TestKafka::" in item.nodeid and "killed" in item.name):
            item.add_marker(pytest.mark.long)
