"""The sink on Spark Connect: a server without a Python driver, whose JVM runs the protocol in a child process."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark
import pytest

from exactly_once import foreach_batch
from exactly_once.errors import sentence_in
from exactly_once_local.ports import free_port
from testkit import oracle, processes
from testkit.driverless import children, spark_program
from testkit.fixtures import Bench
from testkit.processes import until
from testkit.stream import PATIENCE_S


class Server:
    """A server of Spark Connect, and a client's session on it."""

    def __init__(self, folder: Path, **environment: str):
        port = free_port()
        conf = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": "127.0.0.1"}
        arguments = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        folder.mkdir()  # with PySpark in it, first in its path: to import pyspark.zip takes longer than Spark waits
        (folder / "pyspark").symlink_to(Path(pyspark.__file__).parent)
        self.failpoints, self.log = folder / "failpoints", folder / "log"
        self._process = spark_program("spark-submit", arguments, folder, conf, environment)
        self.session = self._process.pid
        until("the server", lambda: self._listens(port), PATIENCE_S)
        from pyspark.sql.connect.session import SparkSession

        # not the builder's getOrCreate, after which every session of this process would be one of Spark Connect
        self.spark: Any = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()

    def _listens(self, port: int) -> bool:
        assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    def rows(self, bench: Bench) -> Any:
        """Return the rows of a bench's query."""
        source = bench.job.source
        rows = self.spark.readStream.format(source["format"]).options(**source["options"]).load()
        return rows.selectExpr(*bench.job.select)

    def start(self, bench: Bench) -> Any:
        """Start the query of a bench."""
        writer = self.rows(bench).writeStream.format(bench.job.format)
        return writer.options(**bench.job.options).trigger(availableNow=True).start()

    def complete(self, bench: Bench) -> None:
        """Start the query of a bench and wait for its end, which must be a good one."""
        query = self.start(bench)
        assert query.awaitTermination(PATIENCE_S) and query.exception() is None

    def kill_jvm(self) -> None:
        """kill -9 of the JVM alone."""
        [jvm] = processes.of_session(self.session) - set(children(self.session))
        os.kill(jvm, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if processes.of_session(self.session):
            processes.kill_session(self.session)
        self._process.wait()
        self.spark.client.close()  # else this process asks the dead server for ten minutes when it ends


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server, with these variables in its environment."""
    started: list[Server] = []

    def start(**environment: str) -> Server:
        started.append(Server(tmp_path / f"server-{len(started)}", **environment))
        return started[-1]

    yield start
    for one in started:
        one.close()
        print(
            f"--- end of {one.log}\n{one.log.read_text(errors='replace')[-6000:]}"
        )  # pytest shows it beside a failure


@pytest.mark.long
def test_a_server_that_is_killed_behind_a_decision_takes_its_python_along_and_loses_nothing(
    serve: Callable[..., Server], bench: Bench
) -> None:
    """Guards against a child that outlives its JVM and goes on to commit beside the next driver, and against a server
    that finds no Python of ours: the client has none for it.
    """
    bench.input.add(2)
    first = serve()
    first.complete(bench)
    bench.assert_exactly_once()
    (first.failpoints / "decided").write_text("hang")
    bench.input.add()
    first.start(bench)
    until("the decision", (first.failpoints / "decided.reached").exists, PATIENCE_S)
    [child] = children(first.session)
    first.kill_jvm()
    until("the end of the child", lambda: not processes.command_of(child), 10)
    assert bench.log().open_decisions

    second = serve()
    with pytest.raises(Exception, match=r"EO-OPTION") as refused:  # inside start(), in the engine's own words
        second.start(replace(bench, job=bench.job.having(kafka_acks="1")))
    assert (sentence_in(str(refused.value)) or "").startswith("EO-OPTION: this sink cannot honour kafka.acks=1. ")
    second.complete(bench)
    bench.assert_exactly_once()
    assert bench.decided_batches() == [0, 1, 2]

    write = {**bench.job.options, "sink.id": f"{bench.sink_id}-write", "write.id": "day-1"}
    del write["checkpointLocation"]
    rows = [(f"w{n}", f"w-{n}") for n in range(40)]
    for _ in range(2):  # the second one finds it decided
        data = second.spark.range(0, 40, 1, 4).selectExpr("concat('w', id) key", "concat('w-', id) value")
        data.write.format("kafka_exactly_once").options(**write).mode("append").save()
    oracle.assert_exactly(oracle.read(bench.connection, [bench.topic]), bench.input.expected() + rows)


@pytest.mark.long
def test_foreach_batch_on_a_server_is_refused_before_anything_is_written(
    serve: Callable[..., Server], bench: Bench
) -> None:
    """Guards against a sink that cannot tell which query a task works for."""
    bench.input.add()
    server = serve(PYSPARK_PYTHON=sys.executable)
    sink = foreach_batch(bench.job.options)
    writer = server.rows(bench).writeStream.foreachBatch(sink).trigger(availableNow=True)
    with pytest.raises(Exception, match=r"EO-MODE: foreach_batch does not work on Spark Connect"):
        writer.option("checkpointLocation", str(bench.checkpoint)).start().awaitTermination(PATIENCE_S)
    assert bench.visible() == [] and bench.log().owner is None
