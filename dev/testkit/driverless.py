"""Spark's programs as a user without a Python driver starts them: Spark Connect's server, spark-shell, spark-sql,
spark-pipelines.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from exactly_once.sparkenv.jars import session_jars
from exactly_once_local.cluster.spark_cluster import spark_home
from testkit import processes
from testkit.stream import CONF, ROOT

#: How the JVM starts the coordinators.
CHILD = "exactly_once.spark.serve"


def spark_program(
    name: str,
    arguments: Sequence[str],
    folder: Path,
    conf: dict[str, str] | None = None,
    environment: dict[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program of Spark's ``bin``, in a session of its own, with its log and its failpoints in ``folder``."""
    program = [name, "--master", "local[2]", "--jars", ",".join(session_jars())]
    return _start(program, arguments, folder, conf or {}, environment or {})


def spark_pipeline(arguments: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    """Start a run of a pipeline likewise: it takes no master, and its flows do not see what ``--jars`` adds."""
    return _start(["spark-pipelines", "run"], arguments, folder, {}, _of_pipelines())


def pipelines_program(folder: Path) -> tuple[str, list[str], dict[str, str]]:
    """Return the program that runs pipelines, the arguments behind its own, and its environment, for who starts it."""
    (folder / "failpoints").mkdir(parents=True)
    program = str(spark_home() / "bin" / "spark-pipelines")
    return program, _conf(folder, {}), _environment(folder, _of_pipelines())


def _of_pipelines() -> dict[str, str]:
    jars = os.pathsep.join(map(str, session_jars()))  # as if they were in $SPARK_HOME/jars
    return {"SPARK_DIST_CLASSPATH": jars, "PYSPARK_PYTHON": sys.executable}


def _start(
    program: Sequence[str], arguments: Sequence[str], folder: Path, conf: dict[str, str], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    (folder / "failpoints").mkdir(parents=True)
    command = [str(spark_home() / "bin" / program[0]), *program[1:], *_conf(folder, conf)]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=_environment(folder, environment),
            start_new_session=True,
        )


def _conf(folder: Path, conf: dict[str, str]) -> list[str]:
    settings = {
        **CONF,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        **conf,
    }
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def _environment(folder: Path, more: dict[str, str]) -> dict[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if k not in ("SPARK_LOCAL_DIRS", "PYSPARK_PYTHON")},
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
        "EXACTLY_ONCE_PYTHON": sys.executable,
        "EXACTLY_ONCE_FAILPOINTS": str(folder / "failpoints"),
        **more,
    }


def children(session: int) -> list[int]:
    """Return the processes of a session that run the protocol for its JVM."""
    return [pid for pid in processes.of_session(session) if CHILD in processes.command_of(pid)]
