"""`make cluster`: the main job with its tasks on a Spark standalone cluster, which ends with the command."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from exactly_once.local.spark_cluster import HOST, SparkCluster
from platform_assets.local.environment import PROJECT, Environment
from platform_assets.local.main_job import run_main_job

WORKERS = 2


def run_cluster(environment: Environment, console: Console) -> int:
    """Start the cluster, run the main job on it, say what ran where.

    Returns
    -------
    int
        0 if the runs succeeded, the report finds no problem, and every worker had an executor; else 1.
    """
    nodes = environment.folder / "nodes"
    python = node_environment(nodes / "python", build_wheel(nodes))
    console.print(f"Executors: {python} with the wheel of this checkout, which they cannot see")
    with SparkCluster(environment.folder / "spark-cluster", workers=WORKERS) as cluster:
        console.print(f"Spark: master at {cluster.master}, {WORKERS} workers with a core each")
        with _variables(settings(environment, cluster, python)):
            failed = run_main_job(environment, console)
        ran = cluster.applications()
        if not ran:
            console.print("[bold red]Not right:[/] no application came to the cluster")
            return 1
        executors = cluster.executors(ran[0]["id"])
        told = ", ".join(f"worker {number}: {count} executor" for number, count in executors.items())
        console.print(f"On the cluster: {ran[0]['id']} with {ran[0]['cores']} cores; {told}")
    console.print("Ended: driver, executors, workers, master.")
    return failed or int(not all(executors.values()))


def settings(environment: Environment, cluster: SparkCluster, python: Path) -> dict[str, str]:
    """Return the variables by which the code location runs its streams on ``cluster``."""
    return {
        "EXACTLY_ONCE_DEPLOYMENT": "cluster",
        "EXACTLY_ONCE_SPARK_MASTER": cluster.master,
        "EXACTLY_ONCE_SPARK_WORKER_PYTHON": str(python),
        "EXACTLY_ONCE_SPARK_CONF": '{"spark.executor.memory": "768m"}',
        # The workers are on this machine, so its disk is the one that all of them reach.
        "EXACTLY_ONCE_CHECKPOINTS": str(environment.folder / "checkpoints"),
        "SPARK_LOCAL_IP": HOST,
    }


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout, without a network."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=PROJECT, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return wheel


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


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ |= wanted
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
