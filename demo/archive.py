"""Spark's classes as an archive that both drivers share, made once: a start takes 11 s of processor time instead
of 18 to 21 (on a busy machine of two cores).

A duel is eight starts of Spark on two cores. Without it, most of the time one would watch class loading.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from demo import corner
from demo.feed import Feed, make_topics
from demo.processes import kill_sessions, of_sessions
from demo.rules import FINISH, DuelFailed
from resources.embedded_broker import EmbeddedBroker
from resources.jars import cache_folder, connector_jars
from resources.java import find_java
from resources.spark_home import fast_spark_home

#: Enough that each part of a batch has records.
FLIGHTS = 400

#: The trial runs every step of both sinks once, and then writes some 170 MB; a minute or so on a busy machine.
LIMIT_S = 300.0


def class_archive() -> Path:
    """Where it is, or would be, for this Java, this PySpark and these jars. A JVM that cannot use it ignores it."""
    java = Path(find_java().executable).resolve()
    what = (java, java.stat().st_mtime_ns, fast_spark_home(), connector_jars())
    return cache_folder() / f"spark-classes-{hashlib.sha256(repr(what).encode()).hexdigest()[:12]}.jsa"


def prepare(say: Callable[[str], None]) -> Path:
    """The archive; when there is none, it is made by a trial of both sinks in a temporary folder.

    Raises
    ------
    DuelFailed
        The trial failed; the message has the end of its log.
    """
    archive = class_archive()
    if not archive.is_file():
        say("Once: a trial of both sinks, after which Spark starts twice as fast")
        with tempfile.TemporaryDirectory(prefix="trial-", dir=cache_folder()) as folder:
            made = Path(folder) / "classes.jsa"
            with EmbeddedBroker(Path(folder) / "broker") as broker:
                _trial(broker.bootstrap_servers, Path(folder), made)
            if made.is_file():  # a JVM without the feature is slower, nothing else
                made.rename(archive)
    return archive


def _trial(brokers: str, folder: Path, archive: Path) -> None:
    make_topics(brokers)
    feed = Feed(brokers, FLIGHTS, FLIGHTS)
    feed.send(FLIGHTS)
    feed.finish()
    with (folder / "log").open("wb") as log:
        process = corner.launch("all", brokers, folder, FLIGHTS, f"-XX:ArchiveClassesAtExit={archive}", log)
    try:
        assert process.stdin is not None
        process.stdin.write(FINISH + b"\n")  # both queries in turn: what there is, and no more
        process.stdin.flush()
        code = process.wait(LIMIT_S)
        if code:
            raise DuelFailed(f"The trial ended with {code}:\n{corner.tail(folder / 'log')}")
        _await_jvm(process.pid)
    except subprocess.TimeoutExpired:
        raise DuelFailed(f"The trial did not end:\n{corner.tail(folder / 'log')}") from None
    finally:
        kill_sessions([process.pid])


def _await_jvm(session: int) -> None:
    """The JVM outlives its Python by the time that the archive takes."""
    end = time.monotonic() + LIMIT_S
    while of_sessions([session]) and time.monotonic() < end:
        time.sleep(0.1)
