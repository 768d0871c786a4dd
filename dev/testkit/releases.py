"""Other releases of what a stream runs on: brokers whose release changes on one folder, drivers of another Spark,
Python or release of this package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from exactly_once.kafka.admin import Admin
from exactly_once.kafka.connection import Connection
from exactly_once.spark.session import JAR
from exactly_once.sparkenv.jars import broker_classpath, connector_jars, resolve_configuration
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.ports import free_port
from testkit.broker import FAST_TIME_OUTS
from testkit.processes import until
from testkit.stream import ROOT, SparkDriver
from tools.environments import environment

#: The release of this package before this one: a tag, or as long as there is none, a commit.
BEFORE = os.environ.get("TEST_UPGRADES_BEFORE") or "e140b00b"

_MODULE = "org.apache.spark.sql.execution.streaming."


# -- brokers -----------------------------------------------------------------------------------------------------------


def classpath(release: str) -> str:
    """Return the class path of a release of Kafka, of ``dev/testkit/ivy-kafkas.xml`` or the embedded one."""
    kafkas = Path(__file__).with_name("ivy-kafkas.xml")
    if f'conf name="{release}"' not in kafkas.read_text():
        return broker_classpath()
    return os.pathsep.join(map(str, resolve_configuration(kafkas, release)))


def cluster_of(folder: Path, release: str, nodes: int = 1, port: int | None = None) -> EmbeddedBroker:
    """Return a cluster of that release on ``folder``, new or as another release left it, on ports that stay; not
    started.
    """
    port = port or free_port()
    return EmbeddedBroker(folder, nodes=nodes, port=port, properties=FAST_TIME_OUTS, classpath=classpath(release))


def level_of(connection: Connection) -> int:
    """Return the cluster's transaction.version, 0 where it has none."""
    return levels_of(connection).get("transaction.version", 0)


def levels_of(connection: Connection) -> dict[str, int]:
    """Return the cluster's finalized features."""
    with Admin(connection, 30) as admin:
        features = admin.call(admin.client.describe_features)
    return {name: known["finalized"][1] for name, known in features.items() if "finalized" in known}


def finalise(connection: Connection, level: int, feature: str = "transaction.version") -> None:
    """Set a feature of the cluster as ``kafka-features.sh`` does, and wait until the brokers say so."""
    now = levels_of(connection).get(feature, 0)
    if level == now:
        return
    kind = "UPGRADE" if level > now else "SAFE_DOWNGRADE" if level else "UNSAFE_DOWNGRADE"
    with Admin(connection, 30) as admin:
        answer = admin.call(lambda: admin.client.update_features({feature: (kind, level)}))
    assert answer == {feature: "OK"}, answer
    until(f"{feature}={level}", lambda: levels_of(connection).get(feature, 0) == level)


def finalise_release(connection: Connection) -> dict[str, int]:
    """Set what ``kafka-features.sh upgrade`` sets after an upgrade of all brokers: their newest metadata.version, and
    transaction.version 2. Return the finalized features.
    """
    with Admin(connection, 30) as admin:
        features = admin.call(admin.client.describe_features)
    finalise(connection, features["metadata.version"]["supported"][1], "metadata.version")
    finalise(connection, 2)
    return levels_of(connection)


# -- drivers -----------------------------------------------------------------------------------------------------------


@cache
def package_before() -> Path:
    """Return a folder with this repository at the release before this one, as git has it; skip the test without it."""
    asked = ["git", "rev-parse", "--verify", "--short=12", f"{BEFORE}^{{commit}}"]
    commit = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    if not commit:
        pytest.skip(f"this clone has no {BEFORE}: fetch all of its history")
    folder = ROOT / ".run" / f"package-{commit}"
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        # its drivers are commanded by the tests' kit of this release
        subprocess.run(["tar", "-x", "--exclude=testkit", "-C", str(folder)], input=archive, check=True)
        (folder / "complete").touch()
    return folder


def driver_of(
    folder: Path,
    spark: str | None = None,
    *,
    python: str | None = None,
    package: Path = ROOT,
    conf: Mapping[str, str] | None = None,
) -> SparkDriver:
    """Start a driver: of another PySpark, in its environment or that of ``python``; of the release of this package that
    stands in ``package``. ``local[8]``, so that queries which are held do not keep others waiting.
    """
    jars = [*connector_jars(spark), str(package / JAR.relative_to(ROOT))]
    moved = "" if spark and spark.startswith(("3.", "4.0.")) else "checkpointing."
    settings = {
        "spark.jars": ",".join(jars),
        "spark.sql.streaming.checkpointFileManagerClass": f"{_MODULE}{moved}FileSystemBasedCheckpointFileManager",
        **(conf or {}),
    }
    python = python or (environment(spark) if spark else sys.executable)
    return SparkDriver(folder, "local[8]", settings, {"PYTHONPATH": f"{package}:{ROOT}"}, python=python)
