"""Gathers what the doctor judges: of this host and of a checkpoint; :mod:`.cluster_probes` does of a cluster. Asks only
what changes nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import psutil

from exactly_once import hdfs
from exactly_once import location as locations
from exactly_once.checkpoint import Checkpoint, file_system, read_checkpoint
from exactly_once.commitlog.commit_log import read_log
from exactly_once.connector import found_on_this_host
from exactly_once.errors import (
    BrokerUnreachable,
    CheckpointAway,
    CheckpointUnusable,
    CommitLogBlocked,
    CommitLogDamaged,
    ExactlyOnceError,
    NotAuthorized,
)
from exactly_once.inspection.findings import Inspection
from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.protocol.log_state import LogState
from exactly_once.tools.diagnosis import Diagnosis, SinkFacts
from exactly_once.tools.doctor.cluster import judge_unreached
from exactly_once.tools.doctor.cluster_probes import ClusterProbes, reachable
from exactly_once.tools.doctor.host import (
    CheckpointPlace,
    java_major,
    judge_checkpoint,
    judge_connector,
    judge_jar,
    judge_java,
    judge_packages,
    judge_python,
    not_answered,
)

#: The jar's path, as :func:`exactly_once.jar` names it; this package does not import Spark's adapter.
_JAR = Path(__file__).parents[2] / "spark" / "exactly-once-spark.jar"

#: The name of this package in an index.
_DISTRIBUTION = "pyspark-kafka-exactly-once"


def examine(
    connect: Callable[[], Connection],
    sink_id: str | None,
    topics: Sequence[str],
    checkpoint: str | None,
    budget_s: float,
    timeout_ms: int | None = None,
) -> list[Diagnosis]:
    """Examine this host, the checkpoint if there is one, and the cluster that ``connect`` names: the other steps need
    none.

    Parameters
    ----------
    budget_s : float
        For each probe of the cluster.
    timeout_ms : int, optional
        The kafka.transaction.timeout.ms that the stream is to have.
    """
    lines, judged, connection = examine_host(), list[Diagnosis](), None
    try:
        connection = connect()
        with Admin(connection, budget_s) as admin:
            if checkpoint is not None:
                judged = examine_checkpoint(checkpoint, sink_id, admin)
            probes = ClusterProbes(admin.renew(budget_s), sink_id, topics, budget_s, timeout_ms)
            return [*lines, *judged, *probes.lines()]
    except ExactlyOnceError as e:
        if checkpoint is not None and not judged:
            judged = examine_checkpoint(checkpoint, sink_id)
        if isinstance(e, BrokerUnreachable) and connection is not None:
            return [*lines, *judged, *judge_unreached(e, reachable(connection))]
        return [*lines, *judged, not_answered("cluster", e)]


def examine_host() -> list[Diagnosis]:
    """Look at the versions on this host, those of jars too."""
    executable = _java()
    return [
        judge_python(sys.version_info[:3]),
        judge_java(executable, java_major(_says(executable)) if executable else None),
        *judge_packages(_requirements(), _version),
        *judge_connector(found_on_this_host(_pyspark_folder()), _version("pyspark")),
        judge_jar(str(_JAR), _sums(_JAR), _version(_DISTRIBUTION) or "of a checkout"),
    ]


def examine_checkpoint(location: str, sink_id: str | None, admin: Admin | None = None) -> list[Diagnosis]:
    """Judge a checkpoint: beside the sink's commit log where ``sink_id`` and ``admin`` are given, else alone. Raise
    BrokerUnreachable where the brokers do not answer.
    """
    read = partial(read_log, admin.connection, sink_id, admin=admin) if sink_id and admin is not None else None
    try:
        return judge_checkpoint(checkpoint_facts(location, sink_id or "", read)[1], _place(location))
    except (CheckpointUnusable, CheckpointAway) as e:
        return [not_answered("checkpoint", e)]
    except (NotAuthorized, CommitLogDamaged, CommitLogBlocked):  # the lines of the cluster say so
        return examine_checkpoint(location, sink_id)


def checkpoint_facts(location: str, sink_id: str, read: Callable[[], LogState] | None) -> tuple[Checkpoint, SinkFacts]:
    """Return a checkpoint, and the facts of it beside the commit log that ``read`` reads, before it and behind it; with
    None, of the checkpoint alone. Raise what ``read`` raises, CheckpointUnusable or CheckpointAway.
    """
    log = read() if read is not None else LogState()
    checkpoint = read_checkpoint(location)
    after = read() if read is not None and checkpoint.last_commit is not None else None
    return checkpoint, SinkFacts(Inspection(sink_id, log=log), checkpoint=checkpoint, after=after)


# -- this host ---------------------------------------------------------------------------------------------------------


def _requirements() -> list[str]:
    try:
        return metadata.requires(_DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # a checkout on the path
        return []


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _pyspark_folder() -> Path | None:
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _sums(jar: Path) -> tuple[str, str] | None:
    """Return the sha256 of a file, and the one in the file beside it; None when one of them cannot be read."""
    try:
        return hashlib.sha256(jar.read_bytes()).hexdigest(), jar.with_name(f"{jar.name}.sha256").read_text().split()[0]
    except (OSError, UnicodeDecodeError, IndexError):
        return None


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java")


def _says(executable: str) -> str:
    try:
        return subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _place(location: str) -> CheckpointPlace:
    files, path = file_system(location)
    if files.type_name != "local":
        return CheckpointPlace("hdfs" if locations.is_on(location, *hdfs.SCHEMES) else files.type_name)
    there = Path(path).absolute()
    while not there.exists():
        there = there.parent
    mounts = [p for p in psutil.disk_partitions(all=True) if there.is_relative_to(p.mountpoint)]
    mount = max(mounts, key=lambda p: len(p.mountpoint), default=None)
    return CheckpointPlace(
        "local", mount.fstype if mount else "", os.access(there, os.W_OK | os.X_OK), psutil.disk_usage(str(there)).free
    )
