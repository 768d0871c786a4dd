"""The input and the stream of a soak: the same ones in every piece."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from exactly_once.kafka.connection import Connection
from faultlab.system import SparkSystem
from faultlab.workload import Workload, Writer
from tests.support.broker import create_topic

INPUT, OUTPUT, SINK_ID = "soak-in", "soak-out", "soak"

#: Of the input, and of the output.
PARTITIONS = 4

#: Two, so that their transactions overlap.
WRITERS = 2

#: Enough that each has a record in most batches.
KEYS = 200

#: A writer's first life in a piece: ids of different pieces never meet.
LIVES = 1_000

#: The disk of a soak of hours is that of its last hour; segments are removed as a whole.
KEPT = {"retention.ms": "3600000", "segment.bytes": str(64 * 1024 * 1024)}

#: At most so many seconds of input in a batch: after an outage the stream catches up in several.
BATCH_S = 5


class SoakWorkload(Workload):
    """Writers of the input of one piece. An id is never written again, in whatever piece.

    Parameters
    ----------
    piece : int
        Its number.
    """

    def __init__(self, connection: Connection, folder: Path, seed: int, *, piece: int, rate: float):
        # not the base class's: that one makes a topic of its own
        folder.mkdir(parents=True, exist_ok=True)
        self.connection, self.partitions, self.rate = connection, PARTITIONS, rate
        self.topic = _kept(connection, INPUT)
        self.writers = [Writer(f"w{n}-{INPUT}", lives=piece * LIVES) for n in range(WRITERS)]
        self._folder, self._seed, self._keys, self._aborts = folder, seed, KEYS, 0.1
        self._log = None


@dataclass
class SoakSystem(SparkSystem):
    """The stream, on the checkpoint that stays; drivers and failpoints are those of a piece."""

    def __post_init__(self) -> None:
        # not the base class's: that one makes a sink of its own
        self.sink_id = SINK_ID
        self.topic = _kept(self.workload.connection, OUTPUT)
        self.per_batch = round(self.workload.rate * BATCH_S)
        self.failpoints = self.folder / "failpoints"
        self.failpoints.mkdir(parents=True)
        self.drivers = 0
        self._driver, self._run = None, None
        self._zombies, self._lock = [], threading.Lock()


def _kept(connection: Connection, name: str) -> str:
    """Make a topic unless it is there."""
    if name not in AdminClient(connection.librdkafka()).list_topics(timeout=30).topics:
        create_topic(connection.bootstrap_servers, name, PARTITIONS, KEPT)
    return name
