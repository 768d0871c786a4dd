"""The archive of Spark's classes for the drivers of tests. With it, a driver takes 19 s of processor time to its first
batch instead of 26, and all tests together start hundreds of drivers.

``python -m testkit.spark_archive`` makes it in the cache folder, as ``make test`` does first.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from exactly_once.kafka.connection import Connection
from exactly_once_local.class_archive import TRIAL_S, ClassArchive
from testkit.broker import running_broker
from testkit.fixtures import make_bench
from testkit.stream import SparkDriver

#: Spark gives its text to the JVM of every driver.
VARIABLE = "SPARK_SUBMIT_OPTS"


def use() -> None:
    """Let every driver that is started from here on use it, if it is there."""
    if options := ClassArchive("test-classes").options:
        os.environ.setdefault(VARIABLE, f"{options} -Xlog:disable")


def make() -> None:
    """Make it by a trial of the sink, unless it is there."""
    ClassArchive("test-classes").make(_trial, lambda line: print(line, flush=True))


def _trial(folder: Path, options: str) -> None:
    os.environ[VARIABLE] = f"{options} -Xlog:disable"
    with running_broker(folder / "broker") as broker:
        driver = SparkDriver(folder / "driver")
        try:
            for name, participants in (("data-source", None), ("foreach-batch", [])):
                bench = make_bench(Connection(broker.bootstrap_servers), folder / name)
                bench.input.add()
                driver.complete(replace(bench.job, participants=participants), TRIAL_S)
            driver.end(TRIAL_S)
        finally:
            driver.close()


if __name__ == "__main__":
    make()
