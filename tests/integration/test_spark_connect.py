"""The sink on Spark Connect: a server without a Python driver, whose JVM runs the protocol in a child process."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyspark
import pytest

import exactly_once
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

    def __init__(self, folder: Path, conf: dict[str, str], **environment: str):
        port = free_port()
        conf = {
            "spark.connect.grpc.binding.port": str(port),
            "spark.connect.grpc.binding.address": "127.0.0.1",
            **conf,
        }
        arguments = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        folder.mkdir()  # with PySpark in it, first in its path: to import pyspark.zip takes longer than Spark waits
        (folder / "pyspark").symlink_to(Path(pyspark.__file__).parent)
        self.failpoints, self.log = folder / "failpoints", folder / "log"
        self._process = spark_program("spark-submit", arguments, folder, conf, environment)
        self.session = self._process.pid
        until("the server", lambda: self._listens(port), PATIENCE_S)
        self._url = f"sc://127.0.0.1:{port}"
        self.spark = self.client()

    def client(self) -> Any:
        """Return a new session."""
        from pyspark.sql.connect.session import SparkSession

        # not the builder's getOrCreate, after which every session of this process would be one of Spark Connect
        return SparkSession.builder.remote(self._url).create()

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
        return writer.options(**bench.job.options).trigger(**bench.job.trigger).start()

    def complete(self, bench: Bench) -> None:
        """Start the query of a bench and wait for its end, which must be a good one."""
        query = self.start(bench)
        assert query.awaitTermination(PATIENCE_S) and query.exception() is None

    def said(self) -> str:
        """Return its log."""
        return self.log.read_text(errors="replace")

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
    """Start a server, with these settings, and these variables in its environment."""
    started: list[Server] = []

    def start(conf: dict[str, str] | None = None, **environment: str) -> Server:
        started.append(Server(tmp_path / f"server-{len(started)}", conf or {}, **environment))
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
    assert re.match(r"EO-OPTION: .* kafka\.acks=1\. ", sentence_in(str(refused.value)) or "")
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
    with pytest.raises(Exception, match=r"EO-MODE: foreach_batch .*Spark Connect"):
        writer.option("checkpointLocation", str(bench.checkpoint)).start().awaitTermination(PATIENCE_S)
    assert bench.visible() == [] and bench.log().owner is None


#: Of a session without calls of its client; Spark's defaults are an hour, and a look each 30 s.
SILENCE_S = 5
SHORT = {
    "spark.connect.session.manager.defaultSessionTimeout": f"{SILENCE_S}s",
    "spark.connect.session.manager.maintenanceInterval": "1s",
}


@pytest.mark.long
def test_a_stream_ends_with_the_silence_of_its_client_and_goes_on_with_one_that_waits_for_its_end(
    serve: Callable[..., Server], bench: Bench
) -> None:
    """Mishap: the server stops an active stream without an error, an hour after its client's last call. Guards against
    a client in awaitTermination() that is taken for a silent one, and against a batch that is lost in such an end.
    """
    server, live = serve(SHORT), replace(bench, job=bench.job.until_stopped())
    bench.input.add()
    talking = server.start(live)
    until("the first batch", lambda: talking.isActive and bench.decided_batches() == [0], PATIENCE_S)
    until("the end of the session", lambda: "since the session has timed out" in server.said(), PATIENCE_S)
    bench.input.add()
    owner = exactly_once.inspect(bench.connection.bootstrap_servers, bench.sink_id).owner
    assert owner is not None and owner.alive  # the server's Python, whoever asks it for nothing: no sign of the end

    server.spark = server.client()
    query = server.start(live)
    waiting = threading.Thread(target=query.awaitTermination, daemon=True)
    waiting.start()
    until("the second batch", lambda: bench.decided_batches() == [0, 1], PATIENCE_S)
    since = time.monotonic()
    until("five times the silence", lambda: time.monotonic() - since > 5 * SILENCE_S, PATIENCE_S)
    bench.input.add()
    until("the third batch", lambda: bench.decided_batches() == [0, 1, 2], PATIENCE_S)
    query.stop()
    waiting.join(PATIENCE_S)
    bench.assert_exactly_once()
    assert bench.decided_batches() == [0, 1, 2]
