"""An archive of the classes that Spark's JVM loads, made once. With it, a driver takes 19 s of processor time to its
first batch instead of 26, and all tests together start hundreds of drivers.

``python -m testkit.spark_archive`` makes it in the cache folder, as ``make test`` does first.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from exactly_once.kafka.connection import Connection
from exactly_once.sparkenv.jars import cache_folder
from exactly_once.sparkenv.java import find_java
from testkit.broker import running_broker
from testkit.fixtures import make_bench
from testkit.stream import SparkDriver

#: Spark gives its text to the JVM of every driver.
VARIABLE = "SPARK_SUBMIT_OPTS"

#: The end of the trial's JVM: it writes some 170 MB.
LIMIT_S = 300.0


def class_archive() -> Path:
    """Return where it is, or would be, for this Java and this PySpark."""
    java = Path(find_java().executable).resolve()
    what = (java, java.stat().st_mtime_ns, version("pyspark"))
    return cache_folder() / f"test-classes-{hashlib.sha256(repr(what).encode()).hexdigest()[:12]}.jsa"


def use() -> None:
    """Let every driver that is started from here on use it, if it is there. A JVM that cannot use it ignores it."""
    archive = class_archive()
    if archive.is_file():
        os.environ.setdefault(VARIABLE, f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable")


def make() -> None:
    """Make it by a trial of the sink, unless it is there."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with (cache_folder() / "test-classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        archive = class_archive()
        if archive.is_file():
            return
        print("Once: a trial run, after which Spark starts faster in tests", flush=True)
        with tempfile.TemporaryDirectory(prefix="trial-", dir=cache_folder()) as folder:
            made = Path(folder) / "classes.jsa"
            os.environ[VARIABLE] = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"
            with running_broker(Path(folder) / "broker") as broker:
                _trial(Connection(broker.bootstrap_servers), Path(folder))
            if made.is_file():  # a JVM without the feature is slower, nothing else
                made.rename(archive)


def _trial(connection: Connection, folder: Path) -> None:
    driver = SparkDriver(folder / "driver")
    try:
        for name, participants in (("data-source", None), ("foreach-batch", [])):
            bench = make_bench(connection, folder / name)
            bench.input.add()
            driver.complete(replace(bench.job, participants=participants), LIMIT_S)
        driver.end(LIMIT_S)
    finally:
        driver.close()


if __name__ == "__main__":
    make()
