"""Spark's classes as an archive for the driver's JVM, made once: half the processor time of a start's JVM.

Without it, one would mostly watch class loading.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from exactly_once.sparkenv.jars import cache_folder, session_jars
from exactly_once.sparkenv.java import find_java
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.duel.feed import DuelFeed, make_topics
from exactly_once_local.duel.sinks import DuelFailed
from exactly_once_local.duel.supervisor import Driver

#: Enough that each part of a batch has records.
FLIGHTS = 400

#: The trial runs every step of both sinks once, and then writes some 170 MB; a minute or so on a busy machine.
LIMIT_S = 300.0


def prepare(say: Callable[[str], None]) -> str:
    """Make the archive when there is none, by a trial of both sinks in a temporary folder.

    Returns
    -------
    str
        The options with which a JVM uses it; one that cannot is slower, nothing else.

    Raises
    ------
    DuelFailed
        The trial failed; the message has the end of its log.
    """
    archive = _place()
    if not archive.is_file():
        say("Once: a trial of both sinks, after which Spark starts twice as fast")
        with tempfile.TemporaryDirectory(prefix="trial-", dir=cache_folder()) as folder:
            made = Path(folder) / "classes.jsa"
            with EmbeddedBroker(Path(folder) / "broker") as broker:
                _trial(broker.bootstrap_servers, Path(folder), made)
            if made.is_file():
                made.rename(archive)
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto" if archive.is_file() else ""


def _place() -> Path:
    """Return the path of the archive for this Java, this PySpark and these jars."""
    java = Path(find_java().executable).resolve()
    what = (java, java.stat().st_mtime_ns, version("pyspark"), session_jars())
    return cache_folder() / f"spark-classes-{hashlib.sha256(repr(what).encode()).hexdigest()[:12]}.jsa"


def _trial(brokers: str, folder: Path, archive: Path) -> None:
    make_topics(brokers)
    feed = DuelFeed(brokers, FLIGHTS, FLIGHTS)
    feed.send(FLIGHTS)
    feed.finish()
    driver = Driver(brokers, folder, FLIGHTS, f"-XX:ArchiveClassesAtExit={archive}")
    driver.start()
    try:
        driver.finish()  # what there is, and no more
        end = time.monotonic() + LIMIT_S
        while not (driver.done and driver.gone):
            if time.monotonic() > end:
                raise DuelFailed(f"The trial did not end:\n{driver.log_tail()}")
            time.sleep(0.1)
    finally:
        driver.close()
