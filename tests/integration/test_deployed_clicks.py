"""deploy/app/clicks.py, the stream of the Spark operator: started as spark-submit starts it, killed, started again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from exactly_once.commitlog.commit_log import read_log
from exactly_once.kafka.connection import Connection
from exactly_once.sparkenv.jars import session_jars
from exactly_once_local.cluster.spark_cluster import spark_home
from testkit import broker as brokers
from testkit import oracle, processes
from testkit.processes import until
from testkit.stream import PATIENCE_S, ROOT

SINK_ID = "clicks"
ROWS = 100


@contextmanager
def application(connection: Connection, source: str, output: str, folder: Path) -> Iterator[None]:
    """The application, until the block ends: then kill -9 for all of it."""
    submit = [str(spark_home() / "bin/spark-submit"), "--master", "local[2]", "--driver-memory", "512m"]
    submit += ["--jars", ",".join(session_jars()), "--conf", "spark.ui.enabled=false"]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [
                *submit,
                str(ROOT / "deploy/app/clicks.py"),
                connection.bootstrap_servers,
                source,
                output,
                str(folder / "checkpoint"),
            ],
            cwd=folder,
            env={
                **os.environ,
                "SPARK_HOME": str(spark_home()),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(ROOT),
                "SINK_OPERATOR": "spark-operator/clicks",
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
        assert process.poll() is None, (folder / "log").read_text(errors="replace")[-3000:]
    finally:
        processes.kill_session(process.pid)
        process.wait()


@pytest.mark.long
def test_the_example_for_the_spark_operator_continues_exactly_once_after_a_kill(
    connection: Connection, topic: str, tmp_path: Path
) -> None:
    """An example that people copy, and that nobody has run."""
    output = brokers.create_topic(connection.bootstrap_servers, partitions=4)
    producer = Producer(connection.librdkafka())
    sent: list[tuple[str, str]] = []

    def visible() -> int:
        return len(oracle.read(connection, [output]))

    for run in (1, 2):
        with application(connection, topic, output, tmp_path):
            clicks = [(f"k{n % 7}", f"run-{run}-{n}") for n in range(ROWS)]
            for key, value in clicks:
                producer.produce(topic, value, key)
            assert producer.flush(30) == 0
            sent += clicks
            until("the output", lambda of=run * ROWS: visible() >= of, PATIENCE_S, every_s=0.5)
    oracle.assert_exactly(oracle.read(connection, [output]), sent)
    owner = read_log(connection, SINK_ID).owner
    assert owner is not None and owner.operator == "spark-operator/clicks"
