"""The SparkSession of the streams, field by field, by deployment.

``EXACTLY_ONCE_SPARK_<FIELD>`` variables win over what stands here: ``EXACTLY_ONCE_SPARK_DRIVER_MEMORY=2g``.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from dagster_exactly_once import SparkSessionResource


def local_session(work_dir: Path) -> SparkSessionResource:
    """Return Spark in the process of a run, with its checkpoints on this disk."""
    return SparkSessionResource.from_environment(
        master="local[*]",
        app_name="kafka-exactly-once",
        driver_memory="1g",  # all there is: the tasks run in the driver
        work_dir=str(work_dir),
        local_checkpoints=True,
        ui=True,
        connector=True,
        worker_python=None,  # that of the driver
        conf={},  # such as {"spark.sql.shuffle.partitions": "4"}
    )


def cluster_session(work_dir: Path, master: str, checkpoints: str) -> SparkSessionResource:
    """Return a driver in the process of a run, with its executors on the cluster of ``master``.

    Parameters
    ----------
    checkpoints : str
        Where they are: a URI such as ``s3a://bucket/streams``, or a folder that every executor has.
    """
    return SparkSessionResource.from_environment(
        master=master,
        app_name="kafka-exactly-once",
        driver_memory="1g",
        work_dir=str(work_dir),
        local_checkpoints=urlsplit(checkpoints).scheme in ("", "file"),
        ui=True,
        connector=True,  # EXACTLY_ONCE_SPARK_CONNECTOR=false where the image has Spark's Kafka connector
        worker_python=None,  # that of the driver; a path where the executors have theirs elsewhere
        conf={},  # such as {"spark.executor.instances": "4"}
    )
