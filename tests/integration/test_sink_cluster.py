"""A Spark standalone cluster of two workers: executors that are JVMs alone, and Python tasks for ``foreach_batch`` that
see the wheel and nothing of the checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from exactly_once.sparkenv.java import find_java
from exactly_once_local.cluster.guard import end_all, guarded
from exactly_once_local.cluster.spark_cluster import NO_PYTHON, ClusterFailed, SparkCluster, spark_home
from exactly_once_local.ports import free_port
from testkit import processes
from testkit.fixtures import Bench, StartDriver
from testkit.processes import until
from testkit.stream import ROOT, Job

CONF = {"spark.executor.memory": "512m"}

#: No task of ``format("kafka_exactly_once")`` asks for Python.
WITHOUT_PYTHON = {"PYSPARK_PYTHON": NO_PYTHON}

#: In the command of an executor's JVM.
EXECUTOR = "CoarseGrainedExecutorBackend"
#: In that of a driver's.
DRIVER = "org.apache.spark.deploy.SparkSubmit"

#: On two cores: broker, feed, cluster, driver and report of the main job.
MAIN_JOB_S = 400


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path / "spark-cluster") as running:
        yield running


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python_with_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"PYSPARK_PYTHON": str(node_environment(tmp_path_factory.mktemp("nodes") / "python", wheel))}


def node_environment(folder: Path, wheel: Path | None = None) -> Path:
    """Make a Python environment as a node of a cluster has it, with ``wheel`` installed; return its Python.

    The dependencies are those of the running environment, where they are: no network, two seconds. Without ``wheel``,
    only they are there.
    """
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder)], check=True)
    [site] = (folder / "lib").glob("python3*/site-packages")
    # A plain path: Python reads no .pth files there, hence not the one that leads to the checkout.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    if wheel is not None:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
        subprocess.run([*install, "--no-deps", "--target", str(site), str(wheel)], check=True)
    return folder / "bin" / "python"


def by_foreach_batch(bench: Bench) -> Job:
    """The bench's query through ``foreach_batch``, whose tasks are Python."""
    return replace(bench.job, participants=[])


def pythons_of(command: str, run: Path) -> list[str | None]:
    """Return the PYSPARK_PYTHON of each JVM of a ``make cluster`` that has ``command`` in its command."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            told = process.environ()
            if command in " ".join(process.cmdline()) and told.get("EXACTLY_ONCE_RUN_DIR", "").startswith(str(run)):
                found.append(told.get("PYSPARK_PYTHON"))
    return found


def of_worker(cluster: SparkCluster, number: int, what: str) -> list[int]:
    """The processes of a worker's session with ``what`` in their command."""
    found = processes.of_session(cluster.workers[number])
    return [pid for pid in found if what in processes.command_of(pid)]


@pytest.mark.long
def test_the_environment_of_the_nodes_has_the_wheel_and_nothing_of_the_checkout(
    python_with_wheel: dict[str, str],
) -> None:
    """Else the other tests prove nothing: executors would import what only this machine has."""
    python = python_with_wheel["PYSPARK_PYTHON"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, "-c", code], capture_output=True, text=True, env=env, cwd="/")

    found = run("import exactly_once; print(exactly_once.__file__)")
    assert found.stdout.startswith(str(Path(python).parents[1])), found
    assert "ModuleNotFoundError" in run("import platform_assets").stderr


@pytest.mark.long
def test_executors_on_two_workers_write_without_any_python_and_the_driver_commits(
    cluster: SparkCluster, bench: Bench, driver: StartDriver
) -> None:
    """Guards against anything that only works because driver and executors share a machine's memory or environment."""
    bench.input.add(3)
    driver(cluster.master, CONF, WITHOUT_PYTHON).complete(bench.job)
    bench.assert_exactly_once()
    [application] = cluster.applications()
    assert application["cores"] == 2
    assert cluster.executors(application["id"]) == {1: 1, 2: 1}


@pytest.mark.long
def test_the_python_tasks_of_foreach_batch_write_with_the_wheel_that_the_nodes_have(
    cluster: SparkCluster, bench: Bench, driver: StartDriver, python_with_wheel: dict[str, str]
) -> None:
    """docs/deploy.md says so."""
    bench.input.add(2)
    driver(cluster.master, CONF, python_with_wheel).complete(by_foreach_batch(bench))
    bench.assert_exactly_once()


@pytest.mark.long
def test_a_wheel_that_is_sent_with_the_application_serves_executors_that_have_only_the_dependencies(
    cluster: SparkCluster, bench: Bench, driver: StartDriver, wheel: Path, tmp_path: Path
) -> None:
    """docs/deploy.md says so. Spark puts only names that end with .zip, .egg or .jar on the path of Python."""
    zipped = shutil.copy(wheel, tmp_path / "exactly_once.zip")
    bare = {"PYSPARK_PYTHON": str(node_environment(tmp_path / "bare"))}
    bench.input.add(2)
    driver(cluster.master, {**CONF, "spark.submit.pyFiles": str(zipped)}, bare).complete(by_foreach_batch(bench))
    bench.assert_exactly_once()


@pytest.mark.long
def test_an_environment_that_is_sent_as_an_archive_serves_executors(
    cluster: SparkCluster, bench: Bench, driver: StartDriver, wheel: Path, tmp_path: Path
) -> None:
    """docs/deploy.md says so: the path is relative to each executor's folder."""
    environment = node_environment(tmp_path / "packed", wheel).parents[1]
    archive = shutil.make_archive(str(tmp_path / "environment"), "gztar", environment)
    bench.input.add(2)
    sent = {**CONF, "spark.archives": f"{archive}#environment"}
    python = {"PYSPARK_PYTHON": "./environment/bin/python"}
    driver(cluster.master, sent, python).complete(by_foreach_batch(bench))
    bench.assert_exactly_once()


@pytest.mark.long
def test_an_executor_that_dies_in_the_middle_of_a_write_is_replaced_and_no_row_is_lost_or_doubled(
    cluster: SparkCluster, bench: Bench, driver: StartDriver, tmp_path: Path
) -> None:
    """Guards against the parts of a dead executor: open transactions, and handles of parts that were written again."""
    failpoints = {"spark.executorEnv.EXACTLY_ONCE_FAILPOINTS": str(tmp_path / "driver-0" / "failpoints")}
    writing = driver(cluster.master, {**CONF, **failpoints}, WITHOUT_PYTHON)
    run = bench.begin(writing)
    bench.hold(run, "some-sent")
    for number in cluster.workers:
        for pid in of_worker(cluster, number, EXECUTOR):
            os.kill(pid, 9)
    run.await_commit(1)
    run.stop()()
    bench.assert_exactly_once()


@pytest.mark.long
def test_a_worker_that_is_killed_in_the_middle_of_a_batch_is_done_without_and_no_row_is_lost_or_doubled(
    cluster: SparkCluster, bench: Bench, driver: StartDriver, tmp_path: Path
) -> None:
    """A machine of the cluster goes: its parts are written again on the other one, while the transactions that it left
    open are nobody's to commit.
    """
    failpoints = {"spark.executorEnv.EXACTLY_ONCE_FAILPOINTS": str(tmp_path / "driver-0" / "failpoints")}
    writing = driver(cluster.master, {**CONF, **failpoints}, WITHOUT_PYTHON)
    run = bench.begin(writing, batches=2)
    until("both executors", lambda: all(of_worker(cluster, n, EXECUTOR) for n in (1, 2)), 60)
    bench.hold(run, "some-sent")
    session = os.getsid(writing.who_reached("some-sent") or 0)
    [lost] = [number for number, pid in cluster.workers.items() if pid == session]
    processes.kill_session(session)
    bench.input.add(2)
    run.await_commit(4)
    run.stop()()
    bench.assert_exactly_once()
    assert lost not in cluster.workers and len(cluster.workers) == 1


@pytest.mark.long
def test_the_image_starts_an_executor_that_writes_for_a_driver_elsewhere(
    bench: Bench, driver: StartDriver, tmp_path: Path
) -> None:
    """What Kubernetes starts in a pod of an executor, without Kubernetes: deploy/entrypoint.sh, told the rest as Spark
    tells it. A master without workers gives the driver no other executor.
    """
    (tmp_path / "tini").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    (tmp_path / "tini").chmod(0o755)
    port = free_port()
    told = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_DIRS": str(tmp_path),
        "SPARK_JAVA_OPT_0": f"-Dspark.driver.port={port}",
        # of those that Spark itself adds, what Arrow and Spark's serializer need of Java 17
        "SPARK_JAVA_OPT_1": "--add-opens=java.base/java.nio=ALL-UNNAMED",
        "SPARK_JAVA_OPT_2": "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
        "SPARK_JAVA_OPT_3": "--add-opens=java.base/java.lang=ALL-UNNAMED",
        "SPARK_JAVA_OPT_4": "--add-opens=java.base/java.lang.invoke=ALL-UNNAMED",
        "SPARK_JAVA_OPT_5": "--add-opens=java.base/java.util=ALL-UNNAMED",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@127.0.0.1:{port}",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "exec-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
    }
    bench.input.add(2)
    with SparkCluster(tmp_path / "spark-cluster", workers=0) as cluster, (tmp_path / "executor.log").open("w") as log:
        run = driver(cluster.master, {"spark.driver.port": str(port)}, WITHOUT_PYTHON).start(bench.job)
        executor = guarded([str(ROOT / "deploy/entrypoint.sh"), "executor"], log, tmp_path, told)
        try:
            ended = run.end()
        finally:
            end_all([executor], graceful_s=0)
    assert ended.failure is None, (tmp_path / "executor.log").read_text()[-3000:]
    bench.assert_exactly_once()


@pytest.mark.long
def test_make_cluster_runs_the_main_job_verifies_its_output_and_leaves_no_process(tmp_path: Path) -> None:
    """The command that docs/deploy.md names, as a user runs it. Guards against a task that asks for Python: the driver
    sends its tasks the name of one that is nowhere, and the executors' own environment names none.
    """
    env = {**os.environ, "EXACTLY_ONCE_RUN_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "platform_assets.cli", "cluster"]
    env = {name: value for name, value in env.items() if name not in ("KAFKA_BOOTSTRAP_SERVERS", "PYSPARK_PYTHON")}
    log = tmp_path / "said"
    with log.open("w") as out:
        running = guarded(command, out, ROOT, env)
        try:
            until(
                "both executors",
                lambda: running.poll() is not None or len(pythons_of(EXECUTOR, tmp_path)) == 2,
                MAIN_JOB_S,
                every_s=0.2,
            )
            told = pythons_of(DRIVER, tmp_path), pythons_of(EXECUTOR, tmp_path)
            code = running.wait(MAIN_JOB_S)
        finally:
            end_all([running], graceful_s=0)
    said = log.read_text()
    assert code == 0, said
    assert told == ([NO_PYTHON], [None, None])
    assert "all 336,776 records came out once" in said and "in order" in said
    assert "with 2 cores; worker 1: 1 executor, worker 2: 1 executor" in said
    every = [processes.command_of(int(entry.name)) for entry in Path("/proc").glob("[0-9]*")]
    assert [command for command in every if str(tmp_path) in command] == []


@pytest.mark.long
def test_a_worker_that_cannot_start_is_named_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster that hangs at its start, and a log that nobody knows of."""
    broken = tmp_path / "java"
    fails = 'case "$*" in *deploy.worker*) echo no memory; exit 1;; esac'
    broken.write_text(f'#!/bin/sh\n{fails}\nexec {find_java().executable} "$@"\n')
    broken.chmod(0o755)
    java = replace(find_java(), executable=str(broken))
    monkeypatch.setattr("exactly_once_local.cluster.spark_cluster.find_java", lambda: java)
    cluster = SparkCluster(tmp_path / "spark-cluster")
    with pytest.raises(ClusterFailed, match=r"worker-1 exited .*: no memory"):
        cluster.start()
    assert cluster.workers == {}
