"""A Spark standalone cluster: driver, executors and Python workers in different processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from exactly_once.local.java import find_java
from tests.support import processes
from tests.support.fixtures import Bench, StartDriver
from tests.support.processes import until
from tests.support.stream import ROOT


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[int]]]:
    """(URL of the master, sessions of its processes)."""
    home = Path(pyspark.__file__).parent
    folder = tmp_path_factory.mktemp("cluster")
    port = free_port()
    master = f"spark://127.0.0.1:{port}"
    commands = [
        ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        [
            "org.apache.spark.deploy.worker.Worker",
            *("--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", "0"),
            *("--work-dir", str(folder / "work"), master),
        ],
    ]
    env = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": "2.13",  # the worker starts executors by a script that would look for a build of Spark
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
    }
    log = folder / "log"
    with log.open("wb") as out:
        started = [
            subprocess.Popen(
                [find_java().executable, "-Xmx256m", "-cp", f"{home}/jars/*", *command],
                cwd=folder,
                env=env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            for command in commands
        ]
    try:
        until("the cluster", lambda: "Successfully registered with master" in log.read_text(errors="replace"), 60)
        yield master, [p.pid for p in started]
    finally:
        for process in started:
            processes.kill_session(process.pid)
            process.wait()


CONF = {
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
}


@pytest.mark.long
def test_executors_in_other_processes_write_and_the_driver_commits(
    cluster: tuple[str, list[int]], bench: Bench, driver: StartDriver
) -> None:
    """Guards against anything that only works because driver and workers share a machine's memory or environment."""
    bench.input.add(2)
    driver(cluster[0], CONF).complete(replace(bench.job, register=False))
    bench.assert_exactly_once()


@pytest.mark.long
def test_an_executor_that_dies_in_the_middle_of_a_write_is_replaced_and_no_row_is_lost_or_doubled(
    cluster: tuple[str, list[int]], bench: Bench, driver: StartDriver, tmp_path: Path
) -> None:
    """Guards against the parts of a dead executor: open transactions, and handles of parts that were written again."""
    failpoints = {"spark.executorEnv.EXACTLY_ONCE_FAILPOINTS": str(tmp_path / "driver-0" / "failpoints")}
    writing = driver(cluster[0], {**CONF, **failpoints})
    bench.input.add()
    run = writing.start(bench.job.until_stopped())
    run.await_commit(0)
    writing.arm("some-sent")
    bench.input.add()
    run.await_true("some-sent", lambda: writing.has_reached("some-sent"))
    executors = [
        pid
        for session in cluster[1]
        for pid in processes.of_session(session)
        if "CoarseGrainedExecutorBackend" in processes.command_of(pid)
    ]
    for pid in executors:
        os.kill(pid, signal.SIGKILL)
    run.await_commit(1)
    run.stop()()
    bench.assert_exactly_once()
