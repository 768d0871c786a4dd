"""The archive of Spark's classes for the duel's driver. Without it, one would mostly watch class loading."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from exactly_once.sparkenv.jars import Progress, session_jars
from exactly_once_local.class_archive import TRIAL_S, ClassArchive
from exactly_once_local.cluster.embedded_broker import EmbeddedBroker
from exactly_once_local.duel.feed import DuelFeed, make_topics
from exactly_once_local.duel.sinks import DuelFailed
from exactly_once_local.duel.supervisor import Driver

#: Flights of the trial: enough that each part of a batch has records.
FLIGHTS = 400


def prepare(say: Progress) -> str:
    """Make the archive when there is none, by a trial of every step of both sinks.

    Returns
    -------
    str
        The options with which a JVM uses it.

    Raises
    ------
    DuelFailed
        The trial failed; the message has the end of its log.
    """
    archive = ClassArchive("spark-classes", session_jars())
    archive.make(_trial, say)
    return archive.options


def _trial(folder: Path, options: str) -> None:
    with EmbeddedBroker(folder / "broker") as broker:
        make_topics(broker.bootstrap_servers)
        feed = DuelFeed(broker.bootstrap_servers, FLIGHTS, FLIGHTS)
        feed.send(FLIGHTS)
        feed.finish()
        with closing(Driver(broker.bootstrap_servers, folder, FLIGHTS, options)) as driver:
            driver.start()
            driver.finish()  # what there is, and no more
            end = time.monotonic() + TRIAL_S
            while not (driver.done and driver.gone):
                if time.monotonic() > end:
                    raise DuelFailed(f"The trial did not end:\n{driver.log_tail()}")
                time.sleep(0.1)
