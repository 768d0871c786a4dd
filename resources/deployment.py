"""The resources of this code location, by deployment: ``EXACTLY_ONCE_DEPLOYMENT`` is ``local`` or ``cluster``.

``local`` runs Spark in the run's process and keeps checkpoints on this disk. ``cluster`` takes the master from
``EXACTLY_ONCE_SPARK_MASTER``, and keeps checkpoints where ``EXACTLY_ONCE_CHECKPOINTS`` says (``s3a://bucket/streams``,
``hdfs://...``): executors on other machines cannot reach this disk.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dagster_exactly_once import exactly_once_resources
from resources.kafka import producer_factory
from resources.spark import cluster_session, local_session


def resources(folder: Path) -> dict[str, Any]:
    """Return the resources by key, with local state below ``folder``.

    Raises
    ------
    ValueError
        A variable is missing, or names no deployment; the code location then says so instead of loading.
    """
    work_dir, deployment = folder / "spark", os.environ.get("EXACTLY_ONCE_DEPLOYMENT", "local")
    if deployment == "local":
        checkpoints = str(folder / "checkpoints")
        spark = local_session(work_dir)
    elif deployment == "cluster":
        master, checkpoints = _required("EXACTLY_ONCE_SPARK_MASTER", "EXACTLY_ONCE_CHECKPOINTS")
        spark = cluster_session(work_dir, master, checkpoints)
    else:
        raise ValueError(f"EXACTLY_ONCE_DEPLOYMENT must be local or cluster, not {deployment}")
    return exactly_once_resources(
        work_dir=str(work_dir), checkpoints=checkpoints, spark=spark, kafka=producer_factory()
    )


def _required(*names: str) -> list[str]:
    if missing := [name for name in names if not os.environ.get(name)]:
        raise ValueError(f"EXACTLY_ONCE_DEPLOYMENT=cluster needs {' and '.join(missing)}")
    return [os.environ[name] for name in names]
