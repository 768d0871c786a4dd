"""The resources of this code location, by deployment: ``EXACTLY_ONCE_DEPLOYMENT`` is ``local`` or ``cluster``.

``local`` runs Spark in the run's process and keeps checkpoints on this disk. ``cluster`` takes the master, and all that
differs between clusters, from ``EXACTLY_ONCE_SPARK_...`` variables, and keeps checkpoints where
``EXACTLY_ONCE_CHECKPOINTS`` says (``s3a://bucket/streams``, ``hdfs://...``): executors on other machines cannot reach
this disk. The brokers are those of the ``KAFKA_...`` variables in both.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dagster_exactly_once import exactly_once_resources


def resources(folder: Path) -> dict[str, Any]:
    """Return the resources by key, with local state below ``folder``.

    Raises
    ------
    ValueError
        A variable is missing, or names no deployment; the code location then says so instead of loading.
    """
    return exactly_once_resources(work_dir=str(folder / "spark"), checkpoints=_checkpoints(folder))


def _checkpoints(folder: Path) -> str:
    deployment = os.environ.get("EXACTLY_ONCE_DEPLOYMENT", "local")
    if deployment == "local":
        return str(folder / "checkpoints")
    if deployment != "cluster":
        raise ValueError(f"EXACTLY_ONCE_DEPLOYMENT={deployment} is no deployment: use local or cluster")
    missing = [name for name in ("EXACTLY_ONCE_SPARK_MASTER", "EXACTLY_ONCE_CHECKPOINTS") if not os.environ.get(name)]
    if missing:
        raise ValueError(f"EXACTLY_ONCE_DEPLOYMENT=cluster needs {' and '.join(missing)}")
    return os.environ["EXACTLY_ONCE_CHECKPOINTS"]
